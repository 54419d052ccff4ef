"""Likelihoods of numbers: with noise that the network predicts, or with noise that is the same for all inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tradi.prediction.gaussian import GaussianMixture, gaussian_log_prob
from tradi.prediction.likelihood import Likelihood, check_temperature, described, logits_of, target_like


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """A number with its own noise: the network returns a pair (mean, variance), both shaped like the target.

    Args:
        temperature: factor on the variance, 1 until `fit` has found another.

    Raises:
        ValueError: if the temperature is not positive and finite.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def output(self, output: Any) -> tuple[Tensor, Tensor]:
        pair = tuple(output.values()) if isinstance(output, Mapping) else output
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
            raise TypeError(
                f"Gaussian needs a network that returns a pair (mean, variance), got {described(output)}: for a "
                "network that returns the mean alone, pass likelihood=tradi.likelihoods.SquaredError()"
            )
        return pair[0], pair[1]

    def linear(self, output: Any) -> Tensor:
        return self.output(output)[0]

    def with_linear(self, output: Any, value: Tensor) -> tuple[Tensor, Tensor]:
        return value, self.output(output)[1]

    def log_prob(self, output: Any, target: Any) -> Tensor:
        mean, variance = self.output(output)
        if mean.shape != variance.shape:
            raise ValueError(f"mean {tuple(mean.shape)} and variance {tuple(variance.shape)} must have one shape")
        values = gaussian_log_prob(target_like(target, mean), mean, variance * self.temperature)
        return values.nan_to_num(nan=-math.inf)

    def predict(self, outputs: Any) -> GaussianMixture:
        mean, variance = outputs
        return GaussianMixture(mean, variance * self.temperature)


@dataclass(frozen=True)
class SquaredError(Likelihood):
    r"""A number under noise that is the same for all inputs: a plain regression network, trained by squared error.

    $$ p(y \mid x) = \mathcal N(y; f(x), v), \quad v = \frac1n \sum_i (y_i - f(x_i))^2 $$

    Args:
        variance: v, one number per output; None until `choose_scale` has estimated it on validation data.

    Raises:
        ValueError: if a variance is not positive and finite.
    """

    variance: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.variance is None:
            return
        given: Any = self.variance
        numbers = tuple(float(number) for number in ((given,) if isinstance(given, int | float) else given))
        object.__setattr__(self, "variance", numbers)
        if not numbers or not all(0 < number < math.inf for number in numbers):
            raise ValueError(f"variance must be positive and finite, one number per output, got {self.variance}")

    def output(self, output: Any) -> Tensor:
        return logits_of(output, self)

    def fitted(self, data: Iterable[tuple[Any, Any]]) -> SquaredError:
        if self.variance is not None:
            return self
        total: Tensor | None = None
        count = 0
        for output, target in data:
            mean = self.output(output)
            squares = (target_like(target, mean) - mean).double().square()
            rows = squares.movedim(1, -1).flatten(0, -2) if squares.ndim > 1 else squares.unsqueeze(1)
            total = rows.sum(0) + (0 if total is None else total)
            count += len(rows)
        if total is None or not total.isfinite().all():
            raise ValueError("the noise variance cannot be estimated: outputs or targets of this data are not finite")
        return SquaredError(tuple((total / count).clamp_min(1e-12).tolist()))

    def tempered(self, factor: float) -> SquaredError:
        return SquaredError(None if self.variance is None else tuple(factor * number for number in self.variance))

    def log_prob(self, output: Any, target: Any) -> Tensor:
        mean = self.output(output)
        return gaussian_log_prob(target_like(target, mean), mean, self._variances(mean, 1)).nan_to_num(nan=-math.inf)

    def predict(self, outputs: Any) -> GaussianMixture:
        return GaussianMixture(outputs, self._variances(outputs, 2))

    def _variances(self, means: Tensor, axis: int) -> Tensor:
        if self.variance is None:
            raise ValueError(
                "the noise variance is not known yet: choose_scale estimates it on validation data, or pass "
                "likelihood=tradi.likelihoods.SquaredError(variance=...)"
            )
        if len(self.variance) == 1:
            return torch.full_like(means, self.variance[0])
        if means.ndim <= axis or means.shape[axis] != len(self.variance):
            raise ValueError(f"{len(self.variance)} noise variances do not fit outputs of shape {tuple(means.shape)}")
        shape = (-1, *[1] * (means.ndim - axis - 1))
        return means.new_tensor(self.variance).reshape(shape).expand_as(means).contiguous()
