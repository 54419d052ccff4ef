"""What is measured of an ensemble's predictions for all pixels of many images, in bounded memory.

Members are run one after another over a part of the images, and of each pixel only the mean of their probabilities and
of their entropies is kept; the next part begins once this one is counted. Numbers are over all pixels of all images
together, where not said otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tradi import metrics
from tradi.bench.measured import Curves, Measured, Numbers, Pictures, as_lists
from tradi.bench.segmentation import SegmentationProblem
from tradi.ensemble.ensemble import Ensemble
from tradi.metrics.ood import OODMetrics
from tradi.prediction.classes import ClassPrediction
from tradi.progress import track

FOUND = ("auroc", "aupr_out", "fpr95")
THRESHOLDS = 100  # of the curve of accuracy against confidence


def measure_segmentation(ensemble: Ensemble, scenes: SegmentationProblem) -> Measured:
    """All metrics of segmentation, on test images alone, and pictures of a few of them."""
    counts = Counts(scenes.source.names, several=len(ensemble) > 1)
    pictures: dict[str, list[Any]] = {"labels": [], "confidence": []}
    image, seconds = 0, 0.0
    chunks = list(scenes.test_chunks())
    for chunk in track(chunks, "evaluating", len(chunks)):
        started = time.perf_counter()
        predicted = list(pooled(ensemble, chunk))
        seconds += time.perf_counter() - started
        for prediction, expected_entropy, target in predicted:
            counts.update(prediction, expected_entropy, *target)
            for place in range(len(target[0])):
                if image + place in scenes.shown:
                    small = slice(None, None, scenes.step)
                    pictures["labels"].append(_bytes(prediction.labels[place, small, small]))
                    pictures["confidence"].append(_bytes((255 * prediction.confidence[place, small, small]).round()))
            image += len(target[0])
    arrays: Pictures = {
        "index": np.array(scenes.shown),
        "zoom": np.array([scenes.zoom(index) for index in scenes.shown]),
        "names": np.array(list(scenes.colours)),
        "colours": np.array(list(scenes.colours.values()), np.uint8),
    }
    return Measured(*counts.compute(), seconds, arrays | {name: np.stack(views) for name, views in pictures.items()})


@torch.no_grad()
def pooled(ensemble: Ensemble, images: Iterable[Any]) -> Iterator[tuple[ClassPrediction, Tensor, Any]]:
    """For every batch the members' mean prediction, the mean of their entropies, and the target.

    The mean prediction comes as that of an ensemble of one; its `mutual_information` is of no use.
    """
    means: list[Tensor] = []
    entropies: list[Tensor] = []
    targets: list[Any] = []
    for i, number, logits, target in ensemble.iterate(images):
        member = ClassPrediction(logits[None])
        if i == 0:
            means.append(member.log_probs)
            entropies.append(member.entropy)
            targets.append(target)
        else:
            torch.logaddexp(means[number], member.log_probs, out=means[number])
            entropies[number] += member.entropy
    size = len(ensemble)
    for mean, entropy, target in zip(means, entropies, targets, strict=True):
        yield ClassPrediction((mean - math.log(size))[None]), entropy / size, target


class Counts:
    """What is counted, batch by batch, of the pixels that are of a class or OOD.

    Args:
        names: of the classes.
        several: whether there are members that could disagree.
    """

    def __init__(self, names: tuple[str, ...], several: bool) -> None:
        self.names = names
        self.scores = ("confidence", "entropy", "information") if several else ("confidence", "entropy")
        self.pooled = {score: metrics.Accumulator(metrics.score_histogram) for score in self.scores}
        self.by_image = {score: metrics.Accumulator(metrics.image_average) for score in self.scores}
        self.confusion = metrics.Accumulator(metrics.confusion)
        self.log_loss = metrics.Accumulator(_sum_and_count)
        self.inside = metrics.Accumulator(metrics.calibration_curve)
        self.joint = metrics.Accumulator(metrics.calibration_curve)
        self.thresholds = metrics.Accumulator(metrics.calibration_curve)
        self.precision = metrics.Accumulator(metrics.ap_calibration)
        self.histogram = metrics.Accumulator(metrics.confidence_histogram)

    def update(self, prediction: ClassPrediction, expected_entropy: Tensor, labels: Tensor, ood: Tensor) -> None:
        """Count a batch: labels (images, height, width), -1 for void and OOD pixels alike, and which are OOD."""
        inside = labels >= 0
        known = inside | ood
        if known.any():
            self._count_known(prediction, expected_entropy, labels, ood, known)
        if inside.any():
            self._count_inside(prediction, labels, inside)

    def _count_known(
        self, prediction: ClassPrediction, expected_entropy: Tensor, labels: Tensor, ood: Tensor, known: Tensor
    ) -> None:
        scores = {
            "confidence": prediction.one_minus_confidence,
            "entropy": prediction.entropy,
            "information": (prediction.entropy - expected_entropy).clamp_min(0),
        }
        for score in self.scores:
            self.pooled[score].update(scores[score][known], ood[known])
            for values, mask, counted in zip(scores[score], ood, known, strict=True):
                if counted.any():
                    self.by_image[score].update(values[counted], mask[counted])
        confidence, predicted = prediction.confidence[known], prediction.labels[known]
        correct = predicted == labels[known]
        self.joint.update(confidence, correct)
        self.thresholds.update(confidence, correct, THRESHOLDS)
        self.precision.update(confidence, predicted, correct, len(self.names))
        self.histogram.update(confidence, ood[known])

    def _count_inside(self, prediction: ClassPrediction, labels: Tensor, inside: Tensor) -> None:
        labels, predicted = labels[inside], prediction.labels[inside]
        self.confusion.update(predicted, labels, len(self.names))
        self.inside.update(prediction.confidence[inside], predicted == labels)
        self.log_loss.update(-prediction.log_probs.movedim(1, -1)[inside].gather(1, labels[:, None]))

    def compute(self) -> tuple[Numbers, Curves]:
        """Numbers and curves of all batches so far."""
        confusion, calibration, joint = self.confusion.compute(), self.inside.compute(), self.joint.compute()
        total, count = self.log_loss.compute().tolist()
        numbers = {
            "miou": confusion.mean_iou,
            "accuracy": confusion.pixel_accuracy,
            "nll": total / count,
            "ece": calibration.ece,
            "OOD/joint_ece": joint.ece,
        }
        numbers |= {
            f"iou/{name}": iou
            for name, iou in zip(self.names, confusion.iou.tolist(), strict=True)
            if not math.isnan(iou)  # of a class that never occurs
        }
        for score in self.scores:
            numbers |= _found(f"OOD/{score}", self.pooled[score].compute().metrics)
            numbers |= _found(f"OOD/by image/{score}", self.by_image[score].compute().metrics)
        curves = {
            "calibration": calibration,
            "OOD/accuracy_confidence": self.thresholds.compute().accuracy_confidence(),
            "OOD/calibration": joint,
            "OOD/ap_calibration": self.precision.compute(),
            "OOD/confidence_histogram": self.histogram.compute(),
        }
        return numbers, {name: as_lists(curve) for name, curve in curves.items()}


def _found(prefix: str, found: OODMetrics) -> Numbers:
    return {f"{prefix}/{name}": getattr(found, name) for name in FOUND}


def _sum_and_count(losses: Tensor) -> Tensor:
    return torch.tensor([losses.double().sum().item(), losses.numel()], dtype=torch.float64)


def _bytes(values: Tensor) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = values.to(torch.uint8).numpy()
    return found
