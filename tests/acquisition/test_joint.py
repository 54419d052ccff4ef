"""Greedy batches against joint information that is added up over all configurations of labels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tradi import BernoulliPrediction, ClassPrediction, GaussianMixture
from tradi.acquisition import BatchBALD, greedy_classes, greedy_numbers


def probabilities(members: int, samples: int, classes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(members, samples, classes, generator=generator, dtype=torch.float64)).softmax(2)


def joint_information(probs: Tensor, batch: tuple[int, ...]) -> float:
    """I[labels of the batch; member], configuration by configuration."""
    members, _, classes = probs.shape
    of_labels = of_members = 0.0
    for labels in itertools.product(range(classes), repeat=len(batch)):
        each = [math.prod(float(probs[m, i, y]) for i, y in zip(batch, labels, strict=True)) for m in range(members)]
        mixed = sum(each) / members
        of_labels -= mixed * math.log(mixed)
        of_members -= sum(p * math.log(p) for p in each) / members
    return of_labels - of_members


@pytest.mark.parametrize(("members", "classes"), [(3, 2), (4, 3)])
def test_gains_add_up_to_the_joint_information_and_each_choice_is_the_best(members: int, classes: int) -> None:
    probs = probabilities(members, 6, classes)
    chosen = greedy_classes(probs, 4, configurations=classes**3)
    batch = tuple(chosen.places.tolist())
    for size in range(1, 5):
        reached = joint_information(probs, batch[:size])
        assert chosen.gains[:size].sum().item() == pytest.approx(reached, abs=1e-12)
        others = (i for i in range(6) if i not in batch[: size - 1])
        assert reached == pytest.approx(max(joint_information(probs, (*batch[: size - 1], i)) for i in others))


def test_drawn_configurations_agree_with_all_of_them_within_their_error() -> None:
    probs = probabilities(5, 5, 3)
    exact = greedy_classes(probs, 5, configurations=3**5)
    runs = torch.stack([greedy_classes(probs, 5, configurations=80, seed=seed).gains.sum() for seed in range(60)])
    # Each run chooses by what it has drawn, so its batch of all five is the same, and the sum estimates one number.
    error = runs.std() / math.sqrt(len(runs))
    assert abs(runs.mean() - exact.gains.sum()) < 4 * error
    assert error > 0
    assert torch.equal(greedy_classes(probs, 5, 80, seed=3).places, greedy_classes(probs, 5, 80, seed=3).places)


def test_certain_members_are_told_apart_by_one_label_each_and_no_batch_tells_more_than_their_number() -> None:
    certain = torch.zeros(4, 6, 2, dtype=torch.float64)
    for sample in range(6):  # 0 and 1 split members in the same halves, 2 and 3 in the other
        certain[:, sample] = torch.eye(2, dtype=torch.float64)[[0, 0, 1, 1] if sample < 2 else [0, 1, 0, 1]]
    chosen = greedy_classes(certain, 4)
    assert {place // 2 for place in chosen.places[:2].tolist()} != {0}
    assert chosen.gains.tolist() == pytest.approx([math.log(2), math.log(2), 0, 0], abs=1e-12)
    many = greedy_classes(probabilities(4, 50, 5), 50, configurations=100)
    assert many.gains.sum() <= math.log(4) + 0.1  # it is an estimate
    assert sorted(many.places.tolist()) == list(range(50))


def gaussian_information(means: Tensor, variances: Tensor, batch: tuple[int, ...]) -> float:
    rows = means[:, list(batch)].reshape(len(means), -1).numpy()
    noise = variances[:, list(batch)].mean(0).flatten().numpy()
    covariance = np.atleast_2d(np.cov(rows, rowvar=False, bias=True)) + np.diag(noise)
    return float(np.linalg.slogdet(covariance)[1] - np.log(noise).sum()) / 2


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 1), (5, 6, 2)])
def test_numbers_gain_the_information_of_joint_gaussians(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(shape, generator=generator, dtype=torch.float64)
    variances = 0.1 + torch.rand(shape, generator=generator, dtype=torch.float64)
    chosen = greedy_numbers(means, variances, 4)
    batch = tuple(chosen.places.tolist())
    for size in range(1, 5):
        reached = gaussian_information(means, variances, batch[:size])
        assert chosen.gains[:size].sum().item() == pytest.approx(reached)
        others = (i for i in range(6) if i not in batch[: size - 1])
        options = (gaussian_information(means, variances, (*batch[: size - 1], i)) for i in others)
        assert reached == pytest.approx(max(options))


def test_the_choice_is_that_of_the_predictions_kind() -> None:
    probs = probabilities(4, 6, 3)
    of_classes = BatchBALD(configurations=9).choose(ClassPrediction(probs.log()), 3)
    torch.testing.assert_close(of_classes.gains, greedy_classes(probs, 3, 9).gains)
    means, variances = torch.randn(4, 6, 1), torch.rand(4, 6, 1) + 0.1
    assert torch.equal(
        BatchBALD().choose(GaussianMixture(means, variances), 3).places, greedy_numbers(means, variances, 3).places
    )
    for other in (BernoulliPrediction(torch.randn(4, 6)), ClassPrediction(torch.randn(4, 6, 3, 2))):
        with pytest.raises(TypeError, match="one class a sample"):
            BatchBALD().choose(other, 3)


@pytest.mark.parametrize("option", ["candidates", "configurations"])
def test_options_are_positive(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        BatchBALD(**{option: 0})
