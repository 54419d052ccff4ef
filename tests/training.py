"""A small problem and a training loop that tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import tradi
from tradi.likelihoods import Likelihood


class Custom(Likelihood):
    """A likelihood made of a function of (output, target)."""

    def __init__(self, log_prob: Callable[[Any, Tensor], Tensor]) -> None:
        self._log_prob = log_prob

    def output(self, output: Any) -> Any:
        return output

    def log_prob(self, output: Any, target: Any) -> Tensor:
        return self._log_prob(output, target)

    def predict(self, outputs: Any) -> tradi.ClassPrediction:
        return tradi.ClassPrediction(outputs)


Batches = list[tuple[Tensor, Tensor]]


def problem(samples: int = 64, batch: int = 16, seed: int = 0, dtype: torch.dtype = torch.float32) -> Batches:
    """Points in four dimensions and which of the first three coordinates is largest."""
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return list(zip(x.split(batch), x[:, :3].argmax(1).split(batch), strict=True))


def network(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Linear, BatchNorm, ReLU, Dropout, Linear. Any, because tests reach into its layers by index."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)).to(dtype)


def step(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], x: Tensor, y: Tensor) -> None:
    """One ordinary training step."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    for one in optimizers:
        one.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for one in optimizers:
        one.step()


def train(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    steps: int = 12,
    after: Callable[[int], object] = lambda step: None,
) -> None:
    """Train on the small problem, calling `after` with the number of steps done."""
    data = problem()
    torch.manual_seed(1)
    for i in range(steps):
        step(model, optimizer, *data[i % len(data)])
        after(i + 1)


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters and buffers."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two dictionaries of tensors are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
