from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.tables.samples import houses
from tradi.tables.columns import Column, described, encoded, why_not_used
from tradi.tables.frames import TableError


def columns(table: Any, *names: str) -> list[Column]:
    return [described(name, table[name], np.arange(len(table))) for name in names]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("number", "numbers the rows"),
        ("built", "dates are not used"),
        ("owner", "300 different texts in 300 rows"),
        ("country", "all its values are 'France'"),
    ],
)
def test_columns_that_say_nothing_are_left_out_with_a_reason(name: str, reason: str) -> None:
    assert reason in (why_not_used(houses()[name]) or "")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None] * 9, "no values"),
        ([np.inf] * 9, "no finite numbers"),
        ([3.0] * 9, "all its values are 3"),
        (pd.date_range("2020-01-01", periods=9), "dates are not used"),
        (["1/2/2020", "3/4/2021", "5.6.22"] * 3, "dates are not used"),
        (["01/02/2021 08:30", "2021/02/03", "4-5-21 9:00:00"] * 3, "dates are not used"),
        ([f"${i},500.00" for i in range(30)], "such as '$0,500.00': write them with digits"),
        ([f"{i}.5 %" for i in range(30)] * 9, "write them with digits"),
        ([f"{i},500" for i in range(1, 30)], "write them with digits"),
        ([[1, 2]] * 9, "values of type list"),
        ([b"ab", b"c"] * 5, "values of type bytes"),
        ([f"text {i % 250}" for i in range(1000)], "group them"),
    ],
)
def test_other_columns_that_cannot_be_used(values: Any, reason: str) -> None:
    assert reason in (why_not_used(pd.Series(values)) or "")


def test_a_column_without_a_name_is_left_out() -> None:
    assert "no name, like an index" in (why_not_used(pd.Series([3, 1, 2] * 3, name="(column 1)")) or "")


def test_decimal_numbers_are_numbers() -> None:
    prices = pd.Series([Decimal("1.50"), None, Decimal("2.25")])
    assert why_not_used(prices) is None
    assert described("price", prices, np.arange(3)).high == 2.25


@pytest.mark.parametrize("name", ["size", "rooms", "town", "garden", "price"])
def test_columns_that_say_something_are_used(name: str) -> None:
    assert why_not_used(houses()[name]) is None


def test_rows_become_numbers() -> None:
    table = pd.DataFrame({"a": [1.0, 3.0, None, 5.0], "b": ["x", "y", "x", None], "c": [True, False, True, True]})
    a, b, c = columns(table, "a", "b", "c")
    assert (a.gaps, a.middle, a.mean, a.low, a.high) == (True, 3.0, 0.0, 1.0, 5.0)
    assert (b.categories, b.gaps, c.categories) == (("x", "y"), True, None)
    rows = encoded([a, b, c], table)
    assert np.allclose(rows.inputs[:, 0], np.array([-2, 0, 0, 2]) / (a.spread * a.std))
    assert rows.inputs[:, 1].tolist() == [0, 0, 1, 0]
    assert rows.inputs[:, 2:5].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert rows.inputs.shape == (4, sum(column.width for column in (a, b, c)))
    assert rows.unseen == {}
    assert rows.outside.tolist() == [0, 0, 0, 0]


def test_what_no_training_row_has_is_counted_and_what_lies_outside_is_measured() -> None:
    a, b = columns(pd.DataFrame({"a": [0.0, 4.0], "b": ["x", "y"]}), "a", "b")
    rows = encoded([a, b], pd.DataFrame({"a": [2.0, 8.0, None, 1e300], "b": ["z", "x", "y", None]}))
    assert {name: new.tolist() for name, new in rows.unseen.items()} == {
        "a": [False, False, True, False],
        "b": [True, False, False, True],
    }
    assert rows.outside[:3].tolist() == [0, 3, 0]
    assert rows.inputs[0, 1:].tolist() == [0, 0]
    assert 0 < rows.inputs[2:, 0].max() < 1000  # drawn in


def test_only_training_rows_describe_a_column() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 100.0], "b": ["x", "y", "z"]})
    a = described("a", table["a"], np.array([0, 1]))
    b = described("b", table["b"], np.array([0, 1]))
    assert (a.high, b.categories) == (2.0, ("x", "y"))


def test_a_table_that_does_not_fit_is_refused() -> None:
    a, b = columns(pd.DataFrame({"a": [0.0, 4.0], "b": ["x", "y"]}), "a", "b")
    with pytest.raises(TableError, match=r"columns are missing: 'b'; the table has 'a'"):
        encoded([a, b], pd.DataFrame({"a": [1.0]}))
    with pytest.raises(TableError, match=r"'a' holds numbers .* 'many' in row 2"):
        encoded([a, b], pd.DataFrame({"a": ["1", "many"], "b": ["x", "x"]}))
    with pytest.raises(TableError, match="too large"):
        described("a", pd.Series([1e200, -1e200]), np.array([0, 1]))


def test_a_few_words_among_numbers_are_missing_values() -> None:
    ages = pd.Series([*map(str, range(40)), "unknown", None], name="age")
    assert why_not_used(ages) is None
    age = described("age", ages, np.arange(42))
    assert (age.categories, age.gaps, age.words, age.high) == (None, True, ("unknown",), 39)
    assert "'unknown' is taken as missing" in age.about
    rows = encoded([age], pd.DataFrame({"age": ["unknown", None, "7"]}))
    assert np.array_equal(rows.inputs[0], rows.inputs[1])
    with pytest.raises(TableError, match="'many' in row 1"):
        encoded([age], pd.DataFrame({"age": ["many"]}))


@pytest.mark.parametrize(
    "values",
    [["1", "2", "3", "none"] * 20, [*map(str, range(40)), *"abcdefgh"], [f"{i}{'a' * (i > 80)}" for i in range(95)]],
)
def test_many_words_or_few_numbers_stay_text(values: list[str]) -> None:
    column = pd.Series(values)
    assert described("a", column, np.arange(len(column))).categories is not None


def test_one_typing_error_does_not_spoil_a_column() -> None:
    sizes = pd.DataFrame({"size": [*np.linspace(10, 20, 200), 1e10]})
    (size,) = columns(sizes, "size")
    rows = encoded([size], sizes)
    assert rows.inputs[:-1].std() > 0.15  # standardised with the error, 0
    assert (size.low, size.high) == pytest.approx((10, 34), abs=1)
    assert np.flatnonzero(rows.outside).tolist() == [200]


@pytest.mark.parametrize("wrong", [{"std": 0.0}, {"low": 2.0, "high": 1.0}, {"categories": ("x", "x")}])
def test_a_column_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        Column(**{"name": "a", "categories": None, "gaps": False} | wrong)
