"""The numbers behind each figure, from confidences and outcomes.

`confidence` is the probability of the predicted class, `correct` says whether that class is right. An
out-of-distribution sample has no right class: its `correct` is False (`with_ood` joins the two kinds).

Curves made of counts can be added, so a large test set can be read in batches (`streaming.Accumulator`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tradi.metrics import checks
from tradi.metrics.types import Mixture


@dataclass(frozen=True, eq=False)
class AccuracyConfidence:
    """Accuracy on the samples with a confidence above each threshold; NaN where there are none.

    Args:
        threshold: of confidence, (thresholds,).
        accuracy: above each of them.
        count: samples above each of them.
    """

    threshold: Tensor
    accuracy: Tensor
    count: Tensor


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    r"""Error rate on the most confident part of the data, against the size of that part.

    $$ \mathrm{AURC} = \frac1n \sum_{k=1}^n \frac{\text{errors among the k most confident}}{k} $$

    Samples of equal confidence are in random order; `aurc` is the expectation over that order.

    Args:
        coverage: shares of the data, ascending, (points,).
        risk: error rate on each of them.
        aurc: the area.
    """

    coverage: Tensor
    risk: Tensor
    aurc: float


@dataclass(frozen=True, eq=False)
class Calibration:
    """Outcomes counted in bins of confidence, (edges[b], edges[b+1]]; a confidence of 0 is in the first.

    Args:
        edges: of the bins, (bins + 1,).
        count: samples in each bin.
        correct: how many of these are right.
        confidence_sum: the sum of their confidences.
    """

    edges: Tensor
    count: Tensor
    correct: Tensor
    confidence_sum: Tensor

    @property
    def accuracy(self) -> Tensor:
        """Share of correct predictions in each bin; NaN in an empty one."""
        return self.correct.double() / self.count

    @property
    def confidence(self) -> Tensor:
        """Mean confidence in each bin; NaN in an empty one."""
        return self.confidence_sum / self.count

    @property
    def ece(self) -> float:
        r"""Expected calibration error, $\sum_b \frac{n_b}{n} |acc_b - conf_b|$."""
        return float((self.correct - self.confidence_sum).abs().sum() / self.count.sum())

    def accuracy_confidence(self) -> AccuracyConfidence:
        """Accuracy above each bin's lower edge; exact, since the edges are the thresholds.

        Returns:
            one point per bin.
        """
        count, correct = (part.flip(0).cumsum(0).flip(0) for part in (self.count, self.correct))
        return AccuracyConfidence(self.edges[:-1], correct.double() / count, count)

    def risk_coverage(self) -> RiskCoverage:
        """Risk against coverage, with all confidences in a bin taken as equal.

        Returns:
            one point per bin that is not empty.
        """
        used = self.count > 0
        return _risk_coverage(self.count[used].flip(0), self.correct[used].flip(0))

    def __add__(self, other: Calibration) -> Calibration:
        _check_same_bins(self.edges, other.edges)
        return replace(
            self,
            count=self.count + other.count,
            correct=self.correct + other.correct,
            confidence_sum=self.confidence_sum + other.confidence_sum,
        )


@dataclass(frozen=True, eq=False)
class APCalibration:
    """Outcomes counted by predicted class and bin of confidence, (classes, bins).

    Args:
        edges: of the bins, (bins + 1,).
        count: samples of each predicted class and bin.
        correct: how many of these are right.
    """

    edges: Tensor
    count: Tensor
    correct: Tensor

    @property
    def precision(self) -> Tensor:
        """Precision averaged over the classes predicted in each bin; NaN in an empty one."""
        return (self.correct.double() / self.count).nanmean(0)

    def __add__(self, other: APCalibration) -> APCalibration:
        _check_same_bins(self.edges, other.edges)
        checks.one_shape(count=self.count, other_count=other.count)
        return replace(self, count=self.count + other.count, correct=self.correct + other.correct)


@dataclass(frozen=True, eq=False)
class ConfidenceHistogram:
    """Numbers of in-distribution and of OOD samples in each bin of confidence, or of mutual information.

    Args:
        edges: of the bins, (bins + 1,).
        inside: in-distribution samples in each bin.
        ood: OOD samples in each bin.
    """

    edges: Tensor
    inside: Tensor
    ood: Tensor

    def __add__(self, other: ConfidenceHistogram) -> ConfidenceHistogram:
        _check_same_bins(self.edges, other.edges)
        return replace(self, inside=self.inside + other.inside, ood=self.ood + other.ood)


def _check_same_bins(edges: Tensor, others: Tensor) -> None:
    """Raise for counts in different bins: their sums would mean nothing."""
    if not torch.equal(edges, others):
        raise ValueError(f"counts in different bins cannot be added: edges {edges.tolist()} and {others.tolist()}")


@dataclass(frozen=True, eq=False)
class RegressionBand:
    """A one-dimensional regression at sorted inputs: mean, standard deviation, and its epistemic part.

    Args:
        x: inputs in ascending order, (points,).
        mean: of the prediction there.
        sd: its standard deviation.
        epistemic_sd: that of the members' means.
    """

    x: Tensor
    mean: Tensor
    sd: Tensor
    epistemic_sd: Tensor


def with_ood(confidence: Tensor, correct: Tensor, confidence_ood: Tensor) -> tuple[Tensor, Tensor]:
    """In- and out-of-distribution test data as one set of (confidence, correct); OOD samples are errors.

    Args:
        confidence: of the predicted class on test data, in [0, 1], any shape.
        correct: torch.bool of that shape.
        confidence_ood: the same of OOD samples, any shape.

    Returns:
        confidence and correctness of all samples, the OOD ones last.
    """
    checks.one_shape(confidence=confidence, correct=correct)
    checks.one_shape(confidence_ood=confidence_ood)
    wrong = torch.zeros(confidence_ood.numel(), dtype=torch.bool, device=confidence_ood.device)
    return torch.cat([confidence.flatten(), confidence_ood.flatten()]), torch.cat([correct.flatten(), wrong])


def calibration_curve(confidence: Tensor, correct: Tensor, bins: int = 15) -> Calibration:
    """Accuracy in bins of confidence of equal width (the paper's "equal size" is Guo et al.'s 1/bins).

    Args:
        confidence: of the predicted class, in [0, 1], any shape.
        correct: torch.bool of that shape; False for an OOD sample.
        bins: number of bins.

    Returns:
        counts by bin, and the accuracy and mean confidence in each.
    """
    _check_outcomes(confidence, correct)
    edges, index = _bin(confidence, bins)
    total = torch.bincount(index, _flat(confidence), bins)
    return Calibration(edges, _count(index, bins), _count(index[correct.flatten()], bins), total)


def accuracy_confidence(confidence: Tensor, correct: Tensor, bins: int = 100) -> AccuracyConfidence:
    """Accuracy on test data with a confidence above 0, 1/bins, ..., 1 - 1/bins; OOD samples count as errors.

    Args:
        confidence: of the predicted class, in [0, 1], any shape.
        correct: torch.bool of that shape.
        bins: number of thresholds.

    Returns:
        the curve, `bins` points of it.
    """
    return calibration_curve(confidence, correct, bins).accuracy_confidence()


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Risk against coverage, one point for every distinct confidence.

    Args:
        confidence: of the predicted class, in [0, 1], any shape.
        correct: torch.bool of that shape.

    Returns:
        the curve, and the area below it.
    """
    _check_outcomes(confidence, correct)
    values, index = torch.unique(_flat(confidence), return_inverse=True)
    right = _count(index[correct.flatten()], len(values))
    return _risk_coverage(_count(index, len(values)).flip(0), right.flip(0))


