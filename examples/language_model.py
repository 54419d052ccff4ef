"""Which characters is a language model unsure of? python examples/language_model.py (needs tradi[demo]; a minute).

A small transformer learns the docstrings of the Python that runs this. LoRA adapters, of rank 4, then learn its code:
they and the last layer are all that trains, and all that members differ in. Ends in a table and in
`language_model.png`, where a character is the darker, the more the members disagree about it.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import tradi
from tradi.data.docstrings import CHARACTERS, decoded, docstrings, encoded
from tradi.models import LanguageModel, next_token_loss


class Adapted(nn.Linear):
    """A frozen layer and a trainable product of two thin matrices beside it (Hu et al., 2021)."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__(layer.in_features, layer.out_features)
        self.load_state_dict(layer.state_dict())
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output, and the adapter's."""
        return super().forward(x) + x @ self.down.T @ self.up.T


def adapt(model: LanguageModel, rank: int = 4) -> None:
    """Freeze all but the last layer, and put adapters beside the attention's matrices."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.attention, block.mixed = Adapted(block.attention, rank), Adapted(block.mixed, rank)
    model.head.requires_grad_(True)


def learn(model: LanguageModel, lines: Tensor, steps: int, rate: float, track: bool = False) -> tradi.TRADI | None:
    """Train on lines drawn at random."""
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], rate)
    tracker = tradi.TRADI(model, optimizer) if track else None
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = lines[torch.randint(len(lines), (32,))]
        optimizer.zero_grad()
        next_token_loss(model(batch), batch).backward()
        optimizer.step()
        schedule.step()
    return tracker


def main(steps: int = 400, length: int = 64, width: int = 64) -> None:
    """Train, adapt, and look at lines of four kinds."""
    torch.manual_seed(0)
    texts = docstrings()
    model = LanguageModel(len(CHARACTERS), length, width=width)
    learn(model, encoded(texts.train, length), steps, 3e-3)
    adapt(model)
    code = encoded(texts.ood["code"], length)
    code = code[torch.randperm(len(code))]
    train, validation, test = code[:2000], code[2000:2100], code[2100:2150]
    tracker = learn(model, train, steps // 2, 3e-3, track=True)
    assert tracker is not None
    batches = [[(part, part) for part in lines.split(50)] for lines in (train[:500], validation)]
    ensemble = tracker.posterior().fit(*batches, likelihood=tradi.likelihoods.Tokens()).sample(10)

    kinds = {"code": test} | {name: encoded(texts.ood[name], length)[:50] for name in ("shuffled letters", "base64")}
    kinds["docstrings"] = encoded(texts.test, length)[:50]
    print(f"{'':18}{'NLL':>8}{'entropy':>9}{'mutual information, nats a character':>38}")
    figure, axes = plt.subplots(len(kinds), 1, figsize=(10, 3), layout="constrained")
    predictions = {kind: ensemble.predict(lines) for kind, lines in kinds.items()}
    darkest = max(found.mutual_information[0, :-1].max().item() for found in predictions.values())
    for ax, (kind, found) in zip(axes, predictions.items(), strict=True):
        nll = -tradi.likelihoods.Tokens().log_prob(found.log_probs.transpose(1, 2), kinds[kind]).mean()
        information = found.mutual_information[:, :-1]  # that after position i is about character i + 1
        print(f"{kind:18}{nll:>8.3f}{found.entropy[:, :-1].mean():>9.3f}{information.mean():>38.4f}")
        line = information[:1].numpy()
        ax.imshow(line, cmap="Oranges", aspect="auto", vmin=0, vmax=darkest, extent=(0.5, length - 0.5, 0, 1))
        for place, character in enumerate(decoded(kinds[kind][0])):
            ax.text(place, 0.5, character.replace("\n", "↵").replace("$", r"\$"), family="monospace", ha="center")
        ax.set(title=kind, xlim=(-1, length), yticks=[], xticks=[])
    figure.savefig("language_model.png", dpi=150)
    print("drew language_model.png")


if __name__ == "__main__":
    main()
