from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from tradi import metrics


def sample(n: int = 500, classes: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=g, dtype=torch.float64) * 2
    return logits.softmax(1), torch.randint(classes, (n,), generator=g)


def by_hand_ece(confidence: Tensor, correct: Tensor, bins: int) -> float:
    """Guo et al.'s definition, one sample at a time."""
    groups: dict[int, list[tuple[float, bool]]] = {}
    for c, k in zip(confidence.tolist(), correct.tolist(), strict=True):
        index = next(b for b in range(bins) if c <= (b + 1) / bins)
        groups.setdefault(index, []).append((c, k))
    gaps = [abs(np.mean([k for _, k in g]) - np.mean([c for c, _ in g])) * len(g) for g in groups.values()]
    return float(sum(gaps) / len(confidence))


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_scikit_learn(seed: int) -> None:
    probs, labels = sample(seed=seed)
    classes = list(range(probs.shape[1]))
    assert metrics.accuracy(probs, labels) == accuracy_score(labels, probs.argmax(1))
    assert metrics.nll(probs, labels) == pytest.approx(log_loss(labels, probs, labels=classes), rel=1e-12)
    assert metrics.nll_from_log_probs(probs.log(), labels) == pytest.approx(metrics.nll(probs, labels), rel=1e-12)
    expected = brier_score_loss(labels, probs, labels=classes, scale_by_half=False)
    assert metrics.brier(probs, labels) == pytest.approx(expected, rel=1e-12)


def test_pixels_are_samples() -> None:
    probs, labels = sample(60)
    image, target = probs.view(3, 4, 5, 7).movedim(-1, 1), labels.view(3, 4, 5)
    for metric in (metrics.accuracy, metrics.nll, metrics.brier):
        assert metric(image, target) == pytest.approx(metric(probs, labels), rel=1e-12)


def test_probabilities_of_exactly_0_and_1() -> None:
    probs, right, wrong = torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.tensor([1])
    assert metrics.nll(probs, right) == 0
    assert metrics.nll(probs, wrong) == pytest.approx(-math.log(torch.finfo(torch.float32).tiny))
    assert metrics.nll_from_log_probs(probs.log(), right) == 0
    assert metrics.nll_from_log_probs(probs.log(), wrong) == math.inf
    assert (metrics.brier(probs, right), metrics.brier(probs, wrong)) == (0, 2)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_is_guos(bins: int) -> None:
    probs, labels = sample()
    confidence, correct = probs.amax(1), probs.argmax(1) == labels
    assert metrics.ece(confidence, correct, bins) == pytest.approx(by_hand_ece(confidence, correct, bins))
    theirs = multiclass_calibration_error(probs, labels, num_classes=7, n_bins=bins)
    assert metrics.ece(confidence, correct, bins) == pytest.approx(float(theirs), abs=1e-6)


def test_ece_at_the_edges_of_bins() -> None:
    confidence = torch.tensor([0.0, 0.2, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0], dtype=torch.float64)
    correct = torch.tensor([True, False, True, False, True, True, False, True, True])
    assert metrics.ece(confidence, correct, 5) == pytest.approx(by_hand_ece(confidence, correct, 5))


def test_ece_keeps_a_confidence_of_1_in_the_last_bin() -> None:
    confidence, correct = torch.tensor([0.98, 1.0]), torch.tensor([True, False])
    assert metrics.ece(confidence, correct) == pytest.approx(0.99 - 0.5, abs=1e-6)
    probs = torch.stack([confidence, 1 - confidence], 1)
    theirs = multiclass_calibration_error(probs, torch.tensor([0, 1]), num_classes=2, n_bins=15)
    assert float(theirs) == pytest.approx((0.02 + 1) / 2, abs=1e-6), "the reason ECE is not torchmetrics' own"


def test_ece_of_extremes() -> None:
    ones = torch.ones(10)
    assert metrics.ece(ones, torch.ones(10, dtype=torch.bool)) == 0
    assert metrics.ece(ones, torch.zeros(10, dtype=torch.bool)) == 1


def test_joint_ece_counts_ood_as_wrong() -> None:
    confidence, correct = torch.tensor([0.9, 0.9]), torch.tensor([True, True])
    assert metrics.ece(confidence, correct) == pytest.approx(0.1, abs=1e-6)
    joint = metrics.joint_ece(confidence, correct, torch.tensor([[0.9, 0.9]]))
    assert joint == pytest.approx(0.9 - 0.5, abs=1e-6)


