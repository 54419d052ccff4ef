"""Class predictions against independent references in float64, and where naive formulas overflow or underflow."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import special, stats
from torch import Tensor

import tradi
from tests.runs import normal

SHAPES = [(1, 1, 2), (5, 7, 4), (3, 2, 6, 4, 5), (20, 2, 3, 8)]
EPS = torch.finfo(torch.float32).eps


def reference(logits: Tensor) -> dict[str, npt.NDArray[np.float64]]:
    """Everything from the members' probabilities, averaged one by one."""
    z = logits.double().numpy()
    members = special.softmax(z, axis=2)
    probs = sum(members[i] for i in range(len(z))) / len(z)
    expected = np.mean([stats.entropy(members[i], axis=1) for i in range(len(z))], axis=0)
    return {
        "member_log_probs": special.log_softmax(z, axis=2),
        "log_probs": np.log(probs),
        "probs": probs,
        "labels": probs.argmax(1),
        "confidence": probs.max(1),
        "entropy": stats.entropy(probs, axis=1),
        "expected_entropy": expected,
        "mutual_information": stats.entropy(probs, axis=1) - expected,
    }


# float32 keeps 6e-8 of each of the few numbers of order log C that are added; half precision is exact in float32.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2e-6, torch.bfloat16: 2e-6}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_categorical_agrees_with_the_definition(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits = (3 * normal(*shape)).to(dtype)
    prediction, atol = tradi.ClassPrediction(logits), TOLERANCE[dtype]
    for name, expected in reference(logits).items():
        found = getattr(prediction, name)
        assert found.dtype == (torch.int64 if name == "labels" else torch.promote_types(dtype, torch.float32))
        np.testing.assert_allclose(found.double().numpy(), expected, rtol=4 * atol, atol=atol, err_msg=name)
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, shape[2], (shape[1], *shape[3:])))
    picked = np.take_along_axis(np.log(reference(logits)["probs"]), labels.numpy()[:, None], 1)[:, 0]
    np.testing.assert_allclose(prediction.log_prob(labels).double(), picked, rtol=4 * atol, atol=atol)
    mixture = torch.distributions.Categorical(probs=prediction.probs.movedim(1, -1))
    np.testing.assert_allclose(mixture.entropy().double(), prediction.entropy.double(), atol=10 * atol)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bounds_of_uncertainty(shape: tuple[int, ...], scale: float) -> None:
    prediction = tradi.ClassPrediction(scale * normal(*shape, seed=2, dtype=torch.float32))
    slack = 8 * EPS * max(1.0, math.log(shape[2]))
    information, entropy = prediction.mutual_information, prediction.entropy
    assert (information >= 0).all()
    assert (information <= entropy + slack).all()
    assert (entropy <= math.log(shape[2]) + slack).all()
    assert (information <= math.log(shape[0]) + slack).all()  # M members differ by log M at most
    assert ((prediction.probs >= 0) & (prediction.probs <= 1)).all()
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones_like(entropy), rtol=0, atol=slack)
    assert (prediction.confidence >= 1 / shape[2] - slack).all()


def test_mutual_information_is_0_for_members_that_agree_and_log_2_for_two_that_are_sure_of_different_things() -> None:
    one = normal(1, 6, 5, dtype=torch.float32)
    assert tradi.ClassPrediction(one.expand(7, -1, -1)).mutual_information.max() < 8 * EPS * math.log(5)
    sure = torch.tensor([[[1e4, 0.0, 0.0]], [[0.0, 1e4, 0.0]]])
    assert tradi.ClassPrediction(sure).mutual_information.item() == pytest.approx(math.log(2), rel=1e-6)
    assert tradi.ClassPrediction(sure).expected_entropy.item() == 0


def test_the_order_of_members_is_irrelevant() -> None:
    logits = 5 * normal(9, 4, 6, 3, dtype=torch.float32)
    one = tradi.ClassPrediction(logits)
    other = tradi.ClassPrediction(logits[torch.randperm(9, generator=torch.Generator().manual_seed(0))])
    for name in reference(logits):
        if name != "member_log_probs":
            torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-6)


def test_log_prob_is_right_where_probabilities_underflow() -> None:
    logits = torch.tensor([[[0.0, -1000.0, -2e4]], [[0.0, -1010.0, -1e4]]])
    prediction = tradi.ClassPrediction(logits)
    assert prediction.probs[0, 1] == 0
    # The larger member decides: log((e^-1000 + e^-1010) / 2), log((e^-2e4 + e^-1e4) / 2).
    expected = torch.tensor([[0.0, -1000 + math.log1p(math.exp(-10)) - math.log(2), -1e4 - math.log(2)]])
    torch.testing.assert_close(prediction.log_probs, expected, rtol=EPS, atol=0)
    assert prediction.entropy.item() == 0
    for k in range(3):
        assert prediction.log_prob(torch.tensor([k])).item() == prediction.log_probs[0, k].item()


