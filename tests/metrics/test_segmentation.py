from __future__ import annotations

import pytest
import torch
from sklearn.metrics import accuracy_score, jaccard_score
from torch import Tensor
from torchmetrics.functional.classification import multiclass_jaccard_index

from tradi import metrics


def images(seed: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (4, 12, 9), generator=g)
    noise = torch.randint(classes, labels.shape, generator=g)
    return torch.where(torch.rand(labels.shape, generator=g) < 0.6, labels, noise), labels


@pytest.mark.parametrize("ignore", [-1, 255, 2])
def test_agrees_with_scikit_learn_and_torchmetrics(ignore: int) -> None:
    predicted, labels = images(0)
    if ignore != 2:
        labels[:, :3] = ignore
    found = metrics.confusion(predicted, labels, 5, ignore)
    kept = labels != ignore
    p, y = predicted[kept], labels[kept]
    assert found.pixel_accuracy == pytest.approx(accuracy_score(y, p), abs=1e-6)
    assert found.mean_iou == pytest.approx(jaccard_score(y, p, average="macro"), abs=1e-6)
    torch.testing.assert_close(found.iou.double(), torch.from_numpy(jaccard_score(y, p, average=None)))
    if ignore != 2:
        theirs = multiclass_jaccard_index(predicted, labels, num_classes=5, ignore_index=ignore)
        assert found.mean_iou == pytest.approx(float(theirs), abs=1e-6)


def test_batches_add_up_to_the_whole() -> None:
    predicted, labels = images(1)
    total = metrics.Accumulator(metrics.confusion)
    for p, y in zip(predicted, labels, strict=True):
        total.update(p, y, classes=5)
    whole = metrics.confusion(predicted, labels, 5)
    assert total.compute().matrix.equal(whole.matrix)
    assert int(whole.matrix.sum()) == labels.numel()


def test_rows_are_labels_and_columns_predictions() -> None:
    found = metrics.confusion(torch.tensor([1, 1, 0]), torch.tensor([0, 0, 2]), 3)
    assert found.matrix.tolist() == [[0, 2, 0], [0, 0, 0], [1, 0, 0]]
    assert (found.mean_iou, found.pixel_accuracy) == (0, 0)


def test_a_class_that_never_occurs_is_left_out() -> None:
    found = metrics.confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), 3)
    assert found.iou[2].isnan()
    assert found.mean_iou == pytest.approx(0.5)


def test_counts_beyond_float32_are_kept() -> None:
    many = metrics.Confusion(torch.tensor([[2**25 + 1, 0], [1, 2**25]]))
    assert many.pixel_accuracy == pytest.approx((2**26 + 1) / (2**26 + 2), rel=1e-15)


def test_label_images_of_bytes() -> None:
    predicted, labels = images(2)
    labels[0] = 255
    found = metrics.confusion(predicted.byte(), labels.byte(), 5, ignore_index=255)
    assert found.matrix.equal(metrics.confusion(predicted[1:], labels[1:], 5).matrix)
    with pytest.raises(ValueError, match=r"labels must be in \[0, 5\), got 255"):
        metrics.confusion(predicted.byte(), labels.byte(), 5, ignore_index=-1)
    assert metrics.confusion(labels.byte(), labels.byte(), 300).pixel_accuracy == 1


def test_everything_ignored() -> None:
    found = metrics.confusion(torch.tensor([0, 1]), torch.tensor([-1, -1]), 2)
    with pytest.raises(ValueError, match="no pixel was counted"):
        found.mean_iou
    with pytest.raises(ValueError, match="no pixel was counted"):
        found.pixel_accuracy


def test_bad_arguments_are_named() -> None:
    two = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"predicted \(2,\) and labels \(1,\)"):
        metrics.confusion(two, two[:1], 2)
    with pytest.raises(ValueError, match=r"predicted must be in \[0, 2\), got 2"):
        metrics.confusion(two + 1, two, 2)
    with pytest.raises(ValueError, match=r"labels must be in \[0, 2\), got 255"):
        metrics.confusion(two, two * 255, 2)
    with pytest.raises(ValueError, match="predicted must not be empty"):
        metrics.confusion(two[:0], two[:0], 2)
    with pytest.raises(ValueError, match="classes must be at least 1, got 0"):
        metrics.confusion(two, two, 0)
    with pytest.raises(TypeError, match=r"predicted must be integers, got torch\.float32"):
        metrics.confusion(two.float(), two, 2)
