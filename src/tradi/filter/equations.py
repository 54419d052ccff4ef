"""The equations of one filter step: the default, the paper's, and those of the released script."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tradi._torch import foreach_add_, foreach_lerp_, foreach_mul, foreach_mul_, foreach_sub, foreach_sub_

Rate = float | Tensor
Tensors = tuple[Tensor, ...]
# Adds c * a b to the second moments: elementwise for variances, as an outer product for a full covariance.
Accumulate = Callable[[Tensors, Tensors, Tensors, float], None]


class Gains(NamedTuple):
    """How much an observation counts: the gain Q of the mean filter and of the variance filter."""

    mean: float
    variance: float


class Equations(Protocol):
    """The state and observation model of a filter."""

    needs_gradient: bool

    def start(self, weight: Tensor, fan_in: int, rows: int) -> tuple[Tensor, Tensor]:
        """Mean and variance before the first update; `weight` is the value that the first update will observe.

        It may be a part of the whole weight, which has so many rows.
        """
        ...

    def step(self, at: Step, add: Accumulate) -> None:
        """Predict and correct `at.mean` and `at.second` in place; `add` adds products to `at.second`."""
        ...


@dataclass
class Step:
    """The tensors of one update: pieces of weights at the same step, so that small ones share operations.

    Args:
        mean: mu of each piece.
        second: variances, shaped like `mean`, or the covariance matrices of flat means.
        weight: omega after the optimizer step.
        gradient: empty if the equations need none.
        lr: for each piece, one learning rate or one per weight.
        q: the gains.
    """

    mean: Tensors
    second: Tensors
    weight: Tensors
    gradient: Tensors
    lr: tuple[Rate, ...]
    q: Gains


@dataclass(frozen=True)
class Trajectory:
    r"""A random walk observed through the weights: the mean and variance of the recent trajectory. The default.

    $$ d = \omega - \mu, \quad \mu \leftarrow \mu + Q_\mu d, \quad
       \sigma^2 \leftarrow (1 - Q_\sigma)\,\sigma^2 + Q_\sigma (1 - Q_\mu)\, d^2 $$

    (1 - Q) d^2 estimates the observation noise r from the innovation d, since E d^2 = P^- + r = r / (1 - Q).
    With equal gains these are exactly the weighted mean and variance of all observed weights.
    """

    needs_gradient = False

    def start(self, weight: Tensor, fan_in: int, rows: int) -> tuple[Tensor, Tensor]:
        del fan_in, rows
        return weight.clone(), torch.zeros_like(weight)

    def step(self, at: Step, add: Accumulate) -> None:
        innovation = foreach_sub(at.weight, at.mean)
        foreach_add_(at.mean, innovation, alpha=at.q.mean)
        foreach_mul_(at.second, 1 - at.q.variance)
        add(at.second, innovation, innovation, at.q.variance * (1 - at.q.mean))


@dataclass(frozen=True)
class AlgorithmOne:
    r"""Algorithm 1 of the paper's appendix, to the letter.

    $$ \mu^- = \mu - \eta g, \quad \mu \leftarrow (1 - Q_\mu)\mu^- + Q_\mu \omega, \quad
       \sigma^{2-} = \sigma^2 + \eta^2 (g - \mu)^2, \quad
       \sigma^2 \leftarrow (1 - Q_\sigma)\sigma^{2-} + Q_\sigma(\omega^2 - \mu^2) $$

    The variance can become negative; sampling clamps it, the state does not.
    """

    needs_gradient = True

    def start(self, weight: Tensor, fan_in: int, rows: int) -> tuple[Tensor, Tensor]:
        del rows
        return torch.zeros_like(weight), torch.full_like(weight, 2 / fan_in)

    def step(self, at: Step, add: Accumulate) -> None:
        foreach_sub_(at.mean, _scaled(at.gradient, at.lr))
        foreach_lerp_(at.mean, at.weight, at.q.mean)
        growth = _scaled(foreach_sub(at.gradient, at.mean), at.lr)
        add(at.second, growth, growth, 1.0)
        foreach_mul_(at.second, 1 - at.q.variance)
        add(at.second, at.weight, at.weight, at.q.variance)
        add(at.second, at.mean, at.mean, -at.q.variance)


@dataclass(frozen=True)
class ReleasedCode:
    r"""The equations of the authors' released script: the paper's mean, a different start and variance.

    $$ \sigma^2 \leftarrow (1 - Q_\sigma)(\sigma^2 + (\eta g)^2) + Q_\sigma (\omega - \mu)^2 $$
    """

    needs_gradient = True

    def start(self, weight: Tensor, fan_in: int, rows: int) -> tuple[Tensor, Tensor]:
        del fan_in
        return torch.zeros_like(weight), torch.full_like(weight, math.sqrt(2 / rows))

    def step(self, at: Step, add: Accumulate) -> None:
        move = _scaled(at.gradient, at.lr)
        foreach_sub_(at.mean, move)
        foreach_lerp_(at.mean, at.weight, at.q.mean)
        add(at.second, move, move, 1.0)
        foreach_mul_(at.second, 1 - at.q.variance)
        residual = foreach_sub(at.weight, at.mean)
        add(at.second, residual, residual, at.q.variance)


def _scaled(tensors: Tensors, rates: tuple[Rate, ...]) -> Tensors:
    scaled: Tensors = foreach_mul(tensors, rates)
    return scaled
