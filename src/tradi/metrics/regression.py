"""Metrics of a predicted number and its distribution. Log-densities are in nats, with y in its own unit.

Malformed arguments raise ValueError, which names the argument.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tradi.metrics import checks
from tradi.metrics.types import Mixture
from tradi.prediction.gaussian import gaussian_log_prob


def rmse(mean: Tensor, y: Tensor) -> float:
    r"""Root mean squared error, $\sqrt{\frac1n \sum_i (\mu_i - y_i)^2}$.

    Args:
        mean: predictions, (batch, ...).
        y: targets of that shape.

    Returns:
        a number in units of y; lower is better.
    """
    checks.one_shape(mean=mean, y=y)
    checks.finite(mean=mean, y=y)
    return float((mean.detach().double() - y.detach().double()).square().mean().sqrt())


def mixture_nll(prediction: Mixture, y: Tensor) -> float:
    r"""Mean NLL of the mixture, $-\frac1n \sum_i \log \frac1M \sum_j N(y_i; \mu_{ij}, \sigma_{ij}^2)$.

    Args:
        prediction: an equally weighted mixture of Gaussians.
        y: targets, (batch, ...).

    Returns:
        nats per target; lower is better.
    """
    _check_target(prediction, y)
    return -float(prediction.log_prob(y).detach().double().mean())


def gaussian_nll(mean: Tensor, variance: Tensor, y: Tensor) -> float:
    r"""Mean NLL of one Gaussian, $\frac1{2n} \sum_i \log 2\pi\sigma_i^2 + (y_i - \mu_i)^2 / \sigma_i^2$.

    With a mixture's mean and variance, this is the moment-matched NLL that Deep Ensembles and the paper report.

    Args:
        mean: of each Gaussian, (batch, ...).
        variance: of each, of that shape.
        y: targets of that shape.

    Returns:
        nats per target; lower is better.
    """
    mean, variance, y = _checked(mean, variance, y)
    return -float(gaussian_log_prob(y, mean, variance).mean())


def coverage(prediction: Mixture, y: Tensor, levels: Tensor) -> Tensor:
    r"""Share of targets inside the central interval of each level; equal to `levels` if calibrated.

    y lies between the mixture's quantiles $\frac{1 \mp q}{2}$ where $|2F(y) - 1| \le q$, with
    $F(y) = \frac1M \sum_j \Phi((y - \mu_j) / \sigma_j)$, so no quantile is searched for.

    Args:
        prediction: an equally weighted mixture of Gaussians.
        y: targets, (batch, ...).
        levels: (levels,), each in [0, 1].

    Returns:
        a share for every level, (levels,).
    """
    checks.one_shape(levels=levels)
    checks.unit_interval(levels=levels)
    _check_target(prediction, y)
    z = (y.double() - prediction.means.detach().double()) / prediction.variances.detach().double().sqrt()
    central = (2 * torch.special.ndtr(z).mean(0) - 1).abs()
    return torch.stack([(central <= level).double().mean() for level in levels.flatten()])


def gaussian_crps(mean: Tensor, variance: Tensor, y: Tensor) -> float:
    r"""Continuous ranked probability score of a Gaussian, in units of y; lower is better.

    $$ \sigma \left[ z (2\Phi(z) - 1) + 2\varphi(z) - \pi^{-1/2} \right], \quad z = (y - \mu) / \sigma $$

    Args:
        mean: of each Gaussian, (batch, ...).
        variance: of each, of that shape.
        y: targets of that shape.

    Returns:
        a number above 0; lower is better.
    """
    mean, variance, y = _checked(mean, variance, y)
    return float((_expected_distance(y - mean, variance) - (variance / math.pi).sqrt()).mean())


def mixture_crps(prediction: Mixture, y: Tensor) -> float:
    r"""Continuous ranked probability score of an equally weighted Gaussian mixture; lower is better.

    $$ \frac1M \sum_j A(y - \mu_j, \sigma_j^2)
       - \frac1{2M^2} \sum_{j,k} A(\mu_j - \mu_k, \sigma_j^2 + \sigma_k^2) $$
    with
    $$ A(d, v) = E|N(d, v)| = 2 \sqrt v \varphi(d / \sqrt v) + d (2\Phi(d / \sqrt v) - 1). $$

    Args:
        prediction: an equally weighted mixture of Gaussians.
        y: targets, (batch, ...).

    Returns:
        a number above 0; lower is better.
    """
    _check_target(prediction, y)
    means, variances = prediction.means.detach().double(), prediction.variances.detach().double()
    to_target = _expected_distance(y.double() - means, variances).mean(0)
    # One member against all at a time: all pairs at once would take M times the memory.
    members = zip(means, variances, strict=True)
    apart = sum(_expected_distance(mean - means, variance + variances).mean(0) for mean, variance in members)
    return float((to_target - apart / (2 * len(means))).mean())


def _expected_distance(difference: Tensor, variance: Tensor) -> Tensor:
    r"""$E|X|$ for $X \sim N(difference, variance)$."""
    sd = variance.sqrt()
    z = difference / sd
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return 2 * sd * density + difference * torch.erf(z / math.sqrt(2))


def _checked(mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    checks.one_shape(mean=mean, variance=variance, y=y)
    checks.finite(mean=mean, y=y)
    checks.positive(variance=variance)
    return mean.detach().double(), variance.detach().double(), y.double()


def _check_target(prediction: Mixture, y: Tensor) -> None:
    checks.one_shape(mean=prediction.mean, y=y)
    checks.finite(y=y)
