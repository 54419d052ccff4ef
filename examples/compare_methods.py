"""All methods on one problem, in one table: python examples/compare_methods.py (needs tradi[demo]; half a minute).

Eight of scikit-learn's ten digits are learnt. The table says how well every method predicts these, and how well it
notices the two others. One seed of one small problem: see docs/results.md for tables that mean something.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import tradi
from tradi import metrics
from tradi.methods import SWAG, DeepEnsemble, GaussianPerturbation, LastLayerLaplace, MCDropout, SingleNetwork


def main(epochs: int = 30, networks: int = 5) -> None:
    """Train once with two trackers attached, and `networks` times for the Deep Ensemble."""
    data = tradi.data.digits()
    x, y = data.train
    training, validation = [data.train], [data.validation]

    def make() -> nn.Module:
        return tradi.models.mlp(64, [100, 100], data.classes, dropout=0.1)

    def learn(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        optimizer = optimizer or sgd(model)
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                F.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()

    torch.manual_seed(0)
    model = make()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    swag = SWAG(model, optimizer, every=5, start=3 * epochs * -(-len(x) // 32) // 4)  # the last quarter
    learn(model, optimizer)
    ensembles = {
        "single network": SingleNetwork(model).sample(),
        "MC Dropout": MCDropout(model).sample(20),
        "Gaussian perturbation": GaussianPerturbation(model).choose_scale(validation).sample(20),
        "SWAG": swag.posterior().sample(20),
        "Laplace, last layer": LastLayerLaplace(model).fit(training, validation).sample(20),
        "TRADI": tracker.posterior().fit(training, validation).sample(20),
        f"Deep Ensemble of {networks}": DeepEnsemble.train(make, learn, seeds=range(networks)).sample(),
    }
    print(f"{'':24}{'accuracy %':>11}{'NLL':>8}{'AUC %, unknown digits':>23}")
    for name, ensemble in ensembles.items():
        task = tradi.likelihoods.Classification()
        known = ensemble.predict(data.test[0], likelihood=task)
        unknown = ensemble.predict(data.ood["unknown digits"], likelihood=task)
        score = "one_minus_confidence" if len(ensemble) == 1 else "mutual_information"
        scores = torch.cat([getattr(known, score), getattr(unknown, score)])
        auc = metrics.auroc(scores, torch.arange(len(scores)) >= len(known.labels))
        labels = data.test[1]
        accuracy, nll = metrics.accuracy(known.probs, labels), metrics.nll(known.probs, labels)
        print(f"{name:24}{100 * accuracy:>11.1f}{nll:>8.3f}{100 * auc:>23.1f}")


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of every run."""
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


if __name__ == "__main__":
    main()
