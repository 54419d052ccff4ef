"""What is measured of an ensemble's predictions: numbers for the tables, and curves for the figures."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from tradi import metrics
from tradi.bench.problem import EVALUATED, Data
from tradi.ensemble import Ensemble
from tradi.prediction import Categorical, GaussianMixture

Numbers = dict[str, float]
Curves = dict[str, dict[str, Any]]  # fields of the curves of `tradi.metrics`, as lists

SCORES = {
    "confidence": metrics.one_minus_confidence,
    "entropy": metrics.predictive_entropy,
    "information": metrics.mutual_information,
}


def measure(ensemble: Ensemble, data: Data) -> tuple[Numbers, Curves]:
    """All metrics of the task, on test data alone."""
    return _regression(ensemble, data) if data.is_regression else _classification(ensemble, data)


def _classification(ensemble: Ensemble, data: Data) -> tuple[Numbers, Curves]:
    x, labels = data.test
    inside = Categorical(ensemble.predict(x.split(EVALUATED)))
    correct = inside.labels == labels
    numbers = {
        "accuracy": metrics.accuracy(inside.probs, labels),
        "nll": metrics.nll_from_log_probs(inside.log_probs, labels),
        "brier": metrics.brier(inside.probs, labels),
        "ece": metrics.ece(inside.confidence, correct),
    }
    curves: Curves = {"calibration": _fields(metrics.calibration_curve(inside.confidence, correct))}
    for kind, unknown in data.ood.items():
        outside = Categorical(ensemble.predict(unknown.split(EVALUATED)))
        is_ood = _marks(inside, outside)
        numbers |= {f"{kind}/{name}": value for name, value in _found(inside, outside).items()}
        numbers[f"{kind}/joint_ece"] = metrics.joint_ece(inside.confidence, correct, outside.confidence)
        everything = metrics.with_ood(inside.confidence, correct, outside.confidence)
        confidence = torch.cat([inside.confidence, outside.confidence])
        predicted = torch.cat([inside.labels, outside.labels])
        curves |= {
            f"{kind}/accuracy_confidence": _fields(metrics.accuracy_confidence(*everything)),
            f"{kind}/calibration": _fields(metrics.calibration_curve(*everything)),
            f"{kind}/ap_calibration": _fields(
                metrics.ap_calibration(everything[0], predicted, everything[1], inside.probs.shape[1])
            ),
            f"{kind}/confidence_histogram": _fields(metrics.confidence_histogram(confidence, is_ood)),
        }
    return numbers | _on_validation(ensemble, data), curves


def _on_validation(ensemble: Ensemble, data: Data) -> Numbers:
    """What settings may be chosen by: nothing here has seen test data."""
    if not data.probes:
        return {}
    x, labels = data.validation
    inside = Categorical(ensemble.predict(x.split(EVALUATED)))
    numbers = {"validation/nll": metrics.nll_from_log_probs(inside.log_probs, labels)}
    probes = [Categorical(ensemble.predict(probe.split(EVALUATED))) for probe in data.probes.values()]
    found = [_found(inside, probe) for probe in probes]
    return numbers | {f"validation/{name}": sum(one[name] for one in found) / len(found) for name in found[0]}


def _found(inside: Categorical, outside: Categorical) -> Numbers:
    """How well each score tells the two apart, OOD being the positive class."""
    numbers: Numbers = {}
    for name, score in SCORES.items():
        if name == "information" and len(inside.logits) == 1:
            continue  # one network cannot disagree with itself
        found = metrics.ood_metrics(torch.cat([score(inside), score(outside)]), _marks(inside, outside))
        numbers |= {f"{name}/{metric}": getattr(found, metric) for metric in ("auroc", "aupr_out", "fpr95")}
    return numbers


def _marks(inside: Categorical, outside: Categorical) -> Tensor:
    return torch.cat(
        [torch.zeros_like(inside.labels, dtype=torch.bool), torch.ones_like(outside.labels, dtype=torch.bool)]
    )


def _regression(ensemble: Ensemble, data: Data) -> tuple[Numbers, Curves]:
    x, y = data.test
    mean, std = data.unit
    prediction = _in_unit(ensemble.predict(x.split(EVALUATED)), data)
    target = y * std + mean
    numbers = _regression_numbers(prediction, target)
    curves: Curves = {}
    if "grid" in data.extra:  # one-dimensional: a picture, and what lies outside the range of the data
        grid = data.extra["grid"]
        whole = _in_unit(ensemble.predict(grid.split(EVALUATED)), data)
        curves["regression_band"] = _fields(metrics.regression_band(whole, grid)) | {
            name: values.flatten().tolist() for name, values in data.extra.items()
        }
        seen = (grid.abs() <= data.train[0].abs().max())[:, 0]
        for place, rows in (("inside", seen), ("outside", ~seen)):
            part = GaussianMixture(whole.means[:, rows], whole.variances[:, rows])
            numbers |= {f"{place}/{k}": v for k, v in _regression_numbers(part, data.extra["noisy"][rows]).items()}
            ideal = GaussianMixture(data.extra["ideal_mean"][None, rows], data.extra["ideal_variance"][None, rows])
            ratio = part.variance.sqrt() / ideal.variance.sqrt()
            numbers[f"{place}/sd_over_ideal"] = ratio.mean().item()
    return numbers, curves


def _regression_numbers(prediction: GaussianMixture, y: Tensor) -> Numbers:
    return {
        "rmse": metrics.rmse(prediction.mean, y),
        "nll": metrics.gaussian_nll(prediction.mean, prediction.variance, y),
        "nll_mixture": metrics.mixture_nll(prediction, y),
        "crps": metrics.mixture_crps(prediction, y),
        "coverage95": metrics.coverage(prediction, y, torch.tensor([0.95])).item(),
    }


def _in_unit(outputs: tuple[Tensor, Tensor], data: Data) -> GaussianMixture:
    means, variances = outputs
    mean, std = data.unit
    return GaussianMixture(means * std + mean, variances * std**2)


def _fields(curve: Any) -> dict[str, Any]:
    values = {field.name: getattr(curve, field.name) for field in fields(curve)}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}