@pytest.mark.parametrize(
    ("dtype", "top"),
    [(d, t) for d in (torch.float32, torch.float64, torch.bfloat16) for t in (1e4, 3e4, 1e38)]
    + [(torch.float16, 1e4), (torch.float16, 65504.0)],
    ids=str,
)
def test_extreme_logits(dtype: torch.dtype, top: float) -> None:
    row = torch.tensor([top, -top, top, 0.0], dtype=dtype)
    prediction = tradi.ClassPrediction(row.expand(3, 2, 4))
    half = math.log(2)
    big = row[0].double().item()
    expected = torch.tensor([-half, -2 * big - half, -half, -big - half], dtype=torch.float64)
    torch.testing.assert_close(prediction.log_probs[1].double(), expected, rtol=4 * EPS, atol=0)
    torch.testing.assert_close(
        prediction.probs[0].double(), torch.tensor([0.5, 0, 0.5, 0]).double(), rtol=4 * EPS, atol=0
    )
    assert prediction.entropy[0].item() == pytest.approx(half, rel=1e-6)
    assert prediction.log_prob(torch.tensor([1, 3])).isfinite().all()


def test_masked_classes_have_probability_0_and_disturb_nothing() -> None:
    logits = normal(4, 3, 5, dtype=torch.float32)
    masked = torch.cat([logits, torch.full((4, 3, 2), -math.inf)], 2)
    one, other = tradi.ClassPrediction(logits), tradi.ClassPrediction(masked)
    for name in ("entropy", "expected_entropy", "mutual_information", "confidence", "labels"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))
    torch.testing.assert_close(other.probs[:, :5], one.probs)
    assert (other.probs[:, 5:] == 0).all()
    assert (other.log_probs[:, 5:] == -math.inf).all()
    part = logits.clone()
    part[0, :, 2] = -math.inf  # by one member alone: the others still count
    np.testing.assert_allclose(tradi.ClassPrediction(part).probs, reference(part)["probs"], rtol=1e-5)


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros(3, 4), r"logits must be \(members, batch, classes, \.\.\.\), got shape \(3, 4\).*unsqueeze"),
        (torch.zeros(0, 2, 3), r"logits must not be empty, got shape \(0, 2, 3\)"),
        (torch.zeros(2, 0, 3), r"logits must not be empty"),
        (torch.zeros(2, 3, 0), r"logits must not be empty"),
        (torch.tensor([[[0.0, math.nan]]]), r"logits contain NaN"),
        (torch.tensor([[[0.0, math.inf]]]), r"logits.*infinite"),
        (torch.tensor([[[-math.inf, -math.inf]]]), r"logits.*every class"),
        (torch.tensor([[[0.0, 1e5]]]).half(), r"logits.*infinite"),
    ],
)
def test_categorical_refuses(logits: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tradi.ClassPrediction(logits)


@pytest.mark.parametrize("shape", [(3, 1), (4,), (3, 5)], ids=str)
def test_labels_must_fit_the_prediction(shape: tuple[int, ...]) -> None:
    prediction = tradi.ClassPrediction(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"labels must have shape \(3,\), got"):
        prediction.log_prob(torch.zeros(shape, dtype=torch.int64))


def test_one_logit_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"two classes or more.*BernoulliPrediction"):
        tradi.ClassPrediction(torch.zeros(2, 3, 1))


@pytest.mark.parametrize("label", [-100, -1, 4])
def test_labels_out_of_range_are_refused(label: int) -> None:
    prediction = tradi.ClassPrediction(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="whole numbers from 0 to 3"):
        prediction.log_prob(torch.tensor([0, label, 1]))
    with pytest.raises(ValueError, match="whole numbers"):
        prediction.log_prob(torch.tensor([0.0, 1.0, 1.5]))


def test_integer_labels_of_any_width_do() -> None:
    prediction = tradi.ClassPrediction(normal(2, 3, 4))
    expected = prediction.log_prob(torch.tensor([0, 3, 1]))
    for dtype in (torch.uint8, torch.int32):
        assert torch.equal(prediction.log_prob(torch.tensor([0, 3, 1], dtype=dtype)), expected)
