"""Which images should be labelled next? python examples/active_learning.py (needs tradi[demo]; half a minute).

Two networks begin with the same 20 of scikit-learn's digits. Round by round, each gets 20 labels more: one of images
that chance picks, the other of those that its members disagree about most. Ends in a table and in
`active_learning.png`.
"""

from __future__ import annotations

import warnings

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

import tradi
from tradi.acquisition import Score, bald, random

SCORES: dict[str, Score] = {"by chance": random, "where members disagree": bald}


def curve(score: Score, rounds: int, size: int, epochs: int, seed: int) -> list[float]:
    """Accuracy on test images after each round."""
    data = tradi.data.digits()
    (x, y), (test, labels) = data.train, data.test
    torch.manual_seed(seed)
    order = torch.randperm(len(x))
    labelled, pool = order[:size], order[size:]
    held = size // 5  # of every round's labels, to choose the scale of the noise by
    model = tradi.models.mlp(64, [100], data.classes)  # each round goes on from the weights of the one before
    found = []
    for number in range(rounds):
        validation, learnt = labelled[: held * (number + 1)], labelled[held * (number + 1) :]
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        tracker = tradi.TRADI(model, optimizer)
        for _ in range(epochs):
            for batch in learnt[torch.randperm(len(learnt))].split(16):
                optimizer.zero_grad()
                F.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
        parts = ([(x[part], y[part])] for part in (learnt, validation))
        ensemble = tracker.posterior().fit(*parts).sample(20, seed=number)
        found.append((ensemble.predict(test).labels == labels).double().mean().item())
        chosen = pool[tradi.acquire(ensemble, x[pool], size, score=score, seed=number)]
        pool = pool[~torch.isin(pool, chosen)]
        chosen = chosen[torch.randperm(size)]
        labelled = torch.cat([validation, chosen[:held], learnt, chosen[held:]])
    return found


def main(rounds: int = 8, size: int = 20, epochs: int = 40, seeds: int = 3) -> None:
    """Compare both, and draw their learning curves."""
    # The few labels for validation of the first rounds may admit no noise: members are then alike, and chance decides.
    warnings.filterwarnings("ignore", "scale 0|no noise up to|all members are the trained network|the scores of all")
    labels = [size * (number + 1) for number in range(rounds)]
    print(f"{'accuracy in per cent with labels':34}" + "".join(f"{count:>7}" for count in labels))
    for name, score in SCORES.items():
        runs = torch.tensor([curve(score, rounds, size, epochs, seed) for seed in range(seeds)])
        print(f"{name:34}" + "".join(f"{100 * mean:>7.1f}" for mean in runs.mean(0).tolist()))
        plt.errorbar(labels, runs.mean(0).tolist(), (runs.std(0) / seeds**0.5).tolist(), marker="o", label=name)
    plt.xlabel("Labels")
    plt.ylabel("Accuracy on test images")
    plt.legend()
    plt.savefig("active_learning.png", dpi=150)
    print("drew active_learning.png")


if __name__ == "__main__":
    main()
