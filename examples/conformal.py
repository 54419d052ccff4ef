"""Conformal prediction on top of an ensemble: a table of sets and intervals that cover what they promise.

    pip install 'tradi[sklearn]' mapie
    OMP_NUM_THREADS=1 python examples/conformal.py

MAPIE calibrates on rows that neither training nor tradi's own choice of the noise has seen, and its sets and intervals
are tried on others. With TorchCP installed, it does the same with `ensemble.as_module()`; see docs/conformal.md.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from mapie.classification import SplitConformalClassifier
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
from mapie.utils import train_conformalize_test_split
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tradi.integrations.sklearn import TRADIClassifier, TRADIRegressor

LEVEL = 0.9  # of the answers are to be in the set or interval
QUANTILES = ((1 - LEVEL) / 2, (1 + LEVEL) / 2, 0.5)  # in MAPIE's order


class Quantile(RegressorMixin, BaseEstimator):
    """One quantile of a fitted regressor's prediction, as a regressor of its own."""

    def __init__(self, model: TRADIRegressor, q: float) -> None:
        self.model, self.q = model, q

    @property
    def n_features_in_(self) -> int:
        """By which scikit-learn and MAPIE know that there is nothing left to fit."""
        return self.model.n_features_in_

    def fit(self, X: Any, y: Any) -> Quantile:
        raise TypeError("the model is fitted already")

    def predict(self, X: Any) -> Any:
        return self.model.predict_quantiles(X, self.q)


class Probabilities(nn.Module):
    """What TorchCP takes: a module that returns one tensor."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)["probs"]


def parts(X: Any, y: Any, seed: int) -> Any:
    """Half of the rows to train on, and a quarter each to calibrate and to test."""
    return train_conformalize_test_split(
        X, y, train_size=0.5, conformalize_size=0.25, test_size=0.25, random_state=seed
    )


def classes(seed: int, steps: int | None) -> None:
    """Sets of digits that hold the right one."""
    train, calibrate, test, y_train, y_calibrate, y_test = parts(*load_digits(return_X_y=True), seed)
    model = TRADIClassifier(steps=steps, random_state=seed).fit(train, y_train)
    for score in ("lac", "aps"):
        conformal = SplitConformalClassifier(model, LEVEL, conformity_score=score, random_state=seed)
        _, sets = conformal.conformalize(calibrate, y_calibrate).predict_set(test)
        told(f"digits, MAPIE {score}", sets[np.arange(len(test)), y_test, 0], sets[:, :, 0].sum(1))
    if find_spec("torchcp") and find_spec("torchsort"):  # TorchCP cannot be imported without the other
        with_torchcp(model, calibrate, test, y_calibrate, y_test)


def with_torchcp(model: TRADIClassifier, calibrate: Any, test: Any, y_calibrate: Any, y_test: Any) -> None:
    """The same sets from a network: the ensemble as one module."""
    from torchcp.classification.predictor import SplitPredictor
    from torchcp.classification.score import LAC

    inputs = [torch.tensor(model.inputs_.to(X)) for X in (calibrate, test)]
    rows = TensorDataset(inputs[0], torch.tensor(y_calibrate))
    network = Probabilities(model.ensemble_.as_module())
    conformal = SplitPredictor(LAC(score_type="identity"), network, alpha=1 - LEVEL)
    conformal.calibrate(DataLoader(rows, 256))
    sets = conformal.predict(inputs[1]).numpy()
    told("digits, TorchCP LAC", sets[np.arange(len(test)), y_test], sets.sum(1))


def numbers(seed: int, steps: int | None) -> None:
    """Intervals that hold the right number."""
    train, calibrate, test, y_train, y_calibrate, y_test = parts(*load_diabetes(return_X_y=True), seed)
    model = TRADIRegressor(steps=steps, random_state=seed).fit(train, y_train)
    low, high = model.predict_quantiles(test, QUANTILES[:2]).T
    told("diabetes, the ensemble's own quantiles", (low <= y_test) & (y_test <= high), high - low)
    ways = {
        "residuals": SplitConformalRegressor(model, LEVEL),
        "residuals over our std": SplitConformalRegressor(model, LEVEL, conformity_score="std_normalized"),
        "quantiles (CQR)": ConformalizedQuantileRegressor([Quantile(model, q) for q in QUANTILES], LEVEL, prefit=True),
    }
    for name, conformal in ways.items():
        _, intervals = conformal.conformalize(calibrate, y_calibrate).predict_interval(test)
        low, high = intervals[:, 0, 0], intervals[:, 1, 0]
        told(f"diabetes, MAPIE {name}", (low <= y_test) & (y_test <= high), high - low)


def told(what: str, covered: Any, size: Any) -> None:
    """One line of the table."""
    print(f"{what:40s}{100 * np.mean(covered):>10.1f}{np.mean(size):>11.2f}")


def main(seed: int = 0, steps: int | None = None) -> None:
    """Sets, then intervals."""
    print(f"{f'promised: {LEVEL:.0%}':40s}{'covers %':>10}{'mean size':>11}")
    classes(seed, steps)
    numbers(seed, steps)


if __name__ == "__main__":
    main()
