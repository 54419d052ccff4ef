"""What is measured of predictions: every measure once, with how it is computed and how tables print it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, ParamSpec

import torch
from torch import Tensor

from tradi import metrics
from tradi.bench.tables import ByMethod, Column
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture

P = ParamSpec("P")


@dataclass(frozen=True)
class Measure(Generic[P]):
    """One number of a prediction.

    Args:
        key: its name in result files.
        compute: gives the number, or None where there is none, such as the disagreement of a single network.
        title: in tables.
        factor, digits, higher: how tables print it, as in `Column`.
        shown: whether tables show it; result files hold it anyway.
    """

    key: str
    compute: Callable[P, float | None]
    title: str
    factor: float = 1.0
    digits: int = 2
    higher: bool | None = False
    shown: bool = True

    def column(self, prefix: str = "") -> Column:
        """As a column of a table; the prefix says what it is measured on, such as "validation/"."""
        return Column(self.title, prefix + self.key, self.factor, self.digits, self.higher)


def compute(measures: Sequence[Measure[P]], *args: P.args, **kwargs: P.kwargs) -> dict[str, float]:
    """The numbers of all measures, by key, without those that there are not."""
    found = {measure.key: measure.compute(*args, **kwargs) for measure in measures}
    return {key: number for key, number in found.items() if number is not None}


def columns(measures: Sequence[Measure[P]], prefix: str = "") -> tuple[Column, ...]:
    """Columns of the measures that tables show."""
    return tuple(measure.column(prefix) for measure in measures if measure.shown)


# Of class predictions and labels.
OfClasses = Measure[[ClassPrediction, Tensor]]
ECE: OfClasses = Measure("ece", lambda p, y: metrics.ece(p.confidence, p.labels == y), "ECE", digits=4)
CLASSIFICATION: tuple[OfClasses, ...] = (
    Measure("accuracy", lambda p, y: metrics.accuracy(p.probs, y), "accuracy %", 100, higher=True),
    Measure("nll", lambda p, y: metrics.nll_from_log_probs(p.log_probs, y), "NLL", digits=4),
    Measure("brier", lambda p, y: metrics.brier(p.probs, y), "Brier", digits=4, shown=False),
    ECE,
)

# Of a score of test data, and of the same score of an OOD set: is the one told from the other?
OfScores = Measure[[Tensor, Tensor]]


def _separation(metric: Callable[[Tensor, Tensor], float]) -> Callable[[Tensor, Tensor], float]:
    def compute(inside: Tensor, outside: Tensor) -> float:
        marks = torch.zeros_like(inside, dtype=torch.bool), torch.ones_like(outside, dtype=torch.bool)
        return metric(torch.cat([inside, outside]), torch.cat(marks))

    return compute


SEPARATION: tuple[OfScores, ...] = (
    Measure("auroc", _separation(metrics.auroc), "AUC", 100, 1, higher=True),
    Measure("aupr_out", _separation(metrics.aupr_out), "AUPR", 100, 1, higher=True),
    Measure("fpr95", _separation(metrics.fpr95), "FPR95", 100, 1),
)

# Of predictions for test data and its labels, and of predictions for an OOD set.
OfOOD = Measure[[ClassPrediction, Tensor, ClassPrediction]]


def _detection(key: str, score: Callable[[ClassPrediction], Tensor], title: str, shown: bool) -> tuple[OfOOD, ...]:
    """AUC, AUPR and FPR95 by one score; tables show the AUC of every score."""

    def by(measure: OfScores) -> Callable[..., float | None]:
        def compute(inside: ClassPrediction, labels: Tensor, outside: ClassPrediction) -> float | None:
            del labels
            if score is metrics.mutual_information and len(inside.logits) == 1:
                return None  # one network cannot disagree with itself
            return measure.compute(score(inside), score(outside))

        return compute

    return tuple(
        Measure(
            f"{key}/{one.key}",
            by(one),
            one.title + title,
            one.factor,
            one.digits,
            one.higher,
            shown or one.key == "auroc",
        )
        for one in SEPARATION
    )


OWN_SCORE = "confidence"  # a detector's own score stands in the columns of one minus confidence
DETECTION: tuple[OfOOD, ...] = (
    *_detection(OWN_SCORE, metrics.one_minus_confidence, "", shown=True),
    *_detection("entropy", metrics.predictive_entropy, ", entropy", shown=False),
    *_detection("information", metrics.mutual_information, ", mutual information", shown=False),
)
JOINT_ECE: OfOOD = Measure(
    "joint_ece",
    lambda p, y, outside: metrics.joint_ece(p.confidence, p.labels == y, outside.confidence),
    "joint ECE",
    digits=3,
)
OOD: tuple[OfOOD, ...] = (*DETECTION, JOINT_ECE)

# Of predicted numbers and targets.
OfNumbers = Measure[[GaussianMixture, Tensor]]
REGRESSION: tuple[OfNumbers, ...] = (
    Measure("rmse", lambda p, y: metrics.rmse(p.mean, y), "RMSE", digits=3),
    Measure("nll", lambda p, y: metrics.gaussian_nll(p.mean, p.variance, y), "NLL", digits=3),
    Measure("nll_mixture", metrics.mixture_nll, "NLL, mixture", digits=3),
    Measure("crps", metrics.mixture_crps, "CRPS", digits=3),
    Measure(
        "coverage95",
        lambda p, y: metrics.coverage(p, y, torch.tensor([0.95])).item(),
        "95% covers %",
        100,
        1,
        higher=None,
    ),
)


def against_ood(measures: Sequence[OfClasses] = CLASSIFICATION, first: Sequence[Column] = ()) -> ByMethod:
    """A table for every OOD set, whatever its name, with the joint ECE in place of that of test data alone.

    Args:
        measures: of test data.
        first: columns before all others.
    """
    inside = columns([measure for measure in measures if measure is not ECE])
    return ByMethod((*first, *inside, *columns(OOD, "{}/")), ", against {}", each=JOINT_ECE.column("{}/").metric)
