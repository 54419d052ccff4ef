from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tradi.tables.columns import Encoded
from tradi.tables.foreign import UNSEEN, Cloud, Limits, Strangeness, limits_of, threshold_of


def test_the_threshold_is_a_percentile_where_rows_can_show_it() -> None:
    scores = np.random.default_rng(0).gamma(2, size=500)
    assert threshold_of(scores) == np.sort(scores)[496 - 1]  # 0.99 * 501, rounded up
    assert threshold_of(scores[:60]) == scores[:60].max()


def test_a_further_good_row_exceeds_the_threshold_once_in_a_hundred_times() -> None:
    generator = np.random.default_rng(0)
    flagged = [stats.expon.sf(threshold_of(generator.exponential(size=199))) for _ in range(1000)]
    assert np.mean(flagged) == pytest.approx(0.01, abs=4 * np.std(flagged) / 1000**0.5)


@pytest.mark.parametrize("rows", [5, 10, 20, 49])
def test_few_rows_do_not_flag_many_good_ones(rows: int) -> None:
    generator = np.random.default_rng(rows)
    flagged = []
    for _ in range(400):
        scores = generator.lognormal(0, 0.5, rows)
        flagged.append(stats.lognorm(0.5).sf(threshold_of(scores)))
    # The limit for one further score is exact for normal logarithms: 0.01 on average, within four standard errors.
    assert np.mean(flagged) == pytest.approx(0.01, abs=4 * np.std(flagged) / 20)


def test_scores_without_any_spread_have_a_threshold() -> None:
    assert threshold_of(np.zeros(10)) == 0
    assert threshold_of(np.zeros(100)) == 0
    assert threshold_of(np.ones(10)) == pytest.approx(1)


def test_the_distance_is_mahalanobis() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2000, 2)) @ np.array([[1, 0.9], [0, 0.3]])
    cloud = Cloud.of(rows)
    inverse = np.linalg.inv(np.cov(rows.T, bias=True) + 0.01 * np.eye(2))
    apart = rows - rows.mean(0)
    assert np.allclose(cloud.distance(rows), np.sqrt(np.einsum("ri,ij,rj->r", apart, inverse, apart)))
    along, across = cloud.distance(np.array([[1.0, 1.0], [1.0, -1.0]]))
    assert across > 3 * along  # neither lies outside in any single column


def test_the_score_is_the_largest_part_and_parts_without_a_limit_are_left_out() -> None:
    parts = Strangeness(np.array([1.0, 4.0]), np.array([6.0, 1.0]), np.array([0.0, 0.0]))
    assert parts.score(Limits(2, 2, 1, 0)).tolist() == [3, 2]
    assert parts.score(Limits(0, 2, 1, 0)).tolist() == [3, 0.5]
    assert parts.score(Limits(0, 0, 0, 0)).tolist() == [0, 0]


def test_a_category_that_no_training_row_has_counts_as_outside() -> None:
    rows = Encoded(np.zeros((3, 1)), np.array([0, 0, 5.0]), {"town": np.array([False, True, True])})
    found = Strangeness.of(rows, np.zeros(3), Cloud.of(np.random.default_rng(0).normal(size=(50, 1))))
    assert found.outside.tolist() == [0, UNSEEN, 5]


def test_held_out_rows_inside_the_range_leave_its_edge_as_the_limit() -> None:
    generator = np.random.default_rng(0)
    limits = limits_of(Strangeness(generator.random(100), generator.random(100), np.zeros(100)))
    assert limits.outside == 1
    assert 0.9 < limits.threshold < 1.1


def test_rounding_is_no_disagreement() -> None:
    generator = np.random.default_rng(0)
    limits = limits_of(Strangeness(1e-9 * generator.random(100), 1 + generator.random(100), np.zeros(100)))
    assert limits.disagreement == 0
    assert Strangeness(np.array([1e-7]), np.array([1.0]), np.zeros(1)).score(limits) < limits.threshold


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="distance must not be negative, got -1"):
        Limits(1, -1, 1, 1)
