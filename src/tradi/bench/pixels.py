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
from tradi.bench.evaluation import Curves, Evaluation, Numbers, Pictures, as_lists
from tradi.bench.measures import Measure, columns, compute
from tradi.bench.segmentation import SegmentationProblem
from tradi.bench.tables import ByMethod
from tradi.ensemble.ensemble import Ensemble
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.likelihoods import Classification
from tradi.progress import track

THRESHOLDS = 100  # of the curve of accuracy against confidence


def evaluate_segmentation(ensemble: Ensemble, scenes: SegmentationProblem) -> Evaluation:
    """All measures of segmentation, on test images alone, and pictures of a few of them."""
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
    return Evaluation(*counts.compute(), seconds, arrays | {name: np.stack(views) for name, views in pictures.items()})


@torch.no_grad()
def pooled(ensemble: Ensemble, images: Iterable[Any]) -> Iterator[tuple[ClassPrediction, Tensor, Any]]:
    """For every batch the members' mean prediction, the mean of their entropies, and the target.

    The mean prediction comes as that of an ensemble of one; its `mutual_information` is of no use.
    """
    means: list[Tensor] = []
    entropies: list[Tensor] = []
    targets: list[Any] = []
    task = ensemble.likelihood or Classification()  # which may have a temperature
    for i, number, output, target in ensemble.iterate(images):
        member: Any = task.predict(task.output(output)[None])
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
        self.disagreement = metrics.Accumulator(metrics.information_histogram)

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
        if "information" in self.scores:
            self.disagreement.update(scores["information"][known], ood[known], len(self.names))

    def _count_inside(self, prediction: ClassPrediction, labels: Tensor, inside: Tensor) -> None:
        labels, predicted = labels[inside], prediction.labels[inside]
        self.confusion.update(predicted, labels, len(self.names))
        self.inside.update(prediction.confidence[inside], predicted == labels)
        self.log_loss.update(-prediction.log_probs.movedim(1, -1)[inside].gather(1, labels[:, None]))

    def found(self, score: str, metric: str, by_image: bool) -> float | None:
        """How well a score tells OOD pixels from others; None where there is no such score."""
        if score not in self.scores:
            return None
        totals = self.by_image[score].compute() if by_image else self.pooled[score].compute()
        return float(getattr(totals.metrics, metric))

    @property
    def nll(self) -> float:
        """Mean over all pixels of a class."""
        total, count = self.log_loss.compute().tolist()
        return float(total / count)

    def compute(self) -> tuple[Numbers, Curves]:
        """Numbers and curves of all batches so far."""
        numbers = compute([*CLASSES, *OOD, *OOD_BY_IMAGE], self)
        numbers |= {
            f"iou/{name}": iou
            for name, iou in zip(self.names, self.confusion.compute().iou.tolist(), strict=True)
            if not math.isnan(iou)  # of a class that never occurs
        }
        curves = {
            "calibration": self.inside.compute(),
            "OOD/accuracy_confidence": self.thresholds.compute().accuracy_confidence(),
            "OOD/calibration": self.joint.compute(),
            "OOD/ap_calibration": self.precision.compute(),
            "OOD/confidence_histogram": self.histogram.compute(),
        }
        if "information" in self.scores:
            curves["OOD/information_histogram"] = self.disagreement.compute()
        return numbers, {name: as_lists(curve) for name, curve in curves.items()}


# Of what was counted of all pixels.
OfPixels = Measure[[Counts]]
CLASSES: tuple[OfPixels, ...] = (
    Measure("miou", lambda c: c.confusion.compute().mean_iou, "mIoU %", 100, 1, higher=True),
    Measure("accuracy", lambda c: c.confusion.compute().pixel_accuracy, "accuracy %", 100, 1, higher=True),
    Measure("nll", lambda c: c.nll, "NLL", digits=3),
    Measure("ece", lambda c: c.inside.compute().ece, "ECE", digits=3),
)


def _detection(score: str, title: str, *, by_image: bool = False, shown: int = 3) -> tuple[OfPixels, ...]:
    """AUC, AUPR and FPR95 by one score, of which tables show the first so many."""

    def measure(metric: str, name: str, place: int) -> OfPixels:
        return Measure(
            f"OOD/{'by image/' if by_image else ''}{score}/{metric}",
            lambda counts: counts.found(score, metric, by_image),
            f"{name}{title}",
            100,
            1,
            higher=metric != "fpr95",
            shown=place < shown,
        )

    return measure("auroc", "AUC", 0), measure("aupr_out", "AUPR", 1), measure("fpr95", "FPR95", 2)


OOD: tuple[OfPixels, ...] = (
    *_detection("confidence", ""),
    Measure("OOD/joint_ece", lambda c: c.joint.compute().ece, "joint ECE", digits=3),
    *_detection("information", ", mutual information"),
    *_detection("entropy", ", entropy", shown=1),
)
OOD_BY_IMAGE: tuple[OfPixels, ...] = (
    *_detection("confidence", "", by_image=True),
    *_detection("information", ", mutual information", by_image=True),
    *_detection("entropy", ", entropy", by_image=True, shown=0),
)
TABLES = (
    ByMethod(columns(CLASSES), ", classes of pixels"),
    ByMethod(columns(OOD), ", OOD pixels"),
    ByMethod(columns(OOD_BY_IMAGE), ", OOD pixels, mean over images"),
)


def _sum_and_count(losses: Tensor) -> Tensor:
    return torch.tensor([losses.double().sum().item(), losses.numel()], dtype=torch.float64)


def _bytes(values: Tensor) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = values.to(torch.uint8).numpy()
    return found
