from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import precision_score
from torch import Tensor

from tradi import metrics
from tradi.metrics.types import Mixture


def outcomes(n: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    confidence = torch.rand(n, generator=g, dtype=torch.float64) * 0.9 + 0.1
    return confidence, torch.rand(n, generator=g, dtype=torch.float64) < confidence**2


def adversarial() -> dict[str, tuple[Tensor, Tensor]]:
    confidence, correct = outcomes()
    return {
        "random": (confidence, correct),
        "ties, and 0 and 1": ((confidence * 10).round() / 10, correct),
        "all equal": (torch.full_like(confidence, 0.7), correct),
        "all right": (confidence, torch.ones_like(correct)),
        "all wrong": (confidence, torch.zeros_like(correct)),
        "exactly 0 and 1": (confidence.round(), correct),
        "one sample": (confidence[:1], correct[:1]),
    }


CASES = adversarial()


@pytest.mark.parametrize("name", CASES)
def test_calibration_agrees_with_scikit_learn(name: str) -> None:
    confidence, correct = CASES[name]
    found = metrics.calibration_curve(confidence, correct, 15)
    accuracy, mean = calibration_curve(correct, confidence, n_bins=15)
    used = found.count > 0
    np.testing.assert_allclose(found.accuracy[used], accuracy)
    np.testing.assert_allclose(found.confidence[used], mean)
    assert found.accuracy[~used].isnan().all()
    assert int(found.count.sum()) == len(confidence)


@pytest.mark.parametrize("name", CASES)
def test_accuracy_is_of_all_that_lies_above_the_threshold(name: str) -> None:
    confidence, correct = CASES[name]
    found = metrics.accuracy_confidence(confidence, correct, 20)
    for threshold, accuracy, count in zip(found.threshold, found.accuracy, found.count, strict=True):
        # The first point is of all samples: a confidence of exactly 0 is not left out.
        above = confidence > threshold if threshold > 0 else confidence >= 0
        assert count == above.sum()
        expected = correct[above].double().mean() if above.any() else torch.tensor(math.nan).double()
        torch.testing.assert_close(accuracy, expected, equal_nan=True)


def test_ood_samples_are_errors() -> None:
    joined = metrics.with_ood(torch.tensor([0.9, 0.3]), torch.tensor([True, True]), torch.tensor([0.95, 0.5]))
    found = metrics.accuracy_confidence(*joined, bins=10)
    assert found.count[[0, 4, 8]].tolist() == [4, 3, 2]
    assert found.accuracy[[0, 4, 8]].tolist() == pytest.approx([2 / 4, 1 / 3, 1 / 2])


def random_order_aurc(confidence: Tensor, correct: Tensor, orders: int) -> float:
    """The definition, samples of equal confidence in random order."""
    rng = np.random.default_rng(0)
    c, error = confidence.numpy(), 1 - correct.double().numpy()
    found = []
    for _ in range(orders):
        order = np.lexsort((rng.random(len(c)), -c))
        found.append((error[order].cumsum() / np.arange(1, len(c) + 1)).mean())
    return float(np.mean(found))


@pytest.mark.parametrize("name", CASES)
def test_aurc_is_the_mean_risk_over_coverages(name: str) -> None:
    confidence, correct = CASES[name]
    found = metrics.risk_coverage(confidence, correct)
    assert found.aurc == pytest.approx(random_order_aurc(confidence, correct, 4000), abs=2e-3)
    if len(set(confidence.tolist())) == len(confidence):
        assert found.aurc == pytest.approx(random_order_aurc(confidence, correct, 1), abs=1e-9)
    assert found.coverage[-1] == 1
    assert found.risk[-1] == pytest.approx(1 - correct.double().mean().item())


def test_risk_at_each_coverage() -> None:
    confidence = torch.tensor([0.9, 0.8, 0.8, 0.1])
    found = metrics.risk_coverage(confidence, torch.tensor([True, True, False, False]))
    assert found.coverage.tolist() == [0.25, 0.75, 1]
    assert found.risk.tolist() == pytest.approx([0, 1 / 3, 1 / 2])
    # Half an error is expected among the first two, one among the first three.
    assert found.aurc == pytest.approx((0 + 0.5 / 2 + 1 / 3 + 2 / 4) / 4)


def test_risk_coverage_of_fine_bins_is_close_to_exact() -> None:
    confidence, correct = outcomes(5000)
    binned = metrics.calibration_curve(confidence, correct, 1000).risk_coverage()
    assert binned.aurc == pytest.approx(metrics.risk_coverage(confidence, correct).aurc, abs=1e-3)
    ties = (confidence * 20).round() / 20
    exact = metrics.risk_coverage(ties, correct)
    binned = metrics.calibration_curve(ties, correct, 1000).risk_coverage()
    assert binned.aurc == pytest.approx(exact.aurc, rel=1e-12)
    torch.testing.assert_close(binned.risk, exact.risk)


def test_average_precision_is_macro_precision_in_each_bin() -> None:
    confidence, _ = outcomes()
    g = torch.Generator().manual_seed(1)
    labels = torch.randint(-1, 4, confidence.shape, generator=g)  # -1 is OOD
    known = labels.clamp_min(0)
    predicted = torch.where(torch.rand(confidence.shape, generator=g) < 0.5, known, 3 - known)
    found = metrics.ap_calibration(confidence, predicted, predicted == labels, 4, bins=10)
    assert found.precision[0].isnan(), "no confidence is below 0.1"
    for b in range(1, 10):
        inside = (confidence > b / 10) & (confidence <= (b + 1) / 10)
        y, p = labels[inside].numpy(), predicted[inside].numpy()
        expected = precision_score(y, p, labels=np.unique(p), average="macro")
        assert found.precision[b].item() == pytest.approx(expected)


def test_average_precision_weighs_classes_and_accuracy_samples() -> None:
    confidence = torch.full((10,), 0.95)
    predicted = torch.tensor([0] * 9 + [1])
    correct = predicted == 0
    found = metrics.ap_calibration(confidence, predicted, correct, 3, bins=10)
    assert found.precision[9] == 0.5, "the third class, never predicted, does not count"
    assert found.precision[:9].isnan().all()
    assert metrics.calibration_curve(confidence, correct, 10).accuracy[9] == pytest.approx(0.9)


def test_predicted_classes_of_bytes() -> None:
    confidence, correct = outcomes()
    predicted = torch.arange(400) % 40
    whole = metrics.ap_calibration(confidence, predicted, correct, 40)
    assert metrics.ap_calibration(confidence, predicted.byte(), correct, 40).count.equal(whole.count)


def test_confidence_histogram_agrees_with_numpy() -> None:
    confidence, is_ood = outcomes()
    found = metrics.confidence_histogram(confidence, is_ood, 25)
    edges = found.edges.numpy()
    np.testing.assert_array_equal(found.ood, np.histogram(confidence[is_ood], edges)[0])
    np.testing.assert_array_equal(found.inside, np.histogram(confidence[~is_ood], edges)[0])


def test_information_histogram_agrees_with_numpy_and_has_all_values() -> None:
    g = torch.Generator().manual_seed(3)
    information = torch.rand(500, generator=g).square() * math.log(10)
    is_ood = torch.rand(500, generator=g) < 0.3
    found = metrics.information_histogram(information, is_ood, 10, bins=20)
    edges = math.log(10) * (np.arange(21) / 20) ** 2
    np.testing.assert_allclose(found.edges.numpy(), edges)
    for counted, rows in ((found.inside, ~is_ood), (found.ood, is_ood)):
        expected, _ = np.histogram(information[rows].double().numpy(), edges)
        assert counted.tolist() == expected.tolist()
    above = metrics.information_histogram(torch.tensor([math.log(10) + 1e-6, 0.0]), torch.tensor([True, False]), 10)
    assert above.ood[-1] == above.inside[0] == 1, "rounding may exceed the largest value that there is"
    assert torch.equal((found + found).ood, 2 * found.ood)


def test_information_of_one_class_or_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
        metrics.information_histogram(torch.zeros(2), torch.tensor([True, False]), 1)
    with pytest.raises(ValueError, match="information"):
        metrics.information_histogram(torch.tensor([math.nan, 0]), torch.tensor([True, False]), 3)


def test_confidence_histogram_takes_one_kind_alone() -> None:
    found = metrics.confidence_histogram(torch.tensor([0.0, 1.0]), torch.tensor([True, True]), 2)
    assert (found.inside.tolist(), found.ood.tolist()) == ([0, 0], [1, 1])


def test_regression_band_is_sorted() -> None:
    means = torch.tensor([[[3.0], [1.0]], [[5.0], [1.0]]])
    variance, epistemic = torch.tensor([[5.0], [4.0]]), means.var(0, correction=0)
    prediction = SimpleNamespace(mean=means.mean(0), variance=variance, epistemic=epistemic)
    band = metrics.regression_band(cast(Mixture, prediction), torch.tensor([[2.0], [-2.0]]))
    assert band.x.tolist() == [-2, 2]
    assert band.mean.tolist() == [1, 4]
    assert band.sd.tolist() == pytest.approx([2, math.sqrt(5)])
    assert band.epistemic_sd.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"x \(3,\) and mean \(2,\)"):
        metrics.regression_band(cast(Mixture, prediction), torch.zeros(3))


