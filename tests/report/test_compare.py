from __future__ import annotations

import pytest

from tests.report.made import result
from tradi.bench.tables import Column
from tradi.report.compare import best, deviation, lead, mean, runs

NLL = Column("NLL", "nll", factor=10)


def test_numbers_are_by_seed_and_split_as_the_column_prints_them() -> None:
    results = [result("A", 0, nll=1.0), result("A", 1, split=2, nll=3.0), result("B", nll=5.0), result("A", 7)]
    found = runs(results, "A", NLL)
    assert found == {(0, 0): 10.0, (1, 2): 30.0}
    assert mean(found) == 20
    assert deviation(found) == pytest.approx(200**0.5)
    assert deviation(runs(results, "B", NLL)) is None


def test_a_lead_is_over_the_runs_of_both() -> None:
    ours, theirs = {(0, 0): 1.0, (1, 0): 2.0, (2, 0): 90.0}, {(0, 0): 1.5, (1, 0): 2.7}
    lower = lead(ours, theirs, higher=False)
    assert lower is not None
    assert lower.mean == pytest.approx(0.6)
    assert lower.deviation == pytest.approx(0.02**0.5)
    assert (lower.ahead, lower.behind) == (True, False)
    higher = lead(ours, theirs, higher=True)
    assert higher is not None
    assert higher.mean == pytest.approx(-0.6)
    assert (higher.ahead, higher.behind) == (False, True)


def test_a_lead_within_the_deviation_is_neither_ahead_nor_behind() -> None:
    for better in (0.1, -0.1):  # give or take 0.42
        found = lead({(0, 0): 1.3 + better, (1, 0): 0.7 + better}, {(0, 0): 1.0, (1, 0): 1.0}, higher=True)
        assert found is not None
        assert found.mean == pytest.approx(better)
        assert (found.ahead, found.behind) == (False, False)


def test_nothing_follows_from_one_run_or_none() -> None:
    once = lead({(0, 0): 1.0}, {(0, 0): 9.0, (1, 0): 9.0}, higher=False)
    assert once is not None
    assert (once.mean, once.deviation, once.ahead, once.behind) == (8.0, None, False, False)
    assert lead({(0, 0): 1.0}, {(1, 0): 9.0}, higher=False) is None


def test_the_best_is_ahead_of_every_other_and_of_as_many_runs() -> None:
    two, three = {(0, 0): 1.0, (1, 0): 1.0}, {(0, 0): 2.0, (1, 0): 2.1}
    assert best([three, two], NLL) == 1
    assert best([three, two, two], NLL) is None
    assert best([two, three, {(0, 0): 0.1}], NLL) == 0, "one run is not compared with two"
    assert best([two], NLL) is None
    assert best([], NLL) is None
    assert best([two, three], Column("covers", "nll", higher=None)) is None
