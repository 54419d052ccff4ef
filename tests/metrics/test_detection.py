from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.metrics import average_precision_score
from torch import Tensor
from torchmetrics.detection import _mean_ap

from tests.detection.test_boxes import random_boxes
from tradi import metrics
from tradi.detection import iou
from tradi.metrics import Detected, match_boxes

CLASSES = 3
Image = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # boxes, scores, labels, true boxes, true labels


def image(seed: int) -> Image:
    """True boxes, and detections near them of mostly their class, and elsewhere."""
    g = torch.Generator().manual_seed(seed)
    true = random_boxes(6, seed, size=120)
    true[:, 2:] += 15
    labels = torch.randint(CLASSES, (6,), generator=g)
    near = true.repeat(2, 1) + 3 * torch.randn(12, 4, generator=g)
    boxes = torch.cat([near, random_boxes(4, seed + 1, size=120) + torch.tensor([0.0, 0, 9, 9])])
    noise = torch.randint(CLASSES, (16,), generator=g)
    said = torch.where(torch.rand(16, generator=g) < 0.8, torch.cat([labels, labels, noise[:4]]), noise)
    return boxes, torch.rand(16, generator=g), said, true, labels


def detected(images: list[Image], overlap: float) -> Detected:
    total = metrics.Accumulator(_one)
    for one in images:
        total.update(one, overlap)
    return total.compute()


def _one(one: Image, overlap: float) -> Detected:
    _, scores, labels, _, true_labels = one
    return Detected(scores, labels, match_boxes(*one, overlap) >= 0, torch.bincount(true_labels, minlength=CLASSES))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    """torchmetrics' own implementation, in plain torch, given the three functions that it takes from torchvision."""

    def area(boxes: Tensor) -> Tensor:
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

    def converted(boxes: Tensor, in_fmt: str, out_fmt: str) -> Tensor:
        assert in_fmt == out_fmt == "xyxy"
        return boxes

    ops = ModuleType("torchvision.ops")
    ops.__dict__.update(box_area=area, box_iou=iou, box_convert=converted)
    coco = ModuleType("pycocotools")
    coco.__dict__["mask"] = ModuleType("pycocotools.mask")
    for module in (ops, ModuleType("torchvision"), coco, coco.__dict__["mask"]):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("_TORCHVISION_AVAILABLE", "_PYCOCOTOOLS_AVAILABLE"):
        monkeypatch.setattr(_mean_ap, name, True)
    return _mean_ap.MeanAveragePrecision


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("overlap", [0.5, 0.75])
def test_average_precision_is_that_of_torchmetrics(reference: Any, overlap: float) -> None:
    images = [image(seed) for seed in range(12)]
    theirs = reference(iou_thresholds=[overlap], class_metrics=True)
    theirs.update(
        [{"boxes": one[0], "scores": one[1], "labels": one[2]} for one in images],
        [{"boxes": one[3], "labels": one[4]} for one in images],
    )
    expected = theirs.compute()
    found = detected(images, overlap)
    torch.testing.assert_close(found.average_precision.float(), expected["map_per_class"], atol=1e-4, rtol=0)
    assert found.mean_average_precision == pytest.approx(float(expected["map"]), abs=1e-4)
    assert 0.1 < found.mean_average_precision < 0.9


def test_matches_are_those_of_the_rule_by_hand() -> None:
    for seed in range(8):
        boxes, scores, labels, true, true_labels = image(seed)
        taken: dict[int, int] = {}
        for i in scores.argsort(descending=True).tolist():
            overlaps = {
                j: iou(boxes[[i]], true[[j]]).item()
                for j in range(len(true))
                if j not in taken and true_labels[j] == labels[i]
            }
            best = max(overlaps, key=overlaps.__getitem__, default=None)
            if best is not None and overlaps[best] >= 0.5:
                taken[best] = i
        expected = torch.full((len(boxes),), -1)
        for j, i in taken.items():
            expected[i] = j
        assert torch.equal(match_boxes(boxes, scores, labels, true, true_labels), expected)


