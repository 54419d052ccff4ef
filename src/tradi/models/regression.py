"""Two-stage regression: first the mean, then the variance (paper, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tradi.ensemble.batches import batches
from tradi.progress import track

Output = tuple[Tensor, Tensor]
Loss = Callable[[Output, Tensor], Tensor]
FLOOR = 1e-6  # smallest variance a head predicts, in units of the (standardised) target


class GaussianHead(nn.Module):
    """A network with two heads on shared features: the target's mean and its variance.

    Args:
        features: any module that returns vectors of `width` numbers.
        width: number of features.
        outputs: how many numbers to predict; the target has shape (batch, outputs).
    """

    def __init__(self, features: nn.Module, width: int, outputs: int = 1) -> None:
        super().__init__()
        self.features = features
        self.mean = nn.Linear(width, outputs)
        self.variance = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Output:
        """Mean and variance, each (batch, outputs)."""
        features = self.features(x)
        return self.mean(features), F.softplus(self.variance(features)) + FLOOR

    @torch.no_grad()
    def start_variance(self, value: float) -> None:
        """Make the variance head predict `value` everywhere, for the second stage to refine.

        Args:
            value: the variance, above 0.
        """
        self.variance.weight.zero_()
        value = max(value, FLOOR)  # a perfect fit has an error of 0
        self.variance.bias.fill_(value + math.log(-math.expm1(-value)))  # inverse softplus


def squared_error(output: Output, target: Tensor) -> Tensor:
    """L1 of the paper: the mean squared error. The variance head gets no gradient, so it does not change."""
    _check(output, target)
    return F.mse_loss(output[0], target)


def gaussian_nll(output: Output, target: Tensor) -> Tensor:
    r"""L2 of the paper: $\frac12 (\mu - y)^2 / \sigma^2 + \frac12 \log \sigma^2$, averaged."""
    _check(output, target)
    return F.gaussian_nll_loss(output[0], target, output[1], eps=FLOOR)


def _check(output: Output, target: Tensor | None) -> None:
    if target is None:
        raise ValueError("two-stage regression needs (inputs, target) batches, got inputs alone")
    if output[0].shape != target.shape:  # torch would broadcast (n, 1) against (n,) to (n, n)
        raise ValueError(f"targets must have shape {tuple(output[0].shape)} like the mean, got {tuple(target.shape)}")


@dataclass(frozen=True)
class TwoStage:
    """The paper's sequential training (section 3.3), with your own optimizer, to which a tracker may be attached.

    Args:
        mse_epochs: epochs on the squared error.
        nll_epochs: maximum epochs on the Gaussian NLL.
        nll_rate: factor on every learning rate in the second stage; in the first it falls to this along a half cosine.
        patience: with validation data, the second stage ends after this many epochs without a lower validation NLL.

    Raises:
        ValueError: if an option is out of range.
    """

    mse_epochs: int = 150
    nll_epochs: int = 30
    nll_rate: float = 1 / 3
    patience: int = 5

    def __post_init__(self) -> None:
        for name in ("mse_epochs", "nll_epochs", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.nll_rate < math.inf:
            raise ValueError(f"nll_rate must be positive and finite, got {self.nll_rate}")

    def fit(
        self,
        model: GaussianHead,
        optimizer: Optimizer,
        loader: Iterable[Any],
        validation: Iterable[Any] | None = None,
    ) -> int:
        """Train in two stages; learning rates are restored afterwards.

        Args:
            model: the network to train.
            optimizer: optimizer of its parameters.
            loader: (inputs, target) batches.
            validation: (inputs, target) batches for early stopping and the initial variance.

        Returns:
            The number of epochs of the second stage.
        """
        for epoch in track(range(self.mse_epochs), "fitting the mean", self.mse_epochs):
            done = (1 - math.cos(math.pi * epoch / self.mse_epochs)) / 2
            with _rates(optimizer, 1 + done * (self.nll_rate - 1)):
                _epoch(model, optimizer, loader, squared_error)
        # The error on validation data if there is some: the training error is too small.
        model.start_variance(evaluate(model, loader if validation is None else validation, squared_error))
        with _rates(optimizer, self.nll_rate):
            best, waited, done = math.inf, 0, 0
            for _ in track(range(self.nll_epochs), "fitting the variance", self.nll_epochs):
                _epoch(model, optimizer, loader, gaussian_nll)
                done += 1
                if validation is not None:
                    loss = evaluate(model, validation, gaussian_nll)
                    best, waited = (loss, 0) if loss < best else (best, waited + 1)
                    if waited >= self.patience:
                        break
        return done


@torch.no_grad()
def evaluate(model: GaussianHead, loader: Iterable[Any], loss: Loss) -> float:
    """Average loss over the data, in eval mode; the model's mode is restored."""
    training = model.training
    total, size = 0.0, 0
    try:
        model.eval()
        for x, y in batches(loader, "loader", model.mean.weight):
            total += loss(model(x), y).item() * len(y)
            size += len(y)
    finally:
        model.train(training)
    return total / size


def _epoch(model: GaussianHead, optimizer: Optimizer, loader: Iterable[Any], loss: Loss) -> None:
    model.train()
    for x, y in batches(loader, "loader", model.mean.weight):
        optimizer.zero_grad()  # to None, so that any optimizer skips a head without a loss
        loss(model(x), y).backward()
        optimizer.step()


@contextmanager
def _rates(optimizer: Optimizer, factor: float) -> Iterator[None]:
    before = [group["lr"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * factor
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, before, strict=True):
            group["lr"] = rate
