"""What is measured of the objects that an ensemble finds in images.

Every member's detections are put together by `tradi.detection.combine`, and what its mean score leaves above `SCORE`
counts. A detection that finds nothing does not count where more than half of it is ignored: void, too small, or of a
class that is held out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tradi import metrics
from tradi.bench.boxes import DetectionProblem
from tradi.bench.evaluation import Evaluation, Pictures, as_lists
from tradi.bench.measures import SEPARATION, Measure, OfScores, columns, compute
from tradi.bench.tables import ByMethod
from tradi.data.boxes import BoxedFrames
from tradi.data.segmentation import OOD
from tradi.detection import Detections, Objects, combine
from tradi.ensemble.ensemble import Ensemble
from tradi.models.detector import detections

SCORE = 0.05  # the lowest one of an object that counts
MEMBER_SCORE = 0.01  # of a member's detection: several may add up to SCORE
DRAWN = 0.2  # the lowest score of an object that pictures keep


def evaluate_detections(ensemble: Ensemble, problem: DetectionProblem) -> Evaluation:
    """All measures of detection on test images, and pictures of a few of them; box noise is fitted on validation."""
    source = problem.source
    validation = Found.of(objects_in(ensemble, problem, source.validation), source.validation, problem.classes)
    started = time.perf_counter()
    objects = objects_in(ensemble, problem, source.test)
    seconds = time.perf_counter() - started
    found = Found.of(objects, source.test, problem.classes)
    noise = metrics.fit_box_noise(*validation.located) if validation.any_located else None
    numbers = compute([*DETECTIONS, *UNKNOWN], Evidence(found, noise, several=len(ensemble) > 1))
    precision = found.detected.average_precision.tolist()
    numbers |= {f"ap/{name}": ap for name, ap in zip(source.names, precision, strict=True) if ap == ap}
    numbers |= {} if noise is None else {"box_noise": noise}
    detected = found.detected
    curves = {}
    if len(detected.scores):
        curves["calibration"] = as_lists(metrics.calibration_curve(detected.scores, detected.correct))
    return Evaluation(numbers, curves, seconds, pictures(objects, problem))


def objects_in(ensemble: Ensemble, problem: DetectionProblem, images: BoxedFrames) -> list[Objects]:
    """The objects of every image, in order; of members' outputs only the boxes are kept."""
    seen: dict[int, list[list[Detections]]] = {}  # by batch, then by member, one for every image
    for _, number, output, _ in ensemble.iterate(problem.batches(images)):
        seen.setdefault(number, []).append(detections(output, score=MEMBER_SCORE))
    by_image = [members for number in sorted(seen) for members in zip(*seen[number], strict=True)]
    return [combine(members).above(SCORE) for members in by_image]


@dataclass(frozen=True, eq=False)
class Found:
    """What was found in some images, beside what is there.

    Args:
        detected: of the learnt classes, at an IoU of 0.5.
        located: box, covariance and true box of every right detection.
        inside: scores of objects that are right about where something learnt is, by the score's name.
        outside: the same of objects that lie on something of a held-out class.
        unknown: how many objects of held-out classes there are.
    """

    detected: metrics.Detected
    located: tuple[Tensor, Tensor, Tensor]
    inside: dict[str, Tensor]
    outside: dict[str, Tensor]
    unknown: int

    @property
    def any_located(self) -> bool:
        return len(self.located[0]) > 0

    @classmethod
    def of(cls, objects: list[Objects], images: BoxedFrames, classes: int) -> Found:
        """Match objects with the true ones of each image."""
        total = metrics.Detected(torch.zeros(0), NONE, NONE.bool(), torch.zeros(classes, dtype=torch.long))
        located: list[tuple[Tensor, Tensor, Tensor]] = []
        meant: dict[int, list[Objects]] = {0: [], OOD: []}  # objects on something learnt, and on something held out
        for one, there, labels, ignored in zip(objects, images.boxes, images.labels, images.ignored, strict=True):
            known = labels >= 0
            place = metrics.match_boxes(one.boxes, one.scores, one.labels, there[known], labels[known])
            right = place >= 0
            located.append((one.boxes[right], one.covariance[right], there[known][place[right]]))
            counts = right | (_share(one.boxes, ignored) <= 0.5)
            number = torch.bincount(labels[known], minlength=classes)
            total += metrics.Detected(one.scores[counts], one.labels[counts], right[counts], number)
            any_class = metrics.match_boxes(one.boxes, one.scores, one.labels * 0, there, labels * 0)
            kind = torch.where(any_class >= 0, labels[any_class].clamp_max(0), 1) if len(there) else any_class
            for label, group in meant.items():
                group.append(one[kind == label])
        scored = {label: _scores(group) for label, group in meant.items()}
        boxes, covariance, truth = (torch.cat(parts) for parts in zip(*located, strict=True))
        return cls(
            total,
            (boxes, covariance, truth),
            scored[0],
            scored[OOD],
            sum(int((one == OOD).sum()) for one in images.labels),
        )


