"""Metrics of a test set too large for memory, such as all pixels of a video, computed in batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from tradi.metrics.ood import TPR, OODMetrics, check_scores

P = ParamSpec("P")


class Addable(Protocol):
    """Counts of a batch; the sum of two counts is the count of both batches together."""

    def __add__(self: T, other: T, /) -> T: ...


T = TypeVar("T", bound=Addable)


class Accumulator(Generic[P, T]):
    """Adds up the results of `measure` over batches.

    ```python
    pooled = Accumulator(score_histogram)
    for score, is_ood in batches:
        pooled.update(score, is_ood)
    pooled.compute().metrics.auroc
    ```

    Args:
        measure: a function of a batch whose results can be added: `score_histogram`, `image_average`,
            `confusion`, `calibration_curve`, `ap_calibration`, `confidence_histogram` or `information_histogram`.
    """

    def __init__(self, measure: Callable[P, T]) -> None:
        self._measure = measure
        self._total: T | None = None

    def update(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Add one batch; the arguments are those of `measure`."""
        part = self._measure(*args, **kwargs)
        self._total = part if self._total is None else self._total + part

    def compute(self) -> T:
        """The sum over all batches so far.

        Returns:
            what `measure` would give for all batches at once.

        Raises:
            ValueError: if there were none.
        """
        if self._total is None:
            raise ValueError("nothing to compute: update was never called, so call it for each batch")
        return self._total


# float32 has 23 bits of mantissa: without the last 12, sign, exponent and 11 bits remain, which are 2**20 bins.
DROPPED_BITS = 12
BINS = 2 ** (32 - DROPPED_BITS)


@dataclass(frozen=True, eq=False)
class ScoreHistogram:
    r"""In-distribution and OOD samples counted in 2^20 bins of the score: 16 MB, however many samples.

    A bin holds the float32 scores with the same sign, exponent and first 11 bits of the mantissa: its relative
    width is 2^-11 (0.05%), near 0 as elsewhere, and the range need not be known in advance. Scores in one bin
    count as equal, which is the only error: with $p_b$ OOD and $n_b$ in-distribution samples in bin b,
    p and n in total, and $T_b, F_b$ the OOD and in-distribution samples in b and in all bins above it,

    - AUROC is off by at most $\frac12 \sum_b p_b n_b / (p n)$;
    - FPR95 is too large by at most $n_b / n$ of the bin where a TPR of 95% is reached, and never too small;
    - AUPR (out; for in, swap the roles) is off by at most
      $\sum_b \frac{p_b}{p} \left(\frac{T_b}{T_b + F_{b-1}}
      - \frac{T_{b-1} + 1}{T_{b-1} + 1 + F_b}\right)$, b - 1 being the next bin above.

    Args:
        inside: in-distribution samples in each bin.
        ood: OOD samples in each bin.
    """

    inside: Tensor
    ood: Tensor

    @property
    def metrics(self) -> OODMetrics:
        """The metrics of all samples pooled; the positive class is OOD in all but `aupr_in`."""
        used = (self.inside + self.ood) > 0
        inside, ood = self.inside[used].double().flip(0), self.ood[used].double().flip(0)
        if not (inside.any() and ood.any()):
            raise ValueError(
                "both OOD and in-distribution samples must occur: "
                f"{int(ood.sum())} of {int((ood + inside).sum())} are OOD"
            )
        zero = inside.new_zeros(1)
        fpr = torch.cat([zero, inside.cumsum(0) / inside.sum()])
        tpr = torch.cat([zero, ood.cumsum(0) / ood.sum()])
        return OODMetrics(
            auroc=float(torch.trapezoid(tpr, fpr)),
            aupr_out=_average_precision(ood, inside),
            aupr_in=_average_precision(inside.flip(0), ood.flip(0)),
            fpr95=float(fpr[tpr >= TPR][0]),
        )

    def __add__(self, other: ScoreHistogram) -> ScoreHistogram:
        return ScoreHistogram(self.inside + other.inside, self.ood + other.ood)


def score_histogram(score: Tensor, is_ood: Tensor) -> ScoreHistogram:
    """Count the scores of a batch.

    Args:
        score: any shape, finite in float32; higher = more OOD.
        is_ood: torch.bool of that shape.

    Returns:
        counts, which can be added to those of other batches.
    """
    score = score.detach().float()
    check_scores(score, is_ood)
    # Read as integers, non-negative floats are in order and negative ones in reverse; -0 + 0 is +0.
    bits = (score.flatten() + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    index = (ordered >> DROPPED_BITS) + BINS // 2
    outside = is_ood.flatten()
    inside, ood = (torch.bincount(part, minlength=BINS) for part in (index[~outside], index[outside]))
    return ScoreHistogram(inside, ood)


def _average_precision(positive: Tensor, negative: Tensor) -> float:
    """Average precision from counts in groups of equal score, the most positive group first."""
    found, false = positive.cumsum(0), negative.cumsum(0)
    return float((positive * found / (found + false)).sum() / found[-1])
