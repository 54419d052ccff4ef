"""An ensemble's predictions evaluated: numbers for the tables, and curves for the figures."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from tradi import metrics
from tradi.bench.boxes import DetectionProblem
from tradi.bench.evaluation import Curves, Evaluation, Numbers, as_lists
from tradi.bench.measures import CLASSIFICATION, DETECTION, OOD, OWN_SCORE, REGRESSION, SEPARATION, compute
from tradi.bench.objects import evaluate_detections
from tradi.bench.pixels import evaluate_segmentation
from tradi.bench.problem import Data, Problem
from tradi.bench.row import Detector
from tradi.bench.segmentation import SegmentationProblem
from tradi.bench.text import TextData, evaluate_text
from tradi.ensemble.ensemble import Ensemble
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture


def evaluate(ensemble: Ensemble | Detector, problem: Problem) -> Evaluation:
    """All measures of the task, on test data; those that say "validation" are what settings may be chosen by."""
    if isinstance(ensemble, Detector):
        assert isinstance(problem, Data), "detectors are for problems in memory"
        return _detection(ensemble, problem)
    if isinstance(problem, SegmentationProblem):
        return evaluate_segmentation(ensemble, problem)
    if isinstance(problem, DetectionProblem):
        return evaluate_detections(ensemble, problem)
    if isinstance(problem, TextData):
        return evaluate_text(ensemble, problem)
    started = time.perf_counter()
    prediction = _predicted(ensemble, problem.test[0], problem)
    seconds = time.perf_counter() - started
    task = _regression if problem.is_regression else _classification
    return Evaluation(*task(prediction, ensemble, problem), seconds)


def _detection(detector: Detector, data: Data) -> Evaluation:
    """How a detector tells test data from every OOD set; it predicts no classes, so nothing else is measured."""
    started = time.perf_counter()
    inside = detector.score(data.test[0])
    seconds = time.perf_counter() - started
    numbers: Numbers = {}
    for kind, unknown in data.ood.items():
        found = compute(SEPARATION, inside, detector.score(unknown))
        numbers |= {f"{kind}/{OWN_SCORE}/{name}": number for name, number in found.items()}
    return Evaluation(numbers, {}, seconds)


def _predicted(ensemble: Ensemble, x: Tensor, data: Data) -> Any:
    task = ensemble.likelihood or data.likelihood
    return ensemble.predict(list(x.split(data.at_once)), likelihood=task)


def _classification(inside: ClassPrediction, ensemble: Ensemble, data: Data) -> tuple[Numbers, Curves]:
    labels = data.test[1]
    correct = inside.labels == labels
    numbers = compute(data.measures or CLASSIFICATION, inside, labels)
    curves: Curves = {"calibration": as_lists(metrics.calibration_curve(inside.confidence, correct))}
    for kind, unknown in data.ood.items():
        outside = _predicted(ensemble, unknown, data)
        numbers |= {f"{kind}/{name}": number for name, number in compute(OOD, inside, labels, outside).items()}
        everything = metrics.with_ood(inside.confidence, correct, outside.confidence)
        confidence = torch.cat([inside.confidence, outside.confidence])
        predicted = torch.cat([inside.labels, outside.labels])
        is_ood = torch.arange(len(confidence)) >= len(labels)
        curves |= {
            f"{kind}/accuracy_confidence": as_lists(metrics.accuracy_confidence(*everything)),
            f"{kind}/calibration": as_lists(metrics.calibration_curve(*everything)),
            f"{kind}/ap_calibration": as_lists(
                metrics.ap_calibration(everything[0], predicted, everything[1], inside.probs.shape[1])
            ),
            f"{kind}/confidence_histogram": as_lists(metrics.confidence_histogram(confidence, is_ood)),
        }
        if len(inside.logits) > 1:  # one network cannot disagree with itself
            information = torch.cat([inside.mutual_information, outside.mutual_information])
            histogram = metrics.information_histogram(information, is_ood, inside.probs.shape[1])
            curves[f"{kind}/information_histogram"] = as_lists(histogram)
    return numbers | _on_validation(ensemble, data), curves


def _on_validation(ensemble: Ensemble, data: Data) -> Numbers:
    """How validation data is told from probes, which are made of it: nothing here has seen test data."""
    if not data.probes:
        return {}
    x, labels = data.validation
    inside = _predicted(ensemble, x, data)
    numbers = {"validation/nll": metrics.nll_from_log_probs(inside.log_probs, labels)}
    probes = [_predicted(ensemble, probe, data) for probe in data.probes.values()]
    found = [compute(DETECTION, inside, labels, probe) for probe in probes]
    return numbers | {f"validation/{name}": sum(one[name] for one in found) / len(found) for name in found[0]}


def _regression(prediction: GaussianMixture, ensemble: Ensemble, data: Data) -> tuple[Numbers, Curves]:
    measures = data.measures or REGRESSION
    mean, std = data.unit
    numbers = compute(measures, _in_unit(prediction, data), data.test[1] * std + mean)
    x, y = data.validation
    seen = compute(REGRESSION, _in_unit(_predicted(ensemble, x, data), data), y * std + mean)
    numbers |= {f"validation/{name}": seen[name] for name in ("rmse", "nll")}
    curves: Curves = {}
    if "grid" in data.extra:  # one-dimensional: a picture, and what lies outside the range of the data
        grid = data.extra["grid"]
        whole = _in_unit(_predicted(ensemble, grid, data), data)
        curves["regression_band"] = _band(whole, data)
        among = (grid.abs() <= data.train[0].abs().max())[:, 0]
        for place, rows in (("inside", among), ("outside", ~among)):
            part = GaussianMixture(whole.means[:, rows], whole.variances[:, rows])
            found = compute(measures, part, data.extra["noisy"][rows])
            numbers |= {f"{place}/{name}": number for name, number in found.items()}
            ideal = GaussianMixture(data.extra["ideal_mean"][None, rows], data.extra["ideal_variance"][None, rows])
            ratio = part.variance.sqrt() / ideal.variance.sqrt()
            numbers[f"{place}/sd_over_ideal"] = ratio.mean().item()
    return numbers, curves


def _band(whole: GaussianMixture, data: Data) -> dict[str, list[float]]:
    """What the figure of a one-dimensional regression shows: every third point of the grid, all to five digits."""
    along = {name: data.extra[name].flatten().tolist() for name in ("truth", "ideal_mean", "ideal_variance")}
    along |= as_lists(metrics.regression_band(whole, data.extra["grid"]))
    thinned = {name: values[::3] for name, values in along.items()}
    points = {name: data.extra[name].flatten().tolist() for name in ("train_x", "train_y")}
    return {name: [float(f"{v:.5g}") for v in values] for name, values in (thinned | points).items()}


def _in_unit(prediction: GaussianMixture, data: Data) -> GaussianMixture:
    mean, std = data.unit
    return GaussianMixture(prediction.means * std + mean, prediction.variances * std**2)
