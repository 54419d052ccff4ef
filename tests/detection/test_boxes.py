from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tradi.detection import ellipse, iou, nms


def random_boxes(count: int, seed: int, size: int = 20) -> Tensor:
    """Boxes with corners at whole pixels, so that areas can be counted; some have none."""
    corners = torch.randint(size, (count, 2, 2), generator=torch.Generator().manual_seed(seed)).sort(1).values
    return corners.flatten(1).float()


def pixels(box: Tensor, size: int = 20) -> Tensor:
    x0, y0, x1, y1 = box.int().tolist()
    mask = torch.zeros(size, size, dtype=torch.bool)
    mask[y0:y1, x0:x1] = True
    return mask


def test_iou_is_that_of_counted_pixels() -> None:
    a, b = random_boxes(30, 0), random_boxes(20, 1)
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            shared, whole = (pixels(one) & pixels(other)).sum(), (pixels(one) | pixels(other)).sum()
            assert iou(a, b)[i, j].item() == pytest.approx((shared / whole).item() if whole else 0.0)
    assert iou(a, b[:0]).shape == (30, 0)


def test_nms_drops_what_overlaps_a_better_one_of_its_class() -> None:
    boxes, scores = random_boxes(60, 2), torch.rand(60, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 3
    kept: list[int] = []
    for i in scores.argsort(descending=True).tolist():
        rivals = [j for j in kept if labels[j] == labels[i] and iou(boxes[[i]], boxes[[j]]).item() > 0.3]
        kept += [] if rivals else [i]
    assert nms(boxes, scores, labels, 0.3).tolist() == kept
    assert 20 < len(kept) < 60
    assert nms(boxes[:0], scores[:0], labels[:0]).tolist() == []


def test_the_ellipse_has_the_variance_of_each_direction() -> None:
    turn = math.radians(30)
    axes = torch.tensor([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    covariance = axes.T @ torch.diag(torch.tensor([9.0, 4.0])) @ axes
    half, angle = ellipse(torch.stack([covariance, torch.zeros(2, 2)]), deviations=2)
    torch.testing.assert_close(half, torch.tensor([[6.0, 4.0], [0.0, 0.0]]))
    assert angle[0].item() % 180 == pytest.approx(30, abs=1e-3)


@pytest.mark.parametrize(
    "boxes", [torch.zeros(3), torch.zeros(2, 5), torch.tensor([[5.0, 5, 4, 9]]), torch.full((1, 4), math.nan)]
)
def test_what_is_no_box_is_refused(boxes: Tensor) -> None:
    with pytest.raises(ValueError, match="others must be"):
        iou(torch.zeros(1, 4), boxes)


def test_an_overlap_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap must be above 0"):
        nms(torch.zeros(1, 4), torch.zeros(1), torch.zeros(1), 0)
