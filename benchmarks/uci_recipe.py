"""Which recipe for which UCI set? Judged on a part of the training data that nothing else sees; test rows are not read.

Every published training part is cut in three: a tenth to judge the recipe by, a tenth of the rest to stop on (as in the
benchmark), and what remains to train on. The networks of all splits are stacked and trained at once, by batched matrix
products, so that twenty splits take hardly longer than one. One JSON line a recipe and set goes to the output: RMSE and
NLL of the single networks, of the mean networks that TRADI tracks (its scale 0), and of the ensembles that they make.
The settings of `tradi.bench.uci` were chosen from such trials, set by set.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import joblib
import torch
from torch import Tensor
from torch.nn import functional as F

from tradi.bench.uci import SETTINGS
from tradi.data.uci import NAMES, uci
from tradi.models.regression import FLOOR

Weights = list[Tensor]  # of the hidden layer, of the mean's head and of the variance's: weight and bias each
MEAN_GAIN = 10  # g of TRADI's default memory


@dataclass(frozen=True)
class Trial:
    """A recipe: Adam, its rate falling along a half cosine to `nll_rate` times `lr`, where it stays in stage two."""

    lr: float
    weight_decay: float
    dropout: float
    batch: int
    mse_epochs: int
    nll_rate: float
    nll_epochs: int = 30
    patience: int = 5

    def rate(self, epoch: int) -> float:
        done = (1 - math.cos(math.pi * min(epoch / self.mse_epochs, 1))) / 2
        return self.lr * (1 + done * (self.nll_rate - 1))


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs and targets of all networks, (networks, rows, columns), and the targets' standard deviations."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]
    unit: Tensor


def rows(name: str, splits: int, members: int, root: Path) -> Rows:
    """The training parts of the first splits, cut in three, each for so many networks."""
    parts, units = [], []
    for split in range(splits):
        source = uci(name, split, root)
        x, y = source.train
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + split))
        held, rest = order.tensor_split([len(x) // 10])
        validation, train = rest.tensor_split([len(rest) // 10])
        parts += [[(x[part], y[part]) for part in (train, validation, held)]] * members
        units += [source.target_std] * members
    size = [min(len(each[part][0]) for each in parts) for part in range(3)]  # splits differ by a row
    train, validation, held = (
        tuple(torch.stack([each[part][side][: size[part]] for each in parts]) for side in range(2)) for part in range(3)
    )
    return Rows(train, validation, held, torch.tensor(units))  # type: ignore[arg-type]


def initial(networks: int, inputs: int, hidden: int) -> Weights:
    """As `tradi.models.mlp` and `tradi.models.regression.GaussianHead` begin; the variance's head starts at 0."""
    bound = hidden**-0.5
    weights = [
        torch.randn(networks, inputs, hidden) * math.sqrt(2 / inputs),
        torch.zeros(networks, 1, hidden),
        torch.empty(networks, hidden, 1).uniform_(-bound, bound),
        torch.empty(networks, 1, 1).uniform_(-bound, bound),
        torch.zeros(networks, hidden, 1),
        torch.zeros(networks, 1, 1),
    ]
    return [weight.requires_grad_() for weight in weights]


