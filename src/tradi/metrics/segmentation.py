"""Metrics of semantic segmentation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tradi.extras import require
from tradi.metrics import checks


@dataclass(frozen=True, eq=False)
class Confusion:
    """Pixels counted by true class (row) and predicted class (column); batches can be added.

    Args:
        matrix: (classes, classes), whole numbers.
    """

    matrix: Tensor

    @property
    def iou(self) -> Tensor:
        r"""Intersection over union of each class, $\frac{TP}{TP + FP + FN}$; NaN if it never occurs."""
        hits = self.matrix.diagonal().double()
        return hits / (self.matrix.sum(0) + self.matrix.sum(1) - hits)

    @property
    def mean_iou(self) -> float:
        """Mean IoU over the classes that occur, as label or as prediction."""
        self._check()
        return float(self.iou.nanmean())

    @property
    def pixel_accuracy(self) -> float:
        """Share of correctly classified pixels."""
        self._check()
        return float(self.matrix.diagonal().sum().double() / self.matrix.sum())

    def _check(self) -> None:
        if not self.matrix.any():
            raise ValueError("no pixel was counted: every label was ignore_index, so check labels and ignore_index")

    def __add__(self, other: Confusion) -> Confusion:
        checks.one_shape(matrix=self.matrix, other_matrix=other.matrix)
        return Confusion(self.matrix + other.matrix)


def confusion(predicted: Tensor, labels: Tensor, classes: int, ignore_index: int = -1) -> Confusion:
    """Count the pixels of a batch.

    Args:
        predicted: classes, any shape.
        labels: classes of that shape, or `ignore_index` where the pixel does not count.
        classes: number of classes.
        ignore_index: the label of pixels that do not count; one of the classes, or any other integer.

    Returns:
        counts, which can be added to those of other batches.

    Raises:
        ValueError: if shapes differ, or a class is out of range.
        TypeError: if classes are not integers.
    """
    checks.at_least_one(classes=classes)
    checks.one_shape(predicted=predicted, labels=labels)
    # In uint8, the type of most label images, -1 would be compared as 255.
    counted = labels.long() != ignore_index
    predicted, labels = predicted[counted], labels[counted]
    checks.classes(classes, predicted=predicted, labels=labels)
    functional = require("torchmetrics.functional.classification", "metrics")
    return Confusion(functional.multiclass_confusion_matrix(predicted, labels, classes, validate_args=False))
