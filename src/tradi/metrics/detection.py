"""Metrics of object detection; boxes are (x0, y0, x1, y1) in pixels, as in `tradi.detection`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tradi.detection.boxes import check_boxes, check_overlap, iou
from tradi.metrics import checks
from tradi.metrics.classification import ece

RECALLS = 101  # at which precision is averaged, evenly spaced from 0 to 1: COCO's
QUIETEST, LOUDEST = 1e-3, 1.0  # standard deviation of a box's side, as a share of its width or height


def match_boxes(
    boxes: Tensor, scores: Tensor, labels: Tensor, true_boxes: Tensor, true_labels: Tensor, overlap: float = 0.5
) -> Tensor:
    """Which true object of an image each detection finds, by COCO's rule.

    Detections choose in the order of their scores: each takes the true object of its class that it overlaps most among
    those not yet taken, if the IoU is `overlap` or more.

    Args:
        boxes: of detections, (detections, 4).
        scores: (detections,).
        labels: classes, (detections,); the same number everywhere matches whatever the class.
        true_boxes: (objects, 4).
        true_labels: (objects,).
        overlap: the smallest IoU.

    Returns:
        numbers of true objects, -1 for none, (detections,).

    Raises:
        ValueError: if they are no boxes, or the overlap is out of range.
    """
    check_overlap(overlap)
    found = torch.full((len(boxes),), -1, device=boxes.device)
    near = iou(boxes, true_boxes).masked_fill(labels[:, None] != true_labels, -1.0)
    for i in scores.argsort(descending=True, stable=True).tolist() if len(true_boxes) else []:
        best, place = near[i].max(0)
        if best >= overlap:
            found[i] = place
            near[:, place] = -1.0
    return found


@dataclass(frozen=True, eq=False)
class Detected:
    """Detections of some images, right or wrong; those of other images can be added.

    Args:
        scores: in [0, 1], (detections,).
        labels: classes from 0, (detections,).
        correct: torch.bool: whether a detection finds a true object, (detections,).
        objects: how many true objects there are of each class, (classes,).

    Raises:
        ValueError: if shapes differ, or a score or label is out of range.
        TypeError: if labels are not whole numbers, or `correct` is not torch.bool.
    """

    scores: Tensor
    labels: Tensor
    correct: Tensor
    objects: Tensor

    def __post_init__(self) -> None:
        if not self.scores.shape == self.labels.shape == self.correct.shape or self.scores.ndim != 1:
            shapes = [tuple(values.shape) for values in (self.scores, self.labels, self.correct)]
            raise ValueError(f"scores, labels and correct must be vectors of one length, got {shapes}")
        checks.unit_interval(scores=self.scores)
        checks.boolean(correct=self.correct)
        checks.classes(len(self.objects), labels=self.labels)

    def __add__(self, other: Detected) -> Detected:
        checks.one_shape(objects=self.objects, other_objects=other.objects)
        return Detected(
            torch.cat([self.scores, other.scores]),
            torch.cat([self.labels, other.labels]),
            torch.cat([self.correct, other.correct]),
            self.objects + other.objects,
        )

    @property
    def average_precision(self) -> Tensor:
        r"""Average precision of each class, (classes,); NaN for a class without true objects.

        $$ AP = \frac1{101} \sum_{r \in \{0, 0.01, \dots, 1\}} \max_{\tilde r \ge r} p(\tilde r) $$

        p is the precision of the detections whose score suffices for a recall, 0 for one that is never reached.
        """
        return torch.stack([self._of_class(label) for label in range(len(self.objects))])

    @property
    def mean_average_precision(self) -> float:
        """Mean over the classes that have true objects.

        Raises:
            ValueError: if there is none.
        """
        if not self.objects.any():
            raise ValueError("there is no true object of any class: average precision is not defined")
        return float(self.average_precision.nanmean())

    @property
    def recall(self) -> float:
        """Share of true objects that are found; NaN if there is none."""
        return float(self.correct.sum() / self.objects.sum())

    @property
    def ece(self) -> float:
        """ECE of the scores, over 15 bins: what the share of detections that are right is off from their mean score.

        It depends on the lowest score that a detector lets pass, so compare at the same one.

        Raises:
            ValueError: if nothing was detected.
        """
        return ece(self.scores, self.correct)

    def _of_class(self, label: int) -> Tensor:
        mine = self.labels == label
        order = self.scores[mine].argsort(descending=True, stable=True)
        right = self.correct[mine][order].double().cumsum(0)
        precision = right / torch.arange(1, len(right) + 1, device=right.device)
        envelope = precision.flip(0).cummax(0).values.flip(0)  # the best at this recall or a higher one
        recall = right / self.objects[label]
        wanted = torch.linspace(0, 1, RECALLS, dtype=torch.float64, device=right.device)
        reached = torch.searchsorted(recall, wanted)
        padded = torch.cat([envelope, envelope.new_zeros(1)])
        return padded[reached].mean() if self.objects[label] else torch.full_like(wanted[0], math.nan)


def box_nll(boxes: Tensor, covariance: Tensor, truth: Tensor, noise: float) -> float:
    r"""Negative log-likelihood of true boxes in nats a box, under a Gaussian around each predicted one.

    $$ \frac1n \sum_i -\log \mathcal N\big(t_i; b_i, C_i + \mathrm{diag}(\nu w_i, \nu h_i, \nu w_i, \nu h_i)^2\big) $$

    w and h are the predicted width and height, at least 1 pixel. Only boxes that find an object have a true one, so two
    methods are compared on those that each of them finds: look at recall too.

    Args:
        boxes: predicted, (boxes, 4).
        covariance: of the members, (boxes, 4, 4); 0 for a single network.
        truth: true boxes, (boxes, 4).
        noise: $\nu$, as `fit_box_noise` estimates it.

    Returns:
        nats per box; lower is better.

    Raises:
        ValueError: if shapes differ, there are no boxes, or the noise is not positive.
    """
    _check_pairs(boxes, covariance, truth)
    if not 0 < noise < math.inf:
        raise ValueError(f"noise must be positive and finite, got {noise}")
    return _box_nll(boxes, covariance, truth, noise)


def fit_box_noise(boxes: Tensor, covariance: Tensor, truth: Tensor) -> float:
    """The noise between 0.001 and 1 that gives `box_nll` its lowest value on validation data.

    Args:
        boxes: predicted, (boxes, 4).
        covariance: of the members, (boxes, 4, 4).
        truth: true boxes, (boxes, 4).

    Returns:
        the noise, as a share of a box's sides.

    Raises:
        ValueError: if shapes differ, or there are no boxes.
    """
    _check_pairs(boxes, covariance, truth)
    low, high = math.log(QUIETEST), math.log(LOUDEST)
    for _ in range(6):  # to a relative 1e-5; there may be several minima, so the first grid is over all of it
        grid = torch.linspace(low, high, 33, dtype=torch.float64).tolist()
        losses = [_box_nll(boxes, covariance, truth, math.exp(point)) for point in grid]
        best = losses.index(min(losses))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return math.exp(grid[best])


def _box_nll(boxes: Tensor, covariance: Tensor, truth: Tensor, noise: float) -> float:
    size = (boxes[:, 2:] - boxes[:, :2]).double().clamp_min(1).repeat(1, 2)
    spread = covariance.double() + torch.diag_embed((noise * size).square())
    density = torch.distributions.MultivariateNormal(boxes.double(), spread, validate_args=False)
    return -float(density.log_prob(truth.double()).mean())


def _check_pairs(boxes: Tensor, covariance: Tensor, truth: Tensor) -> None:
    checks.one_shape(boxes=boxes, truth=truth)
    check_boxes("boxes", boxes)
    check_boxes("truth", truth)
    if covariance.shape != (len(boxes), 4, 4):
        raise ValueError(f"covariance must be ({len(boxes)}, 4, 4), got shape {tuple(covariance.shape)}")
    checks.finite(covariance=covariance)
