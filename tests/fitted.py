"""Small posteriors that were conditioned on data, one for each way to do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tests.training import Batches, network, problem, train
from tradi.methods import SWAG
from tradi.models import GaussianHead, mlp

TRAIN, VALIDATION = problem(), problem(32, 16, seed=1)
X = problem(seed=2)[0][0]


def numbers(samples: int, seed: int) -> Batches:
    """Points in four dimensions and a number that depends on them, with noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=generator)
    y = x[:, :1].sin() + x[:, 1:2] + 0.1 * torch.randn(samples, 1, generator=generator)
    return list(zip(x.split(16), y.split(16), strict=True))


TRAIN_NUMBERS, VALIDATION_NUMBERS = numbers(64, 0), numbers(32, 1)


def plain(width: int = 8, seed: int = 0) -> nn.Sequential:
    """Linear layers alone."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def with_batchnorm(seed: int = 0) -> nn.Sequential:
    """A regression network that only its last layer is conditioned of."""
    torch.manual_seed(seed)
    return mlp(4, [8], 1, batchnorm=True)


def small(seed: int = 0) -> nn.Sequential:
    """A regression network that all weights are conditioned of."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def two_heads(seed: int = 0) -> GaussianHead:
    """Mean and variance from the same features, too many weights to condition all of them."""
    torch.manual_seed(seed)
    return GaussianHead(nn.Sequential(nn.Linear(4, 300), nn.Tanh()), 300)


def tracked(model: nn.Module, data: Batches, loss: Callable[[Any, Tensor], Tensor], **options: Any) -> tradi.Posterior:
    """A posterior from a short training."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    tracker = tradi.TRADI(model, optimizer, **options)
    for i in range(24):
        x, y = data[i % len(data)]
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return tracker.posterior()


def mean_error(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(output[0] if isinstance(output, tuple) else output, target)


def narrow(seed: int = 0) -> nn.Sequential:
    """So few weights that a file of them is small."""
    return plain(2, seed)


def swag() -> tradi.Posterior:
    """Noise of low rank."""
    model = narrow()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    tracker = SWAG(model, optimizer, every=2, rank=3)
    train(model, optimizer)  # on the data of TRAIN
    return tracker.posterior()


def joint() -> tradi.Posterior:
    """Noise with the full covariance of each layer."""
    return tracked(narrow(), TRAIN, F.cross_entropy, covariance=tradi.FullCovariance())


@cache
def classifier(make: Callable[[], nn.Module] = network, **options: Any) -> tradi.Posterior:
    """Conditioned for labels."""
    return tracked(make(), TRAIN, F.cross_entropy, **options).fit(TRAIN, VALIDATION)


@cache
def regressor(make: Callable[[], nn.Module]) -> tradi.Posterior:
    """Conditioned for numbers."""
    return tracked(make(), TRAIN_NUMBERS, mean_error).fit(TRAIN_NUMBERS, VALIDATION_NUMBERS)


def trained(seed: int = 0) -> Any:
    """A network with BatchNorm and dropout, trained on the small problem."""
    model = network(seed)
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    return model
