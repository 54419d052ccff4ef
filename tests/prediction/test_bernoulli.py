"""Yes or no for each label by itself: what is refused, what is shown, and numbers at the ends of the range."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import tradi

LOGITS = torch.tensor([[[2.0, -1.0], [0.0, 3.0]], [[1.0, -2.0], [-1.0, 3.0]], [[2.0, 0.0], [1.0, 3.0]]])


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(3), r"must be \(members, batch, \.\.\.\), not empty, got shape \(3,\)"),
        (torch.zeros(0, 3), r"not empty, got shape \(0, 3\)"),
        (torch.zeros(3, 0), r"not empty, got shape \(3, 0\)"),
        (torch.tensor([[0.0, math.nan]]), "logits must be finite: a member's weights or the inputs are not"),
        (torch.tensor([[0.0, -math.inf]]), "logits must be finite"),
    ],
)
def test_what_is_no_prediction_is_refused(logits: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tradi.BernoulliPrediction(logits)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(2), r"labels must have shape \(2, 2\), got \(2,\)"),
        (torch.zeros(2, 1), r"labels must have shape \(2, 2\), got \(2, 1\)"),  # would broadcast
        (torch.tensor([[0, 1], [2, 0]]), "labels must be 0 or 1"),
        (torch.tensor([[0.0, 1.0], [0.5, 0.0]]), "labels must be 0 or 1"),
        (torch.tensor([[0.0, 1.0], [math.nan, 0.0]]), "labels must be 0 or 1"),
    ],
)
def test_labels_must_fit_the_prediction(labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tradi.BernoulliPrediction(LOGITS).log_prob(labels)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32], ids=str)
def test_the_log_probability_is_that_of_the_average_answer(dtype: torch.dtype) -> None:
    labels = torch.tensor([[1, 0], [0, 1]])
    present = LOGITS.sigmoid().mean(0)
    expected = torch.where(labels == 1, present, 1 - present).log()
    torch.testing.assert_close(tradi.BernoulliPrediction(LOGITS).log_prob(labels.to(dtype)), expected)


def test_logits_far_out_have_finite_numbers_in_half_precision_too() -> None:
    far = torch.tensor([[60000.0], [60000.0]], dtype=torch.float16)
    prediction = tradi.BernoulliPrediction(far)
    assert prediction.log_prob(torch.zeros(1)).item() == -60000.0
    assert prediction.probs.item() == prediction.confidence.item() == 1.0
    assert prediction.entropy.item() == prediction.mutual_information.item() == 0.0


def test_it_shows_its_size_and_what_it_says_on_average() -> None:
    prediction = tradi.BernoulliPrediction(LOGITS)
    shown = repr(prediction)
    assert shown.startswith("BernoulliPrediction(2 x 2 labels, 3 members; mean probability ")
    assert f"{prediction.probs.mean():.3f}, mean mutual information " in shown
    assert shown.endswith(f"{prediction.mutual_information.mean():.3f})")