@dataclass(frozen=True, eq=False)
class Evidence:
    """What measures are made of.

    Args:
        found: in test images.
        noise: of boxes, as validation images have it; None where nothing was found there.
        several: whether there are members that could disagree.
    """

    found: Found
    noise: float | None
    several: bool

    def separation(self, score: str, measure: OfScores) -> float | None:
        """How well a score tells held-out objects from others, among what was found of both."""
        inside, outside = self.found.inside[score], self.found.outside[score]
        if not len(inside) or not len(outside) or (score == "information" and not self.several):
            return None
        return measure.compute(inside, outside)

    @property
    def box_nll(self) -> float | None:
        """Of right detections; None where there are none."""
        if self.noise is None or not self.found.any_located:
            return None
        return metrics.box_nll(*self.found.located, self.noise)


NONE = torch.zeros(0, dtype=torch.long)
SCORES: dict[str, Callable[[Objects], Tensor]] = {
    "entropy": lambda objects: objects.ood_score,
    "confidence": metrics.one_minus_confidence,
    "information": metrics.mutual_information,
}
TITLES = {"entropy": "", "confidence": ", 1 - score", "information": ", mutual information"}

OfEvidence = Measure[[Evidence]]
DETECTIONS: tuple[OfEvidence, ...] = (
    Measure(
        "ap50",
        lambda t: t.found.detected.mean_average_precision if t.found.detected.objects.any() else None,
        "AP at IoU 0.5 %",
        100,
        1,
        higher=True,
    ),
    Measure(
        "recall",
        lambda t: t.found.detected.recall if t.found.detected.objects.any() else None,
        "found %",
        100,
        1,
        higher=True,
    ),
    Measure("box_nll", lambda t: t.box_nll, "NLL of boxes"),
    Measure("ece", lambda t: t.found.detected.ece if len(t.found.detected.scores) else None, "ECE of scores", digits=3),
)


def _against(score: str) -> tuple[OfEvidence, ...]:
    def measure(one: OfScores) -> OfEvidence:
        return Measure(
            f"OOD/{score}/{one.key}",
            lambda evidence: evidence.separation(score, one),
            one.title + TITLES[score],
            one.factor,
            one.digits,
            one.higher,
            shown=score == "entropy" or one.key == "auroc",
        )

    return tuple(measure(one) for one in SEPARATION)


UNKNOWN: tuple[OfEvidence, ...] = (
    *(measure for score in SCORES for measure in _against(score)),
    Measure(
        "OOD/found",
        lambda t: len(t.found.outside["entropy"]) / t.found.unknown if t.found.unknown else None,
        "held-out objects found %",
        100,
        1,
        higher=None,
    ),
)
TABLES = (
    ByMethod(columns(DETECTIONS), ", objects of learnt classes"),
    ByMethod(columns(UNKNOWN), ", objects of a class that was left out"),
)


def pictures(objects: list[Objects], problem: DetectionProblem) -> Pictures:
    """What boxes are drawn from: predictions only."""
    drawn = [objects[index].above(DRAWN) for index in problem.shown]
    height, width = problem.source.test.ignored.shape[1:]
    joined = {name: torch.cat([getattr(one, name) for one in drawn]).numpy() for name in KEPT}
    return {
        "index": np.array(problem.shown),
        "size": np.array([height, width]),
        "names": np.array(problem.source.names),
        "image": np.repeat(problem.shown, [len(one) for one in drawn]),
        "members": np.array([len(one.member_probs) for one in drawn[:1]]),
    } | joined


KEPT = ("boxes", "covariance", "scores", "labels", "seen", "ood_score")


def _scores(group: list[Objects]) -> dict[str, Tensor]:
    return {name: torch.cat([score(one) for one in group]) for name, score in SCORES.items()}


def _share(boxes: Tensor, mask: Tensor) -> Tensor:
    """Share of each box's pixels that are in a mask."""
    height, width = mask.shape
    found = []
    for x0, y0, x1, y1 in boxes.tolist():
        top, left = min(int(y0), height - 1), min(int(x0), width - 1)
        found.append(mask[top : max(round(y1), top + 1), left : max(round(x1), left + 1)].float().mean())
    return torch.stack(found) if found else torch.zeros(0)