def ap_calibration(
    confidence: Tensor, predicted: Tensor, correct: Tensor, classes: int, bins: int = 15
) -> APCalibration:
    r"""Calibration with precision in place of accuracy, averaged over classes.

    $$ AP_b = \frac{1}{|C_b|} \sum_{c \in C_b} \frac{TP_{b,c}}{TP_{b,c} + FP_{b,c}} $$

    The paper replaces, bin by bin, "the Accuracy by the average precision of each class", since precision
    "highlights more the false-positive effects". It is read here as the precision of every class predicted in
    the bin (C_b), averaged over those classes with equal weights, not as the area under a precision-recall
    curve: inside a bin all scores are alike and there is nothing left to rank. An OOD sample is a false
    positive of its predicted class.

    Args:
        confidence: of the predicted class, in [0, 1], any shape.
        predicted: the predicted classes, of that shape.
        correct: torch.bool of that shape; False for an OOD sample.
        classes: number of classes.
        bins: number of bins, of equal width.

    Returns:
        counts by predicted class and bin, and the precision in each bin.
    """
    checks.one_shape(confidence=confidence, predicted=predicted)
    checks.classes(classes, predicted=predicted)
    _check_outcomes(confidence, correct)
    edges, index = _bin(confidence, bins)
    cell = predicted.flatten().long() * bins + index
    count, right = (_count(cells, classes * bins) for cells in (cell, cell[correct.flatten()]))
    return APCalibration(edges, count.view(classes, bins), right.view(classes, bins))


