"""What an ensemble's outputs say: class probabilities or a mixture of Gaussians, and how sure they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Categorical as _Weights
from torch.distributions import MixtureSameFamily, Normal


@dataclass(frozen=True, eq=False)
class Categorical:
    r"""The ensemble's prediction of a class: the average of the members' probabilities.

    $$ P(y \mid x) = \frac1M \sum_j P(y \mid x, \tilde\omega^j) $$   (paper, section 3.5)

    Args:
        logits: (members, batch, classes, ...): further axes, such as the pixels of a segmentation, come last.
            Members are always axis 0 and classes axis 2.
    """

    logits: Tensor

    def __post_init__(self) -> None:
        if self.logits.ndim < 3:
            raise ValueError(
                f"logits must be (members, batch, classes, ...), got shape {tuple(self.logits.shape)}; "
                "give the ensemble a batch, or add the missing axis with unsqueeze"
            )
        if self.logits.shape[2] == 1:
            raise ValueError("logits must be of two classes or more: for one logit z, give torch.cat([0 * z, z], 2)")
        if 0 in self.logits.shape:
            raise ValueError(f"logits must not be empty, got shape {tuple(self.logits.shape)}")
        if self.logits.isnan().any():
            raise ValueError("logits contain NaN: a member's weights or the inputs are not finite")
        largest = self.logits.amax(2)
        if (largest == math.inf).any():
            raise ValueError(f"logits must not be infinite (half precision overflows at 65504), got {math.inf}")
        if (largest == -math.inf).any():
            raise ValueError(f"logits must not mask every class of a sample, got a sample of {-math.inf} alone")

    @cached_property
    def member_log_probs(self) -> Tensor:
        """log P(y | x, member), (members, batch, classes, ...); half precision is computed in float32."""
        dtype = torch.promote_types(self.logits.dtype, torch.float32)
        return self.logits.to(dtype).log_softmax(2)

    @cached_property
    def log_probs(self) -> Tensor:
        """Log of the averaged probabilities, (batch, classes, ...): exact where the probabilities underflow."""
        return self.member_log_probs.logsumexp(0) - math.log(len(self.logits))

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probabilities, (batch, classes, ...)."""
        return self.log_probs.exp()

    @cached_property
    def labels(self) -> Tensor:
        """The most probable class, (batch, ...)."""
        return self.log_probs.argmax(1)

    @cached_property
    def confidence(self) -> Tensor:
        """The probability of the most probable class, (batch, ...)."""
        return self.probs.amax(1)

    @cached_property
    def doubt(self) -> Tensor:
        """1 - confidence, added up from the other classes so that it keeps its digits near 0, (batch, ...)."""
        return self.probs.scatter(1, self.labels.unsqueeze(1), 0).sum(1)

    @cached_property
    def entropy(self) -> Tensor:
        """H[mean_j P_j]: total uncertainty in nats, (batch, ...)."""
        return torch.special.entr(self.probs).sum(1)

    @cached_property
    def expected_entropy(self) -> Tensor:
        """mean_j H[P_j]: the part the members agree upon, (batch, ...)."""
        return torch.special.entr(self.member_log_probs.exp()).sum(2).mean(0)

    @cached_property
    def mutual_information(self) -> Tensor:
        """H[mean_j P_j] - mean_j H[P_j]: the members' disagreement, what the model does not know, (batch, ...)."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    def log_prob(self, labels: Tensor) -> Tensor:
        """Log probability of the given classes, (batch, ...)."""
        expected = self.log_probs[:, 0].shape
        if labels.shape != expected:
            raise ValueError(f"labels must have shape {tuple(expected)}, got {tuple(labels.shape)}")
        classes = self.logits.shape[2]
        if labels.is_floating_point() or ((labels < 0) | (labels >= classes)).any():
            raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}; mask void ones out before")
        return self.log_probs.gather(1, labels.long().unsqueeze(1)).squeeze(1)


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    r"""The ensemble's prediction of a number: equally weighted Gaussians, one a member.

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
        if not (self.means.isfinite().all() and self.variances.isfinite().all()):
            raise ValueError("means and variances must be finite: a member's weights or the inputs are not")
        if not (self.variances > 0).all():
            raise ValueError(
                f"variances must be positive, got a minimum of {self.variances.min().item()}; "
                "let the variance head end in softplus plus a small constant"
            )
        for name in ("means", "variances"):  # squares of half-precision numbers overflow
            values = getattr(self, name)
            object.__setattr__(self, name, values.to(torch.promote_types(values.dtype, torch.float32)))

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
        return MixtureSameFamily(_Weights(logits=torch.zeros_like(means)), Normal(means, scales))

    @property
    def moment_matched(self) -> Normal:
        """The one Gaussian with the mixture's mean and variance: what Deep Ensembles and the paper's NLL use."""
        return Normal(self.mean, self.variance.sqrt())

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of the mixture at y, (batch, ...)."""
        if y.shape != self.means.shape[1:]:
            raise ValueError(f"y must have shape {tuple(self.means.shape[1:])}, got {tuple(y.shape)}")
        return gaussian_log_prob(y, self.means, self.variances).logsumexp(0) - math.log(len(self.means))


def gaussian_log_prob(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    r"""Log density of a Gaussian, $-\frac12 ((y - \mu)^2 / \sigma^2 + \log 2 \pi \sigma^2)$, elementwise."""
    # Standardise before squaring: (y - mean)^2 overflows long before its ratio to the variance does.
    z = (y - mean) * variance.rsqrt()
    return -0.5 * (z.square() + variance.log() + math.log(2 * math.pi))
