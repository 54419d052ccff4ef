from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tradi.integrations.sklearn import TRADIClassifier, TRADIRegressor


def line(rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (rows, 1))
    return x, 100 + 30 * x[:, 0] + generator.normal(0, 3, rows)


@pytest.fixture(scope="module")
def regressor() -> TRADIRegressor:
    return TRADIRegressor(steps=500, random_state=0).fit(*line(400))


def test_predictions_are_in_the_targets_unit_and_cover_it(regressor: TRADIRegressor) -> None:
    generator = np.random.default_rng(1)
    x = generator.uniform(-1, 1, (2000, 1))
    y = 100 + 30 * x[:, 0] + generator.normal(0, 3, 2000)
    mean, std = regressor.predict(x, return_std=True)
    assert mean.dtype == std.dtype == np.float64
    assert np.abs(mean - 100 - 30 * x[:, 0]).mean() < 1
    assert std.mean() == pytest.approx(3, rel=0.2)
    low, middle, high = regressor.predict_quantiles(x, [0.05, 0.5, 0.95]).T
    assert ((low < middle) & (middle < high)).all()
    assert ((low < y) & (y < high)).mean() == pytest.approx(0.9, abs=0.05)
    assert np.allclose(regressor.predict_quantiles(x, 0.5), middle)


def test_rows_far_away_are_foreign(regressor: TRADIRegressor) -> None:
    near, far = (regressor.score_ood(np.linspace(*ends, 50)[:, None]) for ends in ((-1, 1), (5, 10)))
    assert far.min() > near.max()


def test_about_one_row_in_a_hundred_is_above_one(regressor: TRADIRegressor) -> None:
    x = np.random.default_rng(2).uniform(-1, 1, (2000, 1))
    assert (regressor.score_ood(x) > 1).mean() < 0.04


def test_a_pickled_estimator_predicts_the_same(regressor: TRADIRegressor) -> None:
    x, _ = line(30)
    again = pickle.loads(pickle.dumps(regressor))
    assert np.array_equal(again.predict(x), regressor.predict(x))


def test_twenty_rows_are_enough_to_fit() -> None:
    x, y = line(20)
    std = TRADIRegressor(random_state=0).fit(x, y).predict(x, return_std=True)[1]
    assert np.isfinite(std).all()
    assert (std > 0).all()


@pytest.mark.filterwarnings("ignore:scale 0")  # iris is small
def test_a_classifier_in_a_pipeline_is_searched_over() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    pipeline = make_pipeline(StandardScaler(), TRADIClassifier(steps=300, members=5, random_state=0))
    search = GridSearchCV(clone(pipeline), {"tradiclassifier__hidden": [(8,), (16,)]}, cv=2).fit(X, names)
    assert search.score(X, names) > 0.9
    assert np.allclose(search.predict_proba(X).sum(1), 1)


def test_a_classifier_finds_rows_that_are_far_away() -> None:
    X, y = make_classification(2000, 6, n_informative=4, flip_y=0.1, random_state=0)
    model = TRADIClassifier(steps=500, random_state=0).fit(X, y)
    far = 10 * np.random.default_rng(0).normal(size=(200, 6))
    scores = np.concatenate([model.score_ood(X[:200]), model.score_ood(far)])
    assert roc_auc_score(np.repeat([0, 1], 200), scores) > 0.95


@pytest.mark.filterwarnings("ignore:scale 0")
def test_rows_far_away_are_foreign_to_a_small_classifier_too() -> None:
    X, y = load_iris(return_X_y=True)
    model = TRADIClassifier(steps=300, members=5, random_state=0).fit(X, y)
    assert model.score_ood(X.mean(0) + 4 * (X - X.mean(0))).min() > np.quantile(model.score_ood(X), 0.5)
    assert (model.score_ood(X) > 1).mean() <= 0.04


def test_a_typing_error_in_the_target_is_said_and_does_not_spoil_the_others() -> None:
    x, y = line(400)
    y[7] = 1e9
    with pytest.warns(UserWarning, match=r"1 of the target's values lie .* typing errors"):
        model = TRADIRegressor(steps=500, random_state=0).fit(x, y)
    others = np.arange(400) != 7
    assert np.abs(model.predict(x) - 100 - 30 * x[:, 0])[others].mean() < 3


def test_an_option_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match="members must be at least 1, got 0"):
        TRADIRegressor(members=0).fit(*line(20))
