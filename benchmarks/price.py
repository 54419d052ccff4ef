"""The whole price: what a method adds to a training until 20 members can predict, over the training; and in memory.

    python benchmarks/price.py --out results/speed/price.json

Networks and data have the sizes of real trainings, with made-up numbers for data; a run is measured by some of its
steps. Each method has a process of its own. The file is written after each, and what is in it is not measured again: a
run that was stopped goes on. Times are of this machine: keep it idle.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from networks import Block, convolutions
from timing import Times, alternately
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import tradi
from tracking import tracking
from tradi.bench.results import made_by, peak_memory_mb
from tradi.methods import SWAG, MCDropout
from tradi.models import enet, mlp
from tradi.storage.atomic import write_whole

MEMBERS = 20
REFRESHED = 5120  # samples that BatchNorm's statistics of SWAG's members are computed on, as in the benchmarks
ALONE = "training alone"


@dataclass(frozen=True)
class Task:
    """A network, what it learns, and how long.

    Args:
        model: a fresh one.
        x, y: training data.
        held_out: samples for validation.
        batch: size of a batch.
        epochs: of the run.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    held_out: int
    batch: int
    epochs: int

    @property
    def steps(self) -> int:
        return max(len(self.x) // self.batch, 1) * self.epochs

    @property
    def train(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.x.split(self.batch), self.y.split(self.batch), strict=True))

    @property
    def validation(self) -> list[tuple[Tensor, Tensor]]:
        x, y = torch.randn(self.held_out, *self.x.shape[1:]), self.y[: self.held_out]
        if not self.x.is_floating_point():
            x = self.x[torch.randperm(len(self.x))[: self.held_out]]
        return list(zip(x.split(self.batch), y.split(self.batch), strict=True))

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Callable[[], None]:
        """A step of an ordinary training, on a batch of its own."""
        used = optimizer or torch.optim.Adam(trainable(model), 1e-4)

        def step() -> None:
            part = torch.randint(len(self.x), (self.batch,))
            model.train()
            used.zero_grad()
            F.cross_entropy(model(self.x[part]), self.y[part]).backward()
            used.step()

        return step


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def mnist_mlp(quick: bool) -> Task:
    n = 600 if quick else 55_000
    model = mlp(784, [200, 200, 200], 10, batchnorm=True, dropout=0.1)
    return Task(model, torch.randn(n, 784), torch.randint(10, (n,)), n // 11, 128, 10)


def small_cnn(quick: bool) -> Task:
    n = 300 if quick else 40_000
    return Task(convolutions(), torch.randn(n, 3, 32, 32), torch.randint(10, (n,)), n // 10, 128, 30)


def camvid_enet(quick: bool) -> Task:
    n, height, width = (12, 36, 48) if quick else (367, 180, 240)
    images, labels = torch.randn(n, 3, height, width), torch.randint(8, (n, height, width))
    return Task(enet(8), images, labels, 8 if quick else 101, 4 if quick else 8, 90)


class Texts(nn.Module):
    """A transformer over 32 tokens, which tells five kinds of texts apart."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens)).mean(1))


class LowRank(nn.Module):
    """A frozen layer and a trainable change of rank 8."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 8, False)
        self.up = nn.Linear(8, base.out_features, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def texts(quick: bool, model: nn.Module, epochs: int) -> Task:
    n = 300 if quick else 20_000
    return Task(model, torch.randint(1000, (n, 32)), torch.randint(5, (n,)), n // 10, 32, epochs)


def transformer(quick: bool) -> Task:
    return texts(quick, Texts(128, 2), 20)


def lora(quick: bool) -> Task:
    """Adapters in the feed-forward layers, and a head; all else is frozen."""
    model = Texts(64 if quick else 512, 4).requires_grad_(False)
    for block in model.blocks:
        block.feed[0], block.feed[2] = LowRank(block.feed[0]), LowRank(block.feed[2])
    model.head.requires_grad_(True)
    return texts(quick, model, 5)


NETWORKS: dict[str, Callable[[bool], Task]] = {
    "MNIST MLP, 10 epochs": mnist_mlp,
    "small CNN, 30 epochs": small_cnn,
    "ENet, 90 epochs": camvid_enet,
    "transformer, 20 epochs": transformer,
    "LoRA on a frozen transformer, 5 epochs": lora,
}

GOALS = dict(zip(NETWORKS, (0.10, 0.10, 0.05, 0.05, 0.05), strict=True))  # of TRADI's total over training

# Seconds of a training step, what a method adds to it, and what it does after training by the name of its parts.
Cost = tuple[float, float, dict[str, float]]


class Clock:
    """Seconds of one thing after another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def done(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what], self._since = now - self._since, now


def alone(task: Task, rounds: int) -> Cost:
    return alternately(rounds, train=task.step(task.model))["train"].seconds, 0.0, {}


def with_tradi(task: Task, rounds: int) -> Cost:
    step = task.step(task.model)
    step()
    times = tracking(task.model, task.steps, rounds, before=step, train=step)
    optimizer = torch.optim.Adam(trainable(task.model), 1e-4)
    tracker, step = tradi.TRADI(task.model, optimizer), task.step(task.model, optimizer)
    for _ in range(3):
        step()
    posterior = tracker.posterior()
    clock = Clock()
    posterior = posterior.condition(task.train)
    clock.done("condition")
    posterior = posterior.choose_scale(task.validation)
    clock.done("scale")
    posterior.sample(MEMBERS)(task.x[:1])
    clock.done("members")
    return times["train"].seconds, times["run"].seconds, clock.seconds


def with_swag(task: Task, rounds: int) -> Cost:
    """A deviation is collected once an epoch."""
    per_epoch = task.steps // task.epochs
    optimizer = torch.optim.SGD(trainable(task.model), 0.0)
    plain = task.step(task.model)
    plain()
    swag = SWAG(task.model, optimizer, every=1)
    times = alternately(rounds, train=plain, collect=optimizer.step)
    posterior = swag.posterior()
    swag.detach()
    clock = Clock()
    posterior.sample(MEMBERS, refresh=[x for x, _ in task.train[: -(-REFRESHED // task.batch)]])(task.x[:1])
    clock.done("members")
    return times["train"].seconds, times["collect"].seconds / per_epoch, clock.seconds


def with_ivon(task: Task, rounds: int) -> Cost:
    """Its step takes the place of Adam's."""
    model = copy.deepcopy(task.model)
    optimizer = importlib.import_module("ivon").IVON(trainable(model), lr=0.1, ess=len(task.x))

    def step() -> None:
        part = torch.randint(len(task.x), (task.batch,))
        model.train()
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(model(task.x[part]), task.y[part]).backward()
        optimizer.step()

    times = alternately(rounds, train=task.step(task.model), ivon=step)
    clock = Clock()
    model.eval()
    for _ in range(MEMBERS):
        with optimizer.sampled_params(), torch.no_grad():
            model(task.x[:1])
    clock.done("members")
    return times["train"].seconds, (times["ivon"] - times["train"]).seconds, clock.seconds


def with_laplace(subset: str) -> Callable[[Task, int], Cost]:
    """laplace-torch, with Kronecker factors and the prior precision of the highest evidence.

    It takes linear and convolutional layers; parameters of others stay as trained.
    """

    def measure(task: Task, rounds: int) -> Cost:
        step, _, _ = alone(task, rounds)
        kind = importlib.import_module("laplace").Laplace
        for module in task.model.modules():
            if not isinstance(module, nn.Linear | nn.Conv2d):
                for parameter in module.parameters(recurse=False):
                    parameter.requires_grad_(False)
        clock = Clock()
        fitted = kind(task.model.eval(), "classification", subset_of_weights=subset, hessian_structure="kron")
        fitted.fit(DataLoader(TensorDataset(task.x, task.y), task.batch))
        clock.done("fit")
        fitted.optimize_prior_precision(method="marglik")
        clock.done("precision")
        fitted(task.x[:1], pred_type="glm", link_approx="mc", n_samples=MEMBERS)
        clock.done("members")
        return step, 0.0, clock.seconds

    return measure


def with_dropout(task: Task, rounds: int) -> Cost:
    step, _, _ = alone(task, rounds)
    clock = Clock()
    MCDropout(task.model).sample(MEMBERS)(task.x[:1])
    clock.done("members")
    return step, 0.0, clock.seconds


def with_networks(task: Task, rounds: int) -> Cost:
    """Four more networks, all in memory."""
    others = [task.step(copy.deepcopy(task.model)) for _ in range(4)]
    times: dict[str, Times] = alternately(
        rounds, train=task.step(task.model), others=lambda: [step() for step in others]
    )
    return times["train"].seconds, times["others"].seconds, {}


METHODS: dict[str, Callable[[Task, int], Cost]] = {
    ALONE: alone,
    "TRADI": with_tradi,
    "Laplace, last layer": with_laplace("last_layer"),
    "Laplace, KFAC": with_laplace("all"),
    "SWAG": with_swag,
    "IVON": with_ivon,
    "MC Dropout": with_dropout,
    "Deep Ensemble of 5": with_networks,
}


def measure(network: str, method: str, quick: bool) -> dict[str, Any]:
    """One row, or why there is none: not every method takes every network."""
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    task = NETWORKS[network](quick)
    try:
        step, added, after = METHODS[method](task, 3 if quick else 40)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
    training = step * task.steps
    return {
        "training_seconds": training,
        "tracking_over_training": added / step,
        "after_training_seconds": after,
        "total_over_training": (added * task.steps + sum(after.values())) / training,
        "peak_megabytes": peak_memory_mb(),
    }


def measured_apart(network: str, method: str, quick: bool) -> dict[str, Any]:
    """The same in a process of its own, whose memory it has to itself."""
    command = [sys.executable, __file__, "--one", network, method, *(["--quick"] if quick else [])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return {"failed": f"its process ended with {done.returncode}"}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row | {"load": round(os.getloadavg()[0], 2), "made_by": made_by()}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Total over training, and megabytes above those of a training alone."""
    lines = []
    for network, methods in rows.items():
        lines.append(network)
        before = methods.get(ALONE, {}).get("peak_megabytes")
        for method, row in methods.items():
            if "failed" in row:
                lines.append(f"  {method:22}{row['failed']}")
            else:
                more = "" if before is None else f"{row['peak_megabytes'] - before:9.0f} MB"
                lines.append(f"  {method:22}{row['total_over_training']:9.3f}{more}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS), metavar="NETWORK")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--quick", action="store_true", help="small data: the figures say nothing")
    parser.add_argument("--one", nargs=2, metavar=("NETWORK", "METHOD"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.quick)))
        return
    if options.out is None:
        parser.error("--out is missing")
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"networks": {}}
    found |= {"members": MEMBERS, "threads": torch.get_num_threads(), "quick": options.quick}
    found |= {"command": "python benchmarks/price.py", "goals": GOALS}
    for network in options.networks:
        rows = found["networks"].setdefault(network, {})
        for method in options.methods:
            if method not in rows:
                print(f"{time.strftime('%H:%M:%S')} {network}: {method}", file=sys.stderr, flush=True)
                rows[method] = measured_apart(network, method, options.quick)
                write_whole(options.out, json.dumps(found, indent=2) + "\n")
    print(table(found["networks"]), file=sys.stderr)


if __name__ == "__main__":
    main()