def test_float32_rounding_above_one_is_accepted() -> None:
    above = torch.tensor([1.0000002])
    assert metrics.ece(above, torch.tensor([True])) == pytest.approx(0, abs=1e-6)


def test_gradients_are_not_needed() -> None:
    probs, labels = sample(20)
    probs.requires_grad_()
    assert metrics.nll(probs, labels) > 0
    assert metrics.ece(probs.amax(1), probs.argmax(1) == labels) >= 0


GOOD = torch.tensor([[0.5, 0.5], [0.1, 0.9]])


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.nll, metrics.brier])
@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        (GOOD, torch.tensor([0, 1, 1]), r"\(2,\).*\(3,\)"),
        (GOOD, torch.tensor([[0, 1]]), r"\(2,\).*\(1, 2\)"),
        (GOOD, torch.tensor([0, 2]), r"labels must be in \[0, 2\), got 2"),
        (GOOD, torch.tensor([0, -1]), r"labels must be in \[0, 2\), got -1"),
        (GOOD * math.nan, torch.tensor([0, 1]), r"probs must be in \[0, 1\], got nan"),
        (GOOD * 3, torch.tensor([0, 1]), r"probs must be in \[0, 1\], got 1\.5"),
        (GOOD / 2, torch.tensor([0, 1]), r"sum of probs over classes must be 1, got 0\.5"),
        (GOOD[:0], torch.tensor([], dtype=torch.long), "must not be empty"),
        (torch.zeros(2, 0), torch.tensor([0, 1]), "must not be empty"),
        (torch.tensor([0.5, 0.5]), torch.tensor([0, 1]), r"probs must be \(batch, classes, ...\)"),
    ],
)
def test_bad_arguments_are_named(metric: object, probs: Tensor, labels: Tensor, message: str) -> None:
    assert callable(metric)
    with pytest.raises(ValueError, match=message):
        metric(probs, labels)


def test_bad_log_probs_are_named() -> None:
    labels = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"exp\(log_probs\) over classes must be 1, got nan"):
        metrics.nll_from_log_probs(GOOD * math.nan, labels)
    with pytest.raises(ValueError, match=r"exp\(log_probs\) over classes must be 1"):
        metrics.nll_from_log_probs(torch.randn(2, 2), labels)
    with pytest.raises(TypeError, match="labels must be integers"):
        metrics.nll_from_log_probs(GOOD.log(), labels.float())


def test_bad_outcomes_are_named() -> None:
    correct = torch.tensor([True, False])
    with pytest.raises(ValueError, match=r"confidence must be in \[0, 1\], got nan"):
        metrics.ece(torch.tensor([0.5, math.nan]), correct)
    with pytest.raises(ValueError, match=r"confidence \(3,\) and correct \(2,\)"):
        metrics.ece(torch.rand(3), correct)
    with pytest.raises(TypeError, match=r"correct must be torch\.bool, got torch\.int64"):
        metrics.ece(torch.rand(2), correct.long())
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        metrics.ece(torch.rand(2), correct, 0)
    with pytest.raises(ValueError, match="confidence_ood must not be empty"):
        metrics.joint_ece(torch.rand(2), correct, torch.rand(0))


def test_the_papers_15_bins_are_the_default() -> None:
    confidence, correct = torch.rand(500, generator=torch.Generator().manual_seed(0)), torch.arange(500) % 2 == 0
    assert metrics.ece(confidence, correct) == metrics.ece(confidence, correct, bins=15)
    assert metrics.ece(confidence, correct) != metrics.ece(confidence, correct, bins=10)
    assert metrics.joint_ece(confidence, correct, confidence) == metrics.joint_ece(confidence, correct, confidence, 15)
    assert metrics.joint_ece(confidence, correct, confidence) != metrics.joint_ece(confidence, correct, confidence, 10)
    assert len(metrics.calibration_curve(confidence, correct).count) == 15


def test_probabilities_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="sum of probs over classes must be 1"):
        metrics.nll(torch.tensor([[0.5, 0.4]]), torch.tensor([0]))
