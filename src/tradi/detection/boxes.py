"""Boxes, (x0, y0, x1, y1) in pixels: how far they overlap, and which of them are one too many."""

from __future__ import annotations

import torch
from torch import Tensor


def check_boxes(name: str, boxes: Tensor) -> None:
    """Raise for what are no boxes.

    Raises:
        ValueError: if the shape is not (boxes, 4), a number is not finite, or a box ends before it begins.
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{name} must be (boxes, 4), got shape {tuple(boxes.shape)}")
    bad = ~boxes.isfinite().all(1) | (boxes[:, 2:] < boxes[:, :2]).any(1)
    if bad.any():
        raise ValueError(
            f"{name} must be finite (x0, y0, x1, y1) with x0 <= x1 and y0 <= y1, got {boxes[bad][0].tolist()}: boxes "
            "of centre and size, or of corner and size, must be converted"
        )


def check_overlap(overlap: float) -> None:
    """Raise for what is no IoU to compare with.

    Raises:
        ValueError: if it is not above 0 and at most 1.
    """
    if not 0 < overlap <= 1:
        raise ValueError(f"overlap must be above 0 and at most 1, got {overlap}")


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of every box with every other one, (boxes, others); 0 where neither has an area.

    Args:
        boxes: (boxes, 4).
        others: (others, 4).

    Returns:
        numbers from 0 to 1, (boxes, others).

    Raises:
        ValueError: if they are no boxes.
    """
    check_boxes("boxes", boxes)
    check_boxes("others", others)
    a, b = boxes[:, None], others[None]
    sides = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    shared = sides.clamp_min(0).prod(2)
    whole = (a[..., 2:] - a[..., :2]).prod(2) + (b[..., 2:] - b[..., :2]).prod(2) - shared
    return torch.where(whole > 0, shared / whole, 0.0)


def nms(boxes: Tensor, scores: Tensor, labels: Tensor, overlap: float = 0.5) -> Tensor:
    """Which boxes are left when each drops those of its class that score less and overlap it by more.

    Args:
        boxes: (boxes, 4).
        scores: (boxes,).
        labels: whole numbers, (boxes,): boxes of two classes never drop each other.
        overlap: the largest IoU of two boxes that both stay.

    Returns:
        their numbers, the highest score first.

    Raises:
        ValueError: if they are no boxes, or the overlap is out of range.
    """
    check_overlap(overlap)
    order = scores.argsort(descending=True, stable=True)
    rivals = (iou(boxes[order], boxes[order]) > overlap) & (labels[order, None] == labels[order])
    stays = torch.ones_like(order, dtype=torch.bool)
    for i in range(len(order)):
        if stays[i]:
            stays[i + 1 :] &= ~rivals[i, i + 1 :]
    return order[stays]


def ellipse(covariance: Tensor, deviations: float = 2.0) -> tuple[Tensor, Tensor]:
    """The ellipse of a point whose place is uncertain, for drawing.

    The corners of an object are such points: `objects.covariance[:, :2, :2]` is that of (x0, y0), and
    `objects.covariance[:, 2:, 2:]` that of (x1, y1).

    Args:
        covariance: of x and y, (..., 2, 2).
        deviations: standard deviations that a half axis is long; 2 hold 86% of a Gaussian.

    Returns:
        both half axes, the longer one first, (..., 2), and the angle of that one from the x axis towards y, in degrees.
    """
    values, vectors = torch.linalg.eigh(covariance)
    axis = vectors[..., 1]
    return deviations * values.clamp_min(0).flip(-1).sqrt(), torch.atan2(axis[..., 1], axis[..., 0]).rad2deg()