def test_bad_arguments_are_named() -> None:
    confidence, correct = outcomes(4)
    for curve in (metrics.calibration_curve, metrics.accuracy_confidence, metrics.risk_coverage):
        with pytest.raises(ValueError, match=r"confidence must be in \[0, 1\], got nan"):
            curve(confidence * math.nan, correct)
        with pytest.raises(ValueError, match=r"confidence must be in \[0, 1\], got .* \(4 of 4"):
            curve(confidence + 5, correct)
        with pytest.raises(ValueError, match=r"confidence \(4,\) and correct \(3,\)"):
            curve(confidence, correct[:3])
        with pytest.raises(ValueError, match="confidence must not be empty"):
            curve(confidence[:0], correct[:0])
        with pytest.raises(TypeError, match=r"correct must be torch\.bool"):
            curve(confidence, correct.float())
    with pytest.raises(ValueError, match=r"predicted must be in \[0, 2\), got 2"):
        metrics.ap_calibration(confidence, torch.full((4,), 2), correct, 2)
    with pytest.raises(ValueError, match=r"confidence \(4,\) and predicted \(3,\)"):
        metrics.ap_calibration(confidence, torch.zeros(3, dtype=torch.long), correct, 2)
    with pytest.raises(TypeError, match=r"is_ood must be torch\.bool"):
        metrics.confidence_histogram(confidence, correct.int())
    with pytest.raises(ValueError, match="bins must be at least 1, got -1"):
        metrics.calibration_curve(confidence, correct, -1)


def test_curves_of_other_bins_do_not_add() -> None:
    confidence, correct = torch.tensor([0.2, 0.9]), torch.tensor([False, True])
    with pytest.raises(ValueError, match="counts in different bins cannot be added"):
        metrics.calibration_curve(confidence, correct, 15) + metrics.calibration_curve(confidence, correct, 1)