def confidence_histogram(confidence: Tensor, is_ood: Tensor, bins: int = 25) -> ConfidenceHistogram:
    """Histograms of confidence, of in-distribution and of OOD samples, in bins of equal width.

    Args:
        confidence: of the predicted class, in [0, 1], any shape.
        is_ood: torch.bool of that shape.
        bins: number of bins.

    Returns:
        counts by bin, of each kind.
    """
    checks.one_shape(confidence=confidence, is_ood=is_ood)
    checks.boolean(is_ood=is_ood)
    checks.unit_interval(confidence=confidence)
    edges, index = _bin(confidence, bins)
    outside = is_ood.flatten()
    return ConfidenceHistogram(edges, _count(index[~outside], bins), _count(index[outside], bins))


def information_histogram(information: Tensor, is_ood: Tensor, classes: int, bins: int = 25) -> ConfidenceHistogram:
    r"""Histograms of mutual information, of in-distribution and of OOD samples.

    The bins, $[b^2, (b + 1)^2] \log C / B^2$, are of equal width on a root's scale: most values are close to 0.

    Args:
        information: in nats, from 0 to log(classes), any shape.
        is_ood: torch.bool of that shape.
        classes: number of classes, C.
        bins: number of bins, B.

    Returns:
        counts by bin, of each kind.

    Raises:
        ValueError: if shapes or types differ, or there are not two classes.
    """
    checks.one_shape(information=information, is_ood=is_ood)
    checks.boolean(is_ood=is_ood)
    checks.finite(information=information)
    checks.at_least_one(bins=bins)
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}: there is nothing to be informed of")
    steps = torch.arange(bins + 1, dtype=torch.float64, device=information.device)
    edges = math.log(classes) * (steps / bins) ** 2
    index = torch.bucketize(_flat(information), edges[1:-1])
    outside = is_ood.flatten()
    return ConfidenceHistogram(edges, _count(index[~outside], bins), _count(index[outside], bins))


def regression_band(prediction: Mixture, x: Tensor) -> RegressionBand:
    """The band of a one-dimensional regression, sorted by x.

    Args:
        prediction: prediction at the inputs x, with batch shape (points,) or (points, 1).
        x: inputs, (points,) or (points, 1).

    Returns:
        mean, standard deviation and its epistemic part, (points,) each.
    """
    checks.one_shape(x=x.squeeze(-1), mean=prediction.mean.squeeze(-1))
    order = x.flatten().argsort()
    parts = (x, prediction.mean, prediction.variance.sqrt(), prediction.epistemic.sqrt())
    return RegressionBand(*(part.detach().flatten()[order] for part in parts))


def _check_outcomes(confidence: Tensor, correct: Tensor) -> None:
    checks.one_shape(confidence=confidence, correct=correct)
    checks.boolean(correct=correct)
    checks.unit_interval(confidence=confidence)


def _flat(values: Tensor) -> Tensor:
    return values.detach().flatten().double()


def _bin(confidence: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    checks.at_least_one(bins=bins)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=confidence.device)
    return edges, torch.bucketize(_flat(confidence), edges[1:-1])


def _count(index: Tensor, bins: int) -> Tensor:
    return torch.bincount(index, minlength=bins)


def _risk_coverage(count: Tensor, correct: Tensor) -> RiskCoverage:
    """From groups of equal confidence, the most confident first, none of them empty."""
    covered, errors = count.cumsum(0).double(), (count - correct).cumsum(0).double()
    before, errors_before = covered - count, errors - (count - correct)
    # In random order a group of error rate r adds r per sample. The sum over its samples j of the risk so far,
    # (errors_before + j r) / (before + j), is count r + (errors_before - before r) (H(covered) - H(before)),
    # H being the harmonic numbers.
    rate = (count - correct).double() / count
    harmonic = torch.digamma(covered + 1) - torch.digamma(before + 1)
    area = (count * rate + (errors_before - before * rate) * harmonic).sum() / covered[-1]
    return RiskCoverage(covered / covered[-1], errors / covered, float(area))
