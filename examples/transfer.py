"""A network that knows five digits learns the others from a few images: python examples/transfer.py (needs `demo`).

Ends in a table: the fine-tuned network alone, TRADI without the first training's posterior, and TRADI that begins
with it. Accuracy and NLL are of test images of the new digits; the AUC says how well mutual information (of the
network alone, one minus confidence) tells them from noise and from the digits of the first training.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tradi import metrics

FIRST, SECOND = (5, 6, 7, 8, 9), (0, 1, 2, 3, 4)  # held out in either training


def trained(model: nn.Module, data: tuple[Tensor, Tensor], epochs: int, **options: object) -> tradi.TRADI:
    """Train a network and follow it."""
    x, y = data
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    tracker = tradi.TRADI(model, optimizer, **options)  # type: ignore[arg-type]
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(20):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return tracker


def network(head: str) -> nn.Sequential:
    """The head has a name of its own: it is the only part that starts fresh."""
    model = tradi.models.mlp(64, [100, 100], batchnorm=True)
    model.add_module(head, nn.Linear(100, 5))
    return model


def row(name: str, ensemble: tradi.Ensemble, test: tuple[Tensor, Tensor], ood: Mapping[str, Tensor]) -> str:
    """One line of the table."""
    x, y = test
    inside = ensemble.predict(x)
    cells = [
        f"{100 * metrics.accuracy(inside.probs, y):8.1f}",
        f"{metrics.nll_from_log_probs(inside.log_probs, y):8.3f}",
    ]
    score = metrics.one_minus_confidence if len(ensemble) == 1 else metrics.mutual_information
    for images in ood.values():
        scores = torch.cat([score(inside), score(ensemble.predict(images))])
        is_ood = torch.arange(len(scores)) >= len(y)
        cells.append(f"{100 * metrics.auroc(scores, is_ood):13.1f}")
    return f"{name:22}" + "".join(cells)


def main(epochs: int = 40, images: int = 40) -> None:
    """Train on five digits, fine-tune on a few images of the others, and compare."""
    torch.manual_seed(0)
    known, new = tradi.data.digits(held_out=FIRST), tradi.data.digits(held_out=SECOND)
    base = network("first")
    earlier = trained(base, known.train, epochs).posterior().condition([known.train])

    few, validation = ((x[:images], y[:images]) for x, y in (new.train, new.validation))
    start = network("second")
    start.load_state_dict(base.state_dict(), strict=False)
    ood = {"noise": torch.randn_like(new.test[0]), "known digits": new.ood["unknown digits"]}
    print(f"{'':22}{'acc. %':>8}{'NLL':>8}" + "".join(f"{name:>13}" for name in ood))
    for name, options in (("TRADI", {}), ("TRADI with a prior", {"prior": earlier})):
        torch.manual_seed(1)
        tracker = trained(copy.deepcopy(start), few, epochs, **options)
        posterior = tracker.posterior().fit([few], [validation])
        if not options:
            print(row("the network alone", posterior.final(), new.test, ood))
        print(row(name, posterior.sample(20), new.test, ood))
    print(tracker)


if __name__ == "__main__":
    main()
