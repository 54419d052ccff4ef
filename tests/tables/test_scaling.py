from __future__ import annotations

import numpy as np
import pytest

from tradi.tables.scaling import Standard, bent, within_reach


def test_numbers_are_as_they_are_up_to_three_spreads_and_logarithmic_beyond() -> None:
    values = np.array([-3.0, -0.5, 0.0, 3.0, 3 * np.e, -3 * np.e**2])
    assert np.allclose(bent(10 + 2 * values, 10, 2), [-3, -0.5, 0, 3, 6, -9])
    slope = (bent(np.array([3.001]), 0, 1) - bent(np.array([2.999]), 0, 1)) / 0.002
    assert slope == pytest.approx(1, abs=1e-3)  # no kink
    assert np.isfinite(bent(np.array([1e300, -1e300]), 0, 1e-100)).all()


def test_normal_columns_are_standardised_as_usual() -> None:
    values = np.random.default_rng(0).normal(5, 3, (10_000, 2))
    usual = (values - values.mean(0)) / values.std(0)
    assert np.allclose(Standard.of(values).to(values), usual)


def test_a_skewed_column_keeps_its_rows_apart() -> None:
    skewed = np.exp(3 * np.random.default_rng(0).normal(size=(1000, 1)))
    own = Standard.of(skewed).to(skewed)
    assert own.std() == pytest.approx(1)
    usual = (skewed - skewed.mean()) / skewed.std()
    assert np.ptp(np.quantile(own, (0.1, 0.9))) > 10 * np.ptp(np.quantile(usual, (0.1, 0.9)))


@pytest.mark.parametrize("values", [[0.1] * 3, [0, 0, 0, 0, 0, 0, 0, 1], [1e5 + 1e-11, 1e5]])
def test_constant_and_nearly_constant_columns_stay_finite(values: list[float]) -> None:
    column = np.array(values)[:, None]
    found = Standard.of(column).to(column)
    assert np.isfinite(found).all()
    assert np.abs(found).max() < 10


def test_values_far_beyond_the_others_are_taken_as_nearer() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    same, none = within_reach(values)
    assert none == 0
    assert np.array_equal(same, values)
    values[:3] = (1e10, -1e10, 50)
    near, far = within_reach(values)
    assert far == 3
    assert 6 < near[0] == near[2] < 10
    assert within_reach(np.array([0.0] * 99 + [1e6]))[1] == 0  # nearly all are equal: the rest may be meant
