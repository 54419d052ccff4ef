"""What an ensemble's logits say about labels that are each present or absent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class BernoulliPrediction:
    r"""The ensemble's prediction of yes or no, for each label by itself: the average of the members' probabilities.

    $$ P(y = 1 \mid x) = \frac1M \sum_j \operatorname{sigmoid}(z_j(x)) $$

    Args:
        logits: (members, batch, ...), one logit per label.

    Raises:
        ValueError: if the logits are empty, not finite, or lack the members' axis.
    """

    logits: Tensor

    def __post_init__(self) -> None:
        if self.logits.ndim < 2 or 0 in self.logits.shape:
            raise ValueError(f"logits must be (members, batch, ...), not empty, got shape {tuple(self.logits.shape)}")
        # A graph that is traced has shapes, but no values yet.
        if not torch.compiler.is_compiling() and not self.logits.isfinite().all():
            raise ValueError("logits must be finite: a member's weights or the inputs are not")
        object.__setattr__(self, "logits", self.logits.to(torch.promote_types(self.logits.dtype, torch.float32)))

    def __repr__(self) -> str:
        members, *shape = self.logits.shape
        return (
            f"BernoulliPrediction({' x '.join(map(str, shape))} labels, {members} members; "
            f"mean probability {self.probs.mean():.3f}, mean mutual information {self.mutual_information.mean():.3f})"
        )

    @cached_property
    def log_probs(self) -> tuple[Tensor, Tensor]:
        """Log of the averaged probabilities of absence and of presence, each (batch, ...)."""
        size = math.log(len(self.logits))
        return F.logsigmoid(-self.logits).logsumexp(0) - size, F.logsigmoid(self.logits).logsumexp(0) - size

    @cached_property
    def probs(self) -> Tensor:
        """Averaged probability that a label is present, (batch, ...)."""
        return self.log_probs[1].exp()

    @cached_property
    def labels(self) -> Tensor:
        """Whether a label is more probably present than absent, (batch, ...)."""
        return self.log_probs[1] > self.log_probs[0]

    @cached_property
    def confidence(self) -> Tensor:
        """The probability of the more probable answer, (batch, ...)."""
        return torch.maximum(*self.log_probs).exp()

    @cached_property
    def one_minus_confidence(self) -> Tensor:
        """The probability of the less probable answer, which keeps its digits near 0, (batch, ...)."""
        return torch.minimum(*self.log_probs).exp()

    @cached_property
    def entropy(self) -> Tensor:
        """H[mean_j P_j]: total uncertainty in nats, (batch, ...)."""
        return sum((torch.special.entr(p.exp()) for p in self.log_probs), torch.zeros(()))

    @cached_property
    def expected_entropy(self) -> Tensor:
        """mean_j H[P_j]: the part the members agree upon, (batch, ...)."""
        answers = (self.logits.sigmoid(), (-self.logits).sigmoid())
        return sum((torch.special.entr(p) for p in answers), torch.zeros(())).mean(0)

    @cached_property
    def mutual_information(self) -> Tensor:
        """H[mean_j P_j] - mean_j H[P_j]: the members' disagreement, what the model does not know, (batch, ...)."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    def log_prob(self, labels: Tensor) -> Tensor:
        """Log probability of labels of 0 and 1, (batch, ...).

        Args:
            labels: 0 or 1, (batch, ...).

        Returns:
            nats, (batch, ...).

        Raises:
            ValueError: if labels have another shape or other values.
        """
        if labels.shape != self.logits.shape[1:]:
            raise ValueError(f"labels must have shape {tuple(self.logits.shape[1:])}, got {tuple(labels.shape)}")
        if not ((labels == 0) | (labels == 1)).all():
            raise ValueError("labels must be 0 or 1")
        absent, present = self.log_probs
        return torch.where(labels.bool(), present, absent)