def forward(weights: Weights, x: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """Mean and variance."""
    features = F.dropout(F.relu(torch.baddbmm(weights[1], x, weights[0])), dropout)
    mean, variance = (torch.baddbmm(weights[i + 1], features, weights[i]) for i in (2, 4))
    return mean, F.softplus(variance) + FLOOR


def nll(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """Of every network."""
    mean, variance = output
    return F.gaussian_nll_loss(mean, y, variance, full=True, eps=FLOOR, reduction="none").mean((1, 2))


def squared_error(output: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """Of every network."""
    return (output[0] - y).square().mean((1, 2))


def trained(data: Rows, hidden: int, trial: Trial) -> tuple[Weights, Weights]:
    """The networks as the second stage left each of them, and their mean networks."""
    x, y = data.train
    networks, size, inputs = x.shape
    weights = initial(networks, inputs, hidden)
    mean = [weight.detach().clone() for weight in weights]
    final = [[weight.clone() for weight in mean] for _ in range(2)]
    best, waited = torch.full((networks,), math.inf), torch.zeros(networks)
    running = torch.ones(networks, dtype=torch.bool)
    optimizer = torch.optim.Adam(weights, trial.lr, weight_decay=trial.weight_decay, fused=True)
    moved = [0] * len(weights)
    for epoch in range(trial.mse_epochs + trial.nll_epochs):
        second = epoch >= trial.mse_epochs
        optimizer.param_groups[0]["lr"] = trial.rate(epoch)
        if epoch == trial.mse_epochs:
            with torch.no_grad():
                error = squared_error(forward(weights, data.validation[0]), data.validation[1])
                weights[5] += (error + torch.log(-torch.expm1(-error)))[:, None, None]  # softplus backwards
                mean[5].copy_(weights[5])
        order = torch.rand(networks, size).argsort(1)
        for rows in order.split(trial.batch, 1):
            chosen = rows.unsqueeze(2)
            output = forward(weights, x.gather(1, chosen.expand(-1, -1, inputs)), trial.dropout)
            target = y.gather(1, chosen)
            optimizer.zero_grad()
            (nll(output, target) if second else squared_error(output, target)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                for i, weight in enumerate(weights[: None if second else 4]):
                    moved[i] += 1
                    mean[i].lerp_(weight, MEAN_GAIN / (moved[i] + MEAN_GAIN - 1))
        if second:
            with torch.no_grad():
                loss = nll(forward(weights, data.validation[0]), data.validation[1])
                for kept, now in zip(final[0] + final[1], weights + mean, strict=True):
                    kept[running] = now[running]
                waited = torch.where(loss < best, 0, waited + 1)
                best = best.minimum(loss)
                running &= waited < trial.patience
                if not running.any():
                    break
    return final[0], final[1]


@torch.no_grad()
def judged(weights: Weights, data: Rows, members: int) -> dict[str, tuple[float, float]]:
    """RMSE and NLL on the held-back rows, of the networks and of the ensembles that they make."""
    x, y = data.held
    mean, variance = forward(weights, x)
    stacked = mean.unflatten(0, (-1, members))
    both = stacked.mean(1), variance.unflatten(0, (-1, members)).mean(1) + stacked.var(1, correction=0)

    def figures(output: tuple[Tensor, Tensor], y: Tensor, unit: Tensor) -> tuple[float, float]:
        rmse = (squared_error(output, y).sqrt() * unit).mean().item()
        return rmse, (nll(output, y) + unit.log()).mean().item()

    return {
        "alone": figures((mean, variance), y, data.unit),
        "together": figures(both, y[::members], data.unit[::members]),
    }


def one(name: str, trial: Trial, splits: int, members: int, root: Path) -> str:
    """Train by a recipe, and judge what comes of it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    started = time.perf_counter()
    data = rows(name, splits, members, root)
    single, mean = trained(data, 100 if name == "protein-tertiary-structure" else 50, trial)
    outcome = {"single": judged(single, data, members), "mean network": judged(mean, data, members)}
    return json.dumps({"set": name, **asdict(trial), **outcome, "seconds": time.perf_counter() - started})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=list(NAMES))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--members", type=int, default=5, help="networks a split")
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-2])
    parser.add_argument("--weight-decay", type=float, nargs="+", default=[0, 1e-4, 1e-3, 3e-3, 1e-2])
    parser.add_argument("--dropout", type=float, nargs="+", default=[0, 0.02, 0.05, 0.1, 0.2, 0.3])
    parser.add_argument("--nll-rate", type=float, nargs="+", default=[0.1, 0.3])
    parser.add_argument("--epochs", type=int, nargs="+", help="default: the set's own")
    parser.add_argument("--batch", type=int, nargs="+", help="default: the set's own")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tasks = [
        joblib.delayed(one)(name, Trial(lr, decay, dropout, batch, epochs, rate), args.splits, args.members, args.data)
        for name in args.sets
        for epochs, batch, lr, decay, dropout, rate in itertools.product(
            args.epochs or [SETTINGS[name].epochs],
            args.batch or [SETTINGS[name].batch],
            args.lr,
            args.weight_decay,
            args.dropout,
            args.nll_rate,
        )
    ]
    with args.out.open("a") as out:
        for line in joblib.Parallel(args.jobs, return_as="generator_unordered")(tasks):
            print(line, file=out, flush=True)


if __name__ == "__main__":
    main()
