"""Results without an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tradi.bench.results import Key, Result

COMMITTED = Path(__file__).parents[2] / "results"


def result(
    method: str, seed: int = 0, variant: str = "adam", benchmark: str = "mnist-ood", split: int = 0, **metrics: float
) -> Result:
    made_by = {"tradi": "0", "commit": "c", "torch": "2", "command": "tradi bench"}
    key = Key(benchmark, variant, method, seed, split)
    return Result(key, metrics, {}, {"quick": False}, {"steps": [9]}, {"training": 2.0 + seed}, 1.0, made_by)


def histogram(shift: int = 0, bins: int = 4) -> dict[str, Any]:
    edges = [place / bins for place in range(bins + 1)]
    return {"edges": edges, "inside": [1, 2, 3, 4 + shift], "ood": [4, 3, 2, 1]}


def calibration(shift: int = 0) -> dict[str, Any]:
    return {"edges": [0, 0.5, 1], "count": [0, 10], "correct": [0, 6 + shift], "confidence_sum": [0.0, 8.0]}


def thresholds(shift: float = 0.0) -> dict[str, Any]:
    nan = float("nan")
    return {"threshold": [0.0, 0.5, 0.9], "accuracy": [0.5 + shift, 0.7, nan], "count": [10, 5, 0]}


def precision(shift: int = 0) -> dict[str, Any]:
    return {"edges": [0, 0.5, 1], "count": [[0, 4], [2, 4]], "correct": [[0, 2 + shift], [1, 3]]}


def band(width: float = 1.0) -> dict[str, Any]:
    x = [place / 4 for place in range(-8, 9)]
    flat = {"mean": [0.5 * v for v in x], "sd": [width] * len(x), "epistemic_sd": [width / 2] * len(x)}
    return {"x": x, **flat, "truth": [v / 2 for v in x], "train_x": [0.0, 1.0], "train_y": [0.1, 0.4]}


CURVES: dict[str, Any] = {
    "calibration": calibration,
    "notMNIST/accuracy_confidence": thresholds,
    "notMNIST/calibration": calibration,
    "notMNIST/ap_calibration": precision,
    "notMNIST/confidence_histogram": histogram,
}


def full(method: str, seed: int = 0, variant: str = "adam", better: float = 0.0) -> Result:
    """A result of `mnist-ood` with all that its tables and figures show."""
    numbers: dict[str, Any] = {"accuracy": 0.98 + better / 10, "nll": 0.05 - better / 10 + seed / 1000, "ece": 0.01}
    scores = ("confidence", "entropy") if method == "Single network" else ("confidence", "entropy", "information")
    for score in scores:
        detection = {"auroc": 0.95 + better / 5 + seed / 1000, "aupr_out": 0.9, "fpr95": 0.1}
        numbers |= {f"notMNIST/{score}/{name}": value for name, value in detection.items()}
    numbers["notMNIST/joint_ece"] = 0.3
    made = result(method, seed, variant, **numbers)
    made.curves.update({name: curve(seed) for name, curve in CURVES.items()})
    if len(scores) > 2:
        made.curves["notMNIST/information_histogram"] = histogram(seed) | {"edges": [0.0, 0.1, 0.4, 0.9, 1.6]}
    return made
