"""How well a score separates OOD from in-distribution samples. A higher score always means more OOD."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from tradi.extras import require
from tradi.metrics import checks

TPR = 0.95


@dataclass(frozen=True)
class OODMetrics:
    """The four metrics of a score; the positive class is OOD in all but `aupr_in`.

    Args:
        auroc: area under the ROC curve.
        aupr_out: average precision, OOD samples as positives.
        aupr_in: the same with in-distribution samples as positives.
        fpr95: share of in-distribution samples flagged where 95% of the OOD ones are.
    """

    auroc: float
    aupr_out: float
    aupr_in: float
    fpr95: float


def ood_metrics(score: Tensor, is_ood: Tensor) -> OODMetrics:
    """All four metrics of one score.

    Args:
        score: any shape, finite; higher = more OOD.
        is_ood: torch.bool of that shape; both kinds must occur.

    Returns:
        the four numbers.

    Raises:
        ValueError: if shapes differ, a score is not finite, or only one kind occurs.
        TypeError: if `is_ood` is not torch.bool.
    """
    check_scores(score, is_ood)
    if is_ood.all() or not is_ood.any():
        raise ValueError(f"is_ood must mark some samples but not all: it marks {int(is_ood.sum())} of {is_ood.numel()}")
    functional = require("torchmetrics.functional.classification", "metrics")
    # Ranks, since torchmetrics applies a sigmoid to scores outside [0, 1], which turns large ones into ties.
    values, rank = torch.unique(score.detach().flatten(), return_inverse=True)
    rank, target = rank.double() / len(values), is_ood.flatten().long()
    fpr, tpr, _ = functional.binary_roc(rank, target, validate_args=False)
    return OODMetrics(
        auroc=float(functional.binary_auroc(rank, target, validate_args=False)),
        aupr_out=float(functional.binary_average_precision(rank, target, validate_args=False)),
        aupr_in=float(functional.binary_average_precision(1 - rank, 1 - target, validate_args=False)),
        fpr95=float(fpr[tpr >= TPR][0]),
    )


def auroc(score: Tensor, is_ood: Tensor) -> float:
    r"""Area under the ROC curve, $P(s_{ood} > s_{in}) + \frac12 P(s_{ood} = s_{in})$; OOD is positive.

    Args:
        score: any shape, finite; higher = more OOD.
        is_ood: torch.bool of that shape; both kinds must occur.

    Returns:
        a share from 0 to 1; 0.5 is chance, higher is better.

    Raises:
        ValueError: if shapes differ, a score is not finite, or only one kind occurs.
        TypeError: if `is_ood` is not torch.bool.
    """
    return ood_metrics(score, is_ood).auroc


def aupr_out(score: Tensor, is_ood: Tensor) -> float:
    r"""Average precision, $\sum_k (R_k - R_{k-1}) P_k$ from the highest score down; OOD is positive.

    Args:
        score: any shape, finite; higher = more OOD.
        is_ood: torch.bool of that shape; both kinds must occur.

    Returns:
        a share from 0 to 1; higher is better.

    Raises:
        ValueError: if shapes differ, a score is not finite, or only one kind occurs.
        TypeError: if `is_ood` is not torch.bool.
    """
    return ood_metrics(score, is_ood).aupr_out


def aupr_in(score: Tensor, is_ood: Tensor) -> float:
    r"""Average precision, $\sum_k (R_k - R_{k-1}) P_k$ from the lowest score; in-distribution is positive.

    Args:
        score: any shape, finite; higher = more OOD.
        is_ood: torch.bool of that shape; both kinds must occur.

    Returns:
        a share from 0 to 1; higher is better.

    Raises:
        ValueError: if shapes differ, a score is not finite, or only one kind occurs.
        TypeError: if `is_ood` is not torch.bool.
    """
    return ood_metrics(score, is_ood).aupr_in


def fpr95(score: Tensor, is_ood: Tensor) -> float:
    """Share of in-distribution samples flagged when at least 95% of the OOD ones are; OOD is positive.

    Args:
        score: any shape, finite; higher = more OOD.
        is_ood: torch.bool of that shape; both kinds must occur.

    Returns:
        a share from 0 to 1; lower is better.

    Raises:
        ValueError: if shapes differ, a score is not finite, or only one kind occurs.
        TypeError: if `is_ood` is not torch.bool.
    """
    return ood_metrics(score, is_ood).fpr95


@dataclass(frozen=True)
class ImageAverage:
    """Metrics summed over images; an image with only OOD or only in-distribution pixels has none and is skipped.

    Args:
        total: the four metrics, summed.
        images: how many have metrics.
        skipped: how many have none.
    """

    total: tuple[float, float, float, float]
    images: int
    skipped: int

    @property
    def metrics(self) -> OODMetrics:
        """Mean over the images that have metrics; the positive class is OOD in all but `aupr_in`."""
        if self.images == 0:
            raise ValueError(f"none of the {self.skipped} images has both OOD and in-distribution pixels")
        return OODMetrics(*(total / self.images for total in self.total))

    def __add__(self, other: ImageAverage) -> ImageAverage:
        a, b, c, d = (mine + theirs for mine, theirs in zip(self.total, other.total, strict=True))
        return ImageAverage((a, b, c, d), self.images + other.images, self.skipped + other.skipped)


def image_average(score: Tensor, is_ood: Tensor) -> ImageAverage:
    """Metrics of one image, which can be added to those of others; mask out pixels without a class first.

    Args:
        score: scores of the image's pixels, any shape, finite; higher = more OOD.
        is_ood: torch.bool of that shape.

    Returns:
        the metrics of this image, as a sum of one.
    """
    check_scores(score, is_ood)
    if is_ood.all() or not is_ood.any():
        return ImageAverage((0.0, 0.0, 0.0, 0.0), images=0, skipped=1)
    return ImageAverage(astuple(ood_metrics(score, is_ood)), images=1, skipped=0)


def check_scores(score: Tensor, is_ood: Tensor) -> None:
    """Check the arguments of an OOD metric."""
    checks.one_shape(score=score, is_ood=is_ood)
    checks.boolean(is_ood=is_ood)
    checks.finite(score=score)
