"""scikit-learn's own checks of estimators."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from tradi.integrations.sklearn import TRADIClassifier, TRADIRegressor


@pytest.mark.filterwarnings("ignore:without validation data")  # some checks fit fewer than ten rows
@pytest.mark.filterwarnings("ignore:scale 0")  # and few rows show that noise is harmless
@parametrize_with_checks([TRADIClassifier(members=3, steps=600), TRADIRegressor(members=3, steps=200)])  # type: ignore[untyped-decorator]
def test_scikit_learn_accepts_the_estimators(estimator: Any, check: Any) -> None:
    check(estimator)
