from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tradi.tables.frames import TableError
from tradi.tables.target import Target, known_rows, split, target_of


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (np.linspace(0, 1, 40), None),
        (np.arange(40), None),
        ([1.5, 2.5] * 20, None),
        ([3, 4, 10, 4] * 10, ("3", "4", "10")),
        (["3", "4", "10", "4"] * 10, ("3", "4", "10")),
        ([1.0, 2.0] * 20, ("1", "2")),
        (["3.0", "4", "10.0", "4.0"] * 10, ("3", "4", "10")),
        (["01", "02"] * 20, ("01", "02")),
        (["b", "a"] * 20, ("a", "b")),
        ([True, False] * 20, ("False", "True")),
        (["true", "false"] * 20, ("false", "true")),
    ],
)
def test_the_task_is_told_by_the_target(values: Any, classes: tuple[str, ...] | None) -> None:
    target = target_of("y", pd.Series(values), "auto")
    assert target.classes == classes


def test_the_task_can_be_chosen() -> None:
    few = pd.Series([1, 2, 3, 4] * 10)
    assert target_of("y", few, "regression").classes is None
    assert target_of("y", pd.Series([0.5, 1.5] * 20), "classes").classes == ("0.5", "1.5")


def test_targets_are_what_the_network_learns() -> None:
    numbers = pd.Series([10.0, 20.0, 30.0, 11.5] * 10)
    target = target_of("y", numbers, "auto")
    y = target.values(numbers)
    assert y.shape == (40, 1)
    assert np.allclose(y[:, 0] * target.std + target.mean, numbers)
    assert y.std() == pytest.approx(1)
    labels = pd.Series(["b", "a", "b"] * 10)
    assert target_of("y", labels, "auto").values(labels).tolist() == [1, 0, 1] * 10


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        ([5] * 40, "auto", "nothing to predict"),
        (["a"] * 40, "classes", "nothing to predict"),
        ([*map(str, range(39)), "n.a."], "auto", "'n.a.' among numbers, in row 40"),
        (["a", "b"] * 20, "regression", "'a' among numbers, in row 1"),
        ([f"name {i}" for i in range(40)], "auto", "is text, such as 'name 0', and has 40 different values in 40 rows"),
        ([1e200, -1e200] * 20, "regression", "cannot be standardised"),
    ],
)
def test_a_target_that_cannot_be_predicted_is_refused(values: Any, task: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        target_of("y", pd.Series(values), task)


def test_rows_without_a_target_are_left_out_and_some_must_stay() -> None:
    frame = pd.DataFrame({"y": [1.0, None, np.inf, *range(30)]})
    assert known_rows(frame, "y").index.tolist() == [0, *range(3, 33)]
    with pytest.raises(TableError, match="19 of 21 rows have a value of 'y': at least 20 are needed"):
        known_rows(frame[:21], "y")
    with pytest.raises(TableError, match="no column 'z' to predict; the table has 'y'"):
        known_rows(frame, "z")


@pytest.mark.parametrize(("rows", "sizes"), [(20, (15, 5, 0)), (100, (80, 20, 0)), (200, (160, 20, 20))])
def test_rows_are_split_in_two_or_three(rows: int, sizes: tuple[int, int, int]) -> None:
    parts = split(None, rows, seed=0)
    assert (len(parts.train), len(parts.held_out), len(parts.test)) == sizes
    assert sorted([*parts.train, *parts.held_out, *parts.test]) == list(range(rows))
    assert not np.array_equal(parts.train, split(None, rows, seed=1).train)


def test_every_class_keeps_a_row_to_train_on() -> None:
    labels = np.array([0] * 50 + list(range(1, 51)))
    for seed in range(5):
        assert set(labels[split(labels, 100, seed).train]) == set(range(51))


def test_a_target_that_cannot_be_is_refused() -> None:
    for classes in (("a",), ("a", "a")):
        with pytest.raises(ValueError, match="at least 2 and differ"):
            Target("y", classes)
