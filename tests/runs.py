"""Small runs that the proof of the core shares: a network, optimizers, and weights led along a given path."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import tradi
from tradi.posterior.layers import Layer

PRESETS = {"default": tradi.Kalman(), "paper": tradi.Kalman.paper(), "released": tradi.Kalman.released()}
SELECTED: dict[str, Any] = {"default": {}, "paper": {"select": "*"}, "released": {}}  # which weights a preset tracks
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "lbfgs", "rmsprop")
# Inputs of one unit; a normalisation layer scales single values.
FAN_IN = {"0.weight": 3, "0.bias": 3, "1.weight": 1, "1.bias": 1, "3.weight": 4, "3.bias": 4}


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def optimizer_of(kind: str, model: nn.Module) -> Optimizer:
    parameters = list(model.parameters())
    if kind == "sgd":
        return torch.optim.SGD(parameters, 0.1)
    if kind == "momentum":
        return torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=1e-2, nesterov=True)
    if kind == "adam":
        return torch.optim.Adam(parameters, 1e-2, weight_decay=1e-2)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, 1e-2, weight_decay=5e-2)
    if kind == "lbfgs":
        return torch.optim.LBFGS(parameters, 0.1, max_iter=3)
    return torch.optim.RMSprop(parameters, 1e-3)


def steps(model: nn.Module, optimizer: Optimizer, count: int) -> Iterator[int]:
    """Train on fresh noisy batches, handing over after every step."""
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    for t in range(1, count + 1):
        x = torch.randn(16, 3, generator=generator, dtype=torch.float64).to(dtype)
        y = (x.sum(1) > 0).long()

        def closure(x: Tensor = x, y: Tensor = y) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.item()

        optimizer.step(closure)  # LBFGS needs a closure, all accept one
        yield t


class Led(nn.Module):
    """Layers of free weights, to be led along any path."""

    def __init__(self, **layers: dict[str, Tensor]) -> None:
        super().__init__()
        for layer, weights in layers.items():
            module = nn.Module()
            for name, value in weights.items():
                module.register_parameter(name, nn.Parameter(value.clone()))
            self.add_module(layer, module)


def lead(
    paths: dict[str, Tensor],
    kalman: tradi.Kalman | None = None,
    covariance: tradi.Covariance | None = None,
) -> tradi.TRADI:
    """A tracker that saw weights go along paths: {"layer.name": (steps, *shape)}, by way of the public interface.

    The optimizer's steps move nothing (learning rate 0) and the gradients are 0: the filters see the path alone.
    """
    layers: dict[str, dict[str, Tensor]] = {}
    for full, path in paths.items():
        layer, _, name = full.partition(".")
        layers.setdefault(layer, {})[name] = path[0]
    model = Led(**layers)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    tracker = tradi.TRADI(
        model, optimizer, kalman=kalman or tradi.Kalman(), covariance=covariance or tradi.FourierFeatures()
    )
    parameters = dict(model.named_parameters())
    for t in range(len(next(iter(paths.values())))):
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(paths[name][t])
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return tracker


def noise_of(covariance: tradi.Covariance, layer: Layer, seed: int = 0, member: int = 3) -> dict[str, Tensor]:
    """A layer's noise by parameter name, put together from its pieces; NaN where there was none."""
    rows = {name: torch.full_like(variance, math.nan).flatten() for name, variance in layer.variance.items()}
    for name, part, noise in covariance.noise(layer, seed, member):
        rows[name][part] = noise
    return {name: row.view(layer.weights[name].shape) for name, row in rows.items()}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, the same in every precision up to rounding."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
