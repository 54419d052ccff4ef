from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.tables.samples import file_of, houses
from tradi.tables.frames import TableError, numbers, read, texts, write


def written(folder: Path, content: bytes | str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_a_table_survives_either_format(tmp_path: Path, name: str) -> None:
    table = houses(30)
    found = read(file_of(table, tmp_path / name))
    assert list(found.columns) == list(table.columns)
    assert np.array_equal(numbers(found["rooms"])[0], table["rooms"].to_numpy(), equal_nan=True)
    assert np.array_equal(numbers(found["garden"])[0], table["garden"].to_numpy())
    assert texts(found["town"]) == [None if town is None or town != town else town for town in table["town"]]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_found(tmp_path: Path, separator: str) -> None:
    text = "\n".join(["a b,c", "1, x ", '2,"y"', '3,"  "']).replace(",", separator)
    found = read(written(tmp_path, "\ufeff" + text))
    assert list(found.columns) == ["a b", "c"]
    assert texts(found["c"]) == ["x", "y", None]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["6,81", "7", "-1,234", ""], [6.81, 7, -1.234, np.nan]),
        (["0,125", "1,234"], [0.125, 1.234]),
        (["1234,567", "1,234"], [1234.567, 1.234]),
        (["1,234", "5,678"], None),  # thousands, or thousandths?
        (["1,5 kg", "2,5 kg"], None),
    ],
)
def test_decimal_commas_are_read_where_they_cannot_be_anything_else(
    tmp_path: Path, cells: list[str], values: list[float] | None
) -> None:
    found = read(written(tmp_path, "\n".join(["a;b", *(f"{cell};x" for cell in cells)])))
    if values is None:
        assert texts(found["a"]) == cells
    else:
        assert np.array_equal(numbers(found["a"])[0], values, equal_nan=True)
        assert not numbers(found["a"])[1].any()


def test_columns_without_a_name_are_kept_apart(tmp_path: Path) -> None:
    assert list(read(written(tmp_path, ",a,\n0,1,x\n")).columns) == ["(column 1)", "a", "(column 3)"]


def test_a_parquet_file_may_hold_columns_of_any_type(tmp_path: Path) -> None:
    table = pd.DataFrame({"raw": [b"ab", b" c"], "exact": [Decimal("1.50"), None], "text": [" a ", ""]})
    found = read(file_of(table, tmp_path / "table.parquet"))
    assert found["raw"].tolist() == [b"ab", b" c"]
    assert np.array_equal(numbers(found["exact"])[0], [1.5, np.nan], equal_nan=True)
    assert texts(found["text"]) == ["a", None]


def test_numbers_are_told_from_text_and_from_gaps() -> None:
    values, wrong = numbers(pd.Series(["1", " 2.5", "2e3", "true", "False", "inf", "seven", None]))
    assert np.array_equal(values, [1, 2.5, 2000, 1, 0, np.nan, np.nan, np.nan], equal_nan=True)
    assert wrong.tolist() == [False] * 6 + [True, False]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ("", "table.csv", "is empty"),
        ("\n\n", "table.csv", "is empty"),
        ("a,b\n", "table.csv", "no rows"),
        ("a,a\n1,2\n", "table.csv", "several columns of the same name: 'a'"),
        ("a,b\n1,2\n3,4,5\n", "table.csv", "cannot be read as CSV: .*line 3"),
        ("a,b\n1,2,3\n", "table.csv", "cannot be read as CSV"),
        (b"a,b\n\xff\xfe,2\n", "table.csv", "is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "table.csv", "UTF-16 text: save it as UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "table.csv", "does not hold text"),
        ("a,b\n1,2\n", "table.parquet", "cannot be read as Parquet"),
        ("a,b\n1,2\n", "table.xlsx", "neither .csv nor .parquet"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes | str, name: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        read(written(tmp_path, content, name))


def test_the_index_of_a_parquet_file_is_not_a_column(tmp_path: Path) -> None:
    table = houses(30).sample(frac=1, random_state=0)
    found = read(file_of(table, tmp_path / "table.parquet"))
    assert list(found.columns) == list(table.columns)
    assert list(found.index) == list(range(30))


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    table = houses(3)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        write(table, tmp_path / "nowhere" / "out.csv")
    with pytest.raises(TableError, match="must end in"):
        write(table, tmp_path / "out.txt")
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write(table, tmp_path / "out.csv")
