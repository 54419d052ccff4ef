"""What an ensemble says about a number: a mixture of Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    r"""The ensemble's prediction of a number: equally weighted Gaussians, one per member.

    $$ p(y \mid x) = \frac1M \sum_j \mathcal N(y; \mu_j(x), \sigma_j^2(x)) $$   (paper, section 3.5)

    Args:
        means: (members, batch, ...); half precision is turned into float32.
        variances: of the same shape, positive.
    """

    means: Tensor
    variances: Tensor

    def __post_init__(self) -> None:
        if self.means.shape != self.variances.shape:
            raise ValueError(
                f"means and variances must have one shape, got {tuple(self.means.shape)} "
                f"and {tuple(self.variances.shape)}"
            )
        if self.means.ndim < 2 or 0 in self.means.shape:
            raise ValueError(f"means must be (members, batch, ...), not empty, got shape {tuple(self.means.shape)}")
        if not torch.compiler.is_compiling():  # a graph that is traced has shapes, but no values yet
            self._check_values()
        for name in ("means", "variances"):  # squares of half-precision numbers overflow
            values = getattr(self, name)
            object.__setattr__(self, name, values.to(torch.promote_types(values.dtype, torch.float32)))

    def _check_values(self) -> None:
        if not (self.means.isfinite().all() and self.variances.isfinite().all()):
            raise ValueError("means and variances must be finite: a member's weights or the inputs are not")
        if not (self.variances > 0).all():
            raise ValueError(
                f"variances must be positive, got a minimum of {self.variances.min().item()}; "
                "let the variance head end in softplus plus a small constant"
            )

    def __repr__(self) -> str:
        members, *shape = self.means.shape
        return (
            f"GaussianMixture({' x '.join(map(str, shape))} numbers, {members} members; mean standard deviation: "
            f"aleatoric {self.aleatoric.sqrt().mean():.3g}, epistemic {self.epistemic.sqrt().mean():.3g})"
        )

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the mixture, (batch, ...)."""
        return self.means.mean(0)

    @cached_property
    def aleatoric(self) -> Tensor:
        """Mean of the members' variances: the noise in the data, (batch, ...)."""
        return self.variances.mean(0)

    @cached_property
    def epistemic(self) -> Tensor:
        """Variance of the members' means: what the model does not know, (batch, ...)."""
        return self.means.var(0, correction=0)

    @cached_property
    def variance(self) -> Tensor:
        """Variance of the mixture: aleatoric plus epistemic, (batch, ...)."""
        return self.aleatoric + self.epistemic

    @property
    def distribution(self) -> MixtureSameFamily:
        """The mixture as a torch distribution over (batch, ...)."""
        means, scales = self.means.movedim(0, -1), self.variances.sqrt().movedim(0, -1)
        return MixtureSameFamily(Categorical(logits=torch.zeros_like(means)), Normal(means, scales))

    @property
    def moment_matched(self) -> Normal:
        """The one Gaussian with the mixture's mean and variance: what Deep Ensembles and the paper's NLL use."""
        return Normal(self.mean, self.variance.sqrt())

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of the mixture at y, (batch, ...).

        Args:
            y: numbers, (batch, ...).

        Returns:
            nats, (batch, ...).

        Raises:
            ValueError: if they have another shape.
        """
        if y.shape != self.means.shape[1:]:
            raise ValueError(f"y must have shape {tuple(self.means.shape[1:])}, got {tuple(y.shape)}")
        return gaussian_log_prob(y, self.means, self.variances).logsumexp(0) - math.log(len(self.means))

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a number up to y, (batch, ...).

        Args:
            y: numbers, (batch, ...) or a shape that broadcasts to it.

        Returns:
            probabilities, (batch, ...).
        """
        return torch.special.ndtr((y - self.means) * self.variances.rsqrt()).mean(0)

    def icdf(self, q: float | Tensor) -> Tensor:
        r"""Quantiles: the y with $\frac1M \sum_j \Phi((y - \mu_j) / \sigma_j) = q$.

        Args:
            q: a probability between 0 and 1, or a tensor of them.

        Returns:
            (batch, ...) for one number; for a tensor, its shape comes first: (*q.shape, batch, ...).

        Raises:
            ValueError: if a probability is not strictly between 0 and 1.
        """
        probabilities = torch.as_tensor(q, dtype=torch.float64, device=self.means.device)
        if not ((probabilities > 0) & (probabilities < 1)).all():
            raise ValueError(f"q must be strictly between 0 and 1, got {q}")
        found = [self._quantile(p) for p in probabilities.flatten()]
        shape = (*probabilities.shape, *self.means.shape[1:])
        return torch.stack(found).reshape(shape).to(self.means.dtype)

    def _quantile(self, q: Tensor) -> Tensor:
        """By bisection: the quantile of a mixture lies between the smallest and the largest of its members'."""
        means, scales = self.means.double(), self.variances.double().sqrt()
        each = means + scales * torch.special.ndtri(q)
        low, high = each.amin(0), each.amax(0)
        for _ in range(64):
            middle = (low + high) / 2
            below = torch.special.ndtr((middle - means) / scales).mean(0) < q
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2


def gaussian_log_prob(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    r"""Log density of a Gaussian, $-\frac12 ((y - \mu)^2 / \sigma^2 + \log 2 \pi \sigma^2)$, elementwise."""
    # Standardise before squaring: (y - mean)^2 overflows long before its ratio to the variance does.
    z = (y - mean) * variance.rsqrt()
    return -0.5 * (z.square() + variance.log() + math.log(2 * math.pi))