def test_average_precision_is_the_area_under_the_envelope() -> None:
    """Where nothing is missed and precision only falls, it is the curve itself, whose area scikit-learn has."""
    scores = torch.linspace(0.99, 0.01, 4000, dtype=torch.float64)
    correct = torch.rand(4000, generator=torch.Generator().manual_seed(0)) < scores**2
    found = Detected(scores, torch.zeros(4000, dtype=torch.long), correct, correct.sum()[None])
    assert found.mean_average_precision == pytest.approx(average_precision_score(correct, scores), abs=0.01)
    assert found.recall == 1


def test_averages_leave_out_classes_that_are_not_there_and_count_what_is_missed() -> None:
    scores, labels = torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0, 0, 2])
    found = Detected(scores, labels, torch.tensor([True, False, False]), torch.tensor([2, 1, 0]))
    expected = torch.tensor([51 / 101, 0, math.nan], dtype=torch.float64)  # half of the recall at precision 1
    torch.testing.assert_close(found.average_precision, expected, equal_nan=True)
    assert found.mean_average_precision == pytest.approx(51 / 202)
    assert found.recall == pytest.approx(1 / 3)
    assert found.ece == pytest.approx((0.1 + 0.8 + 0.7) / 3)
    with pytest.raises(ValueError, match="no true object"):
        _ = Detected(scores, labels, torch.zeros(3, dtype=torch.bool), torch.zeros(3)).mean_average_precision


def test_images_without_objects_or_detections() -> None:
    none, no_labels = torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)
    box, score, label = torch.tensor([[0.0, 0, 9, 9]]), torch.tensor([0.5]), torch.tensor([1])
    assert match_boxes(box, score, label, none, no_labels).tolist() == [-1]
    assert match_boxes(none, score[:0], no_labels, box, label).tolist() == []
    empty = Detected(score[:0], no_labels, no_labels.bool(), torch.tensor([0, 1, 0]))
    assert empty.mean_average_precision == 0


def pairs(seed: int, size: int = 400, noise: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    boxes = random_boxes(size, seed, 100).double() + torch.tensor([0.0, 0, 30, 60])
    root = torch.randn(size, 4, 4, generator=g, dtype=torch.float64)
    covariance = root @ root.mT / 4
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    spread = torch.linalg.cholesky(covariance + torch.diag_embed((noise * sides) ** 2))
    z = torch.randn(size, 4, 1, generator=g, dtype=torch.float64)
    return boxes, covariance, boxes + (spread @ z)[..., 0]


def test_the_nll_of_boxes_is_scipys() -> None:
    boxes, covariance, truth = pairs(0, size=20)
    expected = []
    for b, c, t in zip(boxes.numpy(), covariance.numpy(), truth.numpy(), strict=True):
        w, h = b[2] - b[0], b[3] - b[1]
        noise = np.diag((0.07 * np.array([w, h, w, h])) ** 2)
        expected.append(-multivariate_normal(b, c + noise).logpdf(t))
    assert metrics.box_nll(boxes, covariance, truth, 0.07) == pytest.approx(np.mean(expected))


def test_the_noise_that_made_the_data_is_found_beside_the_members_covariance() -> None:
    boxes, covariance, truth = pairs(1)
    noise = metrics.fit_box_noise(boxes, covariance, truth)
    assert noise == pytest.approx(0.1, rel=4 / math.sqrt(2 * truth.numel()))  # four standard errors of a deviation
    best = metrics.box_nll(boxes, covariance, truth, noise)
    assert all(best <= metrics.box_nll(boxes, covariance, truth, noise * factor) for factor in (0.99, 1.01))


def test_mistakes_are_named() -> None:
    boxes, covariance, truth = pairs(2, size=3)
    with pytest.raises(ValueError, match="noise must be positive"):
        metrics.box_nll(boxes, covariance, truth, 0)
    with pytest.raises(ValueError, match=r"covariance must be \(3, 4, 4\)"):
        metrics.box_nll(boxes, covariance[:, :2], truth, 0.1)
    with pytest.raises(ValueError, match="must not be empty"):
        metrics.fit_box_noise(boxes[:0], covariance[:0], truth[:0])
    with pytest.raises(ValueError, match="vectors of one length"):
        Detected(torch.ones(2), torch.zeros(3), torch.ones(2, dtype=torch.bool), torch.ones(1))
    with pytest.raises(TypeError, match=r"torch\.bool"):
        Detected(torch.ones(1), torch.zeros(1, dtype=torch.long), torch.ones(1), torch.ones(1))
