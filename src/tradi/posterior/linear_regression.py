"""Bayesian linear regression in closed form: pure mathematics, from sums over the rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LOWEST, HIGHEST = 1e-8, 1e8  # prior precisions that the evidence chooses from, in units of the average eigenvalue
STEPS = 24  # of the search, each of which takes a Cholesky factorisation
TAKEN = 0.9  # of the rows that weights may take up, at the most: from those left over the noise is estimated


@dataclass(frozen=True, eq=False)
class Sums:
    r"""What the rows say about the weights of a linear model, $y_i = \phi_i^\top \theta + \mathcal N(0, \tau v_i)$.

    Args:
        precision: $\sum_i \phi_i \phi_i^\top / v_i$, (P, P).
        target: $\sum_i \phi_i y_i / v_i$, (P,).
        square: $\sum_i y_i^2 / v_i$.
        rows: how many.
    """

    precision: Tensor
    target: Tensor
    square: float
    rows: int

    @staticmethod
    def of(phi: Tensor, y: Tensor, v: Tensor) -> Sums:
        """The sums over some rows: features (n, P), targets (n,) and relative noise variances (n,), in float64."""
        phi, y, weight = phi.double(), y.double(), v.double().reciprocal()
        weighted = phi * weight[:, None]
        return Sums(phi.T @ weighted, weighted.T @ y, (weight * y * y).sum().item(), len(y))

    def times(self, factor: float) -> Sums:
        """The sums over rows of which each counts so many times."""
        return Sums(factor * self.precision, factor * self.target, factor * self.square, round(factor * self.rows))

    def summed(self, added_up: Callable[[Tensor], Tensor]) -> Sums:
        """The sums over the rows of all processes, of which this one has some."""
        numbers = added_up(self.target.new_tensor([self.square, self.rows]))
        return Sums(added_up(self.precision), added_up(self.target), numbers[0].item(), round(numbers[1].item()))

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.precision + other.precision,
            self.target + other.target,
            self.square + other.square,
            self.rows + other.rows,
        )


@dataclass(frozen=True, eq=False)
class Fit:
    r"""The posterior of the weights, $\mathcal N(\hat\theta, \tau A^{-1})$ with $A = \sum \phi\phi^\top/v + \kappa I$.

    Args:
        mean: $\hat\theta$, (P,).
        factor: lower Cholesky factor of A, (P, P).
        noise: $\tau$, the factor on the relative noise variances, at its most probable value.
        log_evidence: log marginal likelihood of the rows, but for a constant that does not depend on the prior.
        prior_precision: $\kappa$, in units of $1/\tau$.
        rows: how many were conditioned on.
    """

    mean: Tensor
    factor: Tensor
    noise: float
    log_evidence: float
    prior_precision: float
    rows: int

    def draw(self, z: Tensor, noise: float) -> Tensor:
        r"""$\hat\theta + \sqrt\tau L^{-\top} z$ for standard normal z, with a given $\tau$."""
        step = torch.linalg.solve_triangular(self.factor.T, z.to(self.factor)[:, None], upper=True)[:, 0]
        return self.mean + math.sqrt(noise) * step


def fit(sums: Sums, prior_precision: float) -> Fit:
    r"""Condition on the rows under the prior $\theta \sim \mathcal N(0, \tau / \kappa)$.

    With $\hat\theta = A^{-1} b$ the regularised sum of squares is $c - b^\top \hat\theta$, so that

    $$ \tau = (c - b^\top \hat\theta) / n, \qquad
       \log Z = -\tfrac n2 \log \tau - \tfrac12 \log |A| + \tfrac P2 \log \kappa. $$

    Args:
        sums: over the rows.
        prior_precision: $\kappa$.
    """
    P = len(sums.target)
    A = sums.precision.clone()
    A.diagonal().add_(prior_precision)
    factor = torch.linalg.cholesky(A)
    mean = torch.cholesky_solve(sums.target[:, None], factor)[:, 0]
    # A perfect fit leaves rounding errors, which may be negative.
    left = max(sums.square - (sums.target @ mean).item(), 1e-12 * max(sums.square, 1e-300))
    noise = left / sums.rows
    log_determinant = 2 * factor.diagonal().log().sum().item()
    log_evidence = -0.5 * (sums.rows * math.log(noise) + log_determinant - P * math.log(prior_precision))
    return Fit(mean, factor, noise, log_evidence, prior_precision, sums.rows)


def most_probable(sums: Sums, near: float | None = None) -> float:
    r"""The prior precision with the highest evidence, at which the rows still say what noise is.

    Weights that fit all rows exactly leave no noise, and the evidence hardly minds. They take up $\gamma = \sum_k
    \lambda_k / (\lambda_k + \kappa)$ rows, where $\lambda$ are the eigenvalues of the rows' precision (MacKay, 1992).

    Args:
        sums: over the rows.
        near: where to look, to a factor of a thousand: the search is shorter then.
    """
    unit = max(sums.precision.diagonal().mean().item(), 1e-300)

    def evidence(log_precision: float) -> float:
        return fit(sums, math.exp(log_precision)).log_evidence

    if near is not None:
        found = math.exp(highest(evidence, math.log(near / 1e3), math.log(near * 1e3), STEPS // 3))
    else:
        found = math.exp(highest(evidence, math.log(LOWEST * unit), math.log(HIGHEST * unit)))
    return max(found, _lowest(sums, found))


def _lowest(sums: Sums, tried: float) -> float:
    """The prior precision at which weights take up as many rows as they may; 0 where they take fewer at `tried`."""
    most, P = TAKEN * sums.rows, len(sums.target)
    if most >= P or P - tried * torch.cholesky_inverse(fit(sums, tried).factor).trace().item() <= most:
        return 0.0
    eigenvalues = torch.linalg.eigvalsh(sums.precision).clamp_min(0)

    def taken(log_precision: float) -> float:
        return (eigenvalues / (eigenvalues + math.exp(log_precision))).sum().item()

    low, high = math.log(tried), math.log(eigenvalues.sum().item() / most)  # where they surely take fewer
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if taken(middle) > most else (low, middle)
    return math.exp(high)


def highest(function: Callable[[float], float], low: float, high: float, steps: int = STEPS) -> float:
    """Where a function with one peak is highest, by golden sections."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(steps):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
    return (low + high) / 2
