"""What comes after training, until 20 members can predict, over what training took.

    python benchmarks/after_training.py --out results/speed/after_training.json

Networks and data have the sizes of the benchmarks, with made-up numbers for data. A run of many epochs is measured by
some of its steps. Figures are of this process, one after another: run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tradi.bench.results import made_by
from tradi.models import enet, mlp, wide_resnet

MEMBERS = 20
GOALS = {"mnist-mlp, 10 epochs": 0.10, "enet, 90 epochs": 0.05}


def labelled(images: Tensor, classes: int, shape: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    return images, torch.randint(classes, (len(images), *shape))


def mnist_mlp(samples: int) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor], int, int]:
    train, validation = (labelled(torch.randn(n, 784), 10) for n in (samples, max(samples // 11, 8)))
    return mlp(784, [200, 200, 200], 10, batchnorm=True, dropout=0.1), train, validation, 128, 10


def cifar_wrn(samples: int) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor], int, int]:
    sizes = (max(samples // 6, 8), max(samples // 60, 8))
    train, validation = (labelled(torch.randn(n, 3, 32, 32), 8) for n in sizes)
    return wide_resnet(16, 1, 8, 0.1), train, validation, 128, 30


def camvid_enet(samples: int) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor], int, int]:
    height, width = (180, 240) if samples > 1000 else (36, 48)
    sizes = (max(samples * 367 // 55_000, 8), max(samples * 101 // 55_000, 8))
    train, validation = (labelled(torch.randn(n, 3, height, width), 8, (height, width)) for n in sizes)
    return enet(8), train, validation, 8, 90


NETWORKS: dict[str, Callable[[int], Any]] = {
    "mnist-mlp, 10 epochs": mnist_mlp,
    "wide-resnet, 30 epochs": cifar_wrn,
    "enet, 90 epochs": camvid_enet,
}


def measure(build: Callable[[int], Any], samples: int, steps: int) -> dict[str, float]:
    torch.manual_seed(0)
    model, (x, y), (vx, vy), batch, epochs = build(samples)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    tracker = tradi.TRADI(model, optimizer)
    per_epoch = max(len(x) // batch, 1)
    seconds = []
    for step in range(steps + 3):  # the first ones warm up
        started = time.perf_counter()
        part = torch.randperm(len(x))[:batch]
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
        if step >= 3:
            seconds.append(time.perf_counter() - started)
    training = sum(seconds) / len(seconds) * per_epoch * epochs
    posterior = tracker.posterior()
    started = time.perf_counter()
    conditioned = posterior.condition(list(zip(x.split(batch), y.split(batch), strict=True)))
    condition = time.perf_counter() - started
    fitted = conditioned.choose_scale(list(zip(vx.split(batch), vy.split(batch), strict=True)))
    scale = time.perf_counter() - started - condition
    fitted.sample(MEMBERS)(x[:1])
    ready = time.perf_counter() - started - condition - scale
    after = condition + scale + ready
    return {
        "training_seconds": training,
        "condition_seconds": condition,
        "scale_seconds": scale,
        "members_seconds": ready,
        "after_training_over_training": after / training,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--quick", action="store_true", help="small data: the figures say nothing")
    options = parser.parse_args()
    samples, steps = (600, 3) if options.quick else (55_000, 60)
    found: dict[str, Any] = {"load_before": os.getloadavg()[0], "threads": torch.get_num_threads()}
    found["networks"] = {name: measure(NETWORKS[name], samples, steps) for name in options.networks}
    found |= {"goals": GOALS, "made_by": made_by(), "command": "python benchmarks/after_training.py"}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    for name, row in found["networks"].items():
        print(name, {key: round(value, 3) for key, value in row.items()}, file=sys.stderr)


if __name__ == "__main__":
    main()
