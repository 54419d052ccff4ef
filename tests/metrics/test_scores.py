from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import entropy

import tradi
from tradi import metrics
from tradi.metrics.types import Classes, Mixture


def prediction() -> tuple[torch.Tensor, Classes]:
    members = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(2)
    mean = members.mean(0)
    total, expected = torch.special.entr(mean).sum(1), torch.special.entr(members).sum(2).mean(0)
    found = SimpleNamespace(
        confidence=mean.amax(1),
        one_minus_confidence=1 - mean.amax(1),
        entropy=total,
        expected_entropy=expected,
        mutual_information=total - expected,
    )
    return members, cast(Classes, found)


def test_scores_of_classes_are_higher_for_less_certain_members() -> None:
    members, found = prediction()
    mean = members.mean(0)
    torch.testing.assert_close(metrics.one_minus_confidence(found), 1 - mean.max(1).values)
    total = torch.from_numpy(entropy(mean.numpy(), axis=1))
    expected = torch.from_numpy(entropy(members.numpy(), axis=2)).mean(0)
    torch.testing.assert_close(metrics.predictive_entropy(found), total)
    torch.testing.assert_close(metrics.expected_entropy(found), expected)
    torch.testing.assert_close(metrics.mutual_information(found), total - expected)


def test_variance_of_mean_is_the_members_disagreement() -> None:
    means = torch.tensor([[0.0, 1.0], [0.0, 3.0]])
    found = cast(Mixture, SimpleNamespace(epistemic=means.var(0, correction=0)))
    assert metrics.variance_of_mean(found).tolist() == [0, 1]


def test_confident_predictions_do_not_tie() -> None:
    logits = torch.tensor([[[30.0, 0.0, 0.0], [40.0, 0.0, 0.0]]])  # 1 - confidence is 0 in float32 for both
    score = metrics.one_minus_confidence(tradi.ClassPrediction(logits))
    torch.testing.assert_close(
        score.double(), 2 * torch.tensor([-30.0, -40.0], dtype=torch.float64).exp(), rtol=1e-5, atol=0
    )


def test_energy_is_the_mean_of_the_members_and_falls_with_larger_logits() -> None:
    logits = torch.randn(4, 6, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = -torch.from_numpy(logsumexp(logits.numpy(), axis=2)).mean(0)
    torch.testing.assert_close(metrics.energy(logits), expected)
    assert (metrics.energy(logits + 5) < metrics.energy(logits)).all()
    with pytest.raises(ValueError, match=r"\(members, batch, classes, ...\), got shape \(6, 3\)"):
        metrics.energy(logits[0, :, :, 0])
