"""What an ensemble's logits say about a class, and how sure they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ClassPrediction:
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
            raise ValueError("logits must be of two classes or more: one logit is a BernoulliPrediction")
        if 0 in self.logits.shape:
            raise ValueError(f"logits must not be empty, got shape {tuple(self.logits.shape)}")
        if not torch.compiler.is_compiling():  # a graph that is traced has shapes, but no values yet
            self._check_values()

    def _check_values(self) -> None:
        if self.logits.isnan().any():
            raise ValueError("logits contain NaN: a member's weights or the inputs are not finite")
        largest = self.logits.amax(2)
        if (largest == math.inf).any():
            raise ValueError(f"logits must not be infinite (half precision overflows at 65504), got {math.inf}")
        if (largest == -math.inf).any():
            raise ValueError(f"logits must not mask every class of a sample, got a sample of {-math.inf} alone")

    def __repr__(self) -> str:
        members, batch, classes, *positions = self.logits.shape
        shape = f" x {' x '.join(map(str, positions))} positions" if positions else ""
        return (
            f"ClassPrediction({batch} samples{shape}, {classes} classes, {members} members; "
            f"mean confidence {self.confidence.mean():.3f}, "
            f"mean mutual information {self.mutual_information.mean():.3f})"
        )

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
    def one_minus_confidence(self) -> Tensor:
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
        """Log probability of the given classes, (batch, ...).

        Args:
            labels: the true classes, (batch, ...).

        Returns:
            nats, (batch, ...).

        Raises:
            ValueError: if labels have another shape, or one is no class.
        """
        expected = self.log_probs[:, 0].shape
        if labels.shape != expected:
            raise ValueError(f"labels must have shape {tuple(expected)}, got {tuple(labels.shape)}")
        classes = self.logits.shape[2]
        if labels.is_floating_point() or ((labels < 0) | (labels >= classes)).any():
            raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}; mask void ones out before")
        return self.log_probs.gather(1, labels.long().unsqueeze(1)).squeeze(1)
