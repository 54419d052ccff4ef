"""What is in the columns of a table, and its rows as numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tradi.tables.frames import NAMELESS, Frame, Numbers, Series, TableError, is_text, listed, numbers, texts

MOST_CATEGORIES = 200
FAR = 1e4  # standard deviations; a network is shown no number beyond
EDGE = 1 + 1e-9  # halves of a range; rounding must not put its ends outside
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([ T]\d{1,2}:\d{2}.*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")


@dataclass(frozen=True)
class Column:
    """A column as the training rows have it.

    Args:
        name: of the column.
        categories: values of a column of text, each of which becomes a column of 0 and 1; None for numbers.
        gaps: whether values were missing: that becomes a column of 0 and 1 too.
        fill: the median, which stands in for missing numbers.
        mean, std: numbers are standardised with.
        low, high: the smallest and the largest number.

    Raises:
        ValueError: if a value cannot be that of a column.
    """

    name: str
    categories: tuple[str, ...] | None
    gaps: bool
    fill: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    low: float = 0.0
    high: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.std < math.inf:
            raise ValueError(f"std must be positive and finite, got {self.std}")
        if self.low > self.high:
            raise ValueError(f"low must not be above high, got {self.low} and {self.high}")
        if len(set(self.categories or ())) < len(self.categories or ()):
            raise ValueError("categories must differ")

    @property
    def width(self) -> int:
        """How many inputs of the network it becomes."""
        return (1 if self.categories is None else len(self.categories)) + self.gaps

    @property
    def about(self) -> str:
        """What is in it, in words."""
        gaps = ", with gaps" if self.gaps else ""
        if self.categories is not None:
            return f"text, {len(self.categories)} categories{gaps}"
        return f"numbers from {self.low + 0:.6g} to {self.high + 0:.6g}{gaps}"  # -0 becomes 0


@dataclass(frozen=True, eq=False)
class Encoded:
    """Rows as a network takes them.

    Args:
        inputs: (rows, inputs), numbers standardised, text as columns of 0 and 1.
        outside: where a number lies outside its column's training range, its distance from the middle in halves of that
            range, so above 1, for the number that is farthest out; 0 where none does.
        unseen: rows by column, with a category or a gap that no training row has there.
    """

    inputs: Numbers
    outside: Numbers
    unseen: dict[str, NDArray[np.bool_]]

    def part(self, rows: Any) -> Encoded:
        """Some of the rows."""
        return Encoded(self.inputs[rows], self.outside[rows], {name: new[rows] for name, new in self.unseen.items()})


def why_not_used(column: Series) -> str | None:
    """What keeps a column from being an input, in words; None if nothing does."""
    if NAMELESS.fullmatch(str(column.name)):
        return "it has no name, like an index that pandas writes"
    there = column[column.notna()]
    if not len(there):
        return "it holds no values"
    if "datetime" in str(column.dtype) or "period" in str(column.dtype):
        return "dates are not used: put year, month or weekday into columns of numbers"
    if not is_text(column):
        values, _ = numbers(column)
        return _why_not_numbers(values)
    if not all(isinstance(value, str | bool | Decimal) for value in there.iloc[:100]):
        return f"it holds values of type {type(there.iloc[0]).__name__}"
    values, wrong = numbers(column)
    if not wrong.any():
        return _why_not_numbers(values)
    known = [value for value in texts(there) if value is not None]
    return _why_not_categories(known)


def _why_not_numbers(values: Numbers) -> str | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return "it holds no finite numbers"
    if (known == known[0]).all():
        return f"all its values are {known[0]:g}"
    if len(known) == len(values) > 2 and (np.diff(known) == 1).all():
        return "it numbers the rows"
    return None


def _why_not_categories(known: list[str]) -> str | None:
    different = len(set(known))
    if different == 1:
        return f"all its values are {known[0]!r}"
    if all(DATE.fullmatch(value) for value in known):
        return "dates are not used: put year, month or weekday into columns of numbers"
    if different > 10 and 2 * different > len(known):
        return f"it has {different:,} different texts in {len(known):,} rows, like a name or an identifier"
    if different > MOST_CATEGORIES:
        return f"it has {different:,} different texts, and at most {MOST_CATEGORIES} become categories: group them"
    return None


def described(name: str, column: Series, train: NDArray[np.int64]) -> Column:
    """A column as its training rows have it.

    Raises:
        TableError: if its numbers are too large to standardise.
    """
    values, wrong = numbers(column)
    if is_text(column) and wrong.any():
        known = texts(column.iloc[train])
        return Column(name, tuple(sorted({value for value in known if value is not None})), None in known)
    own = values[train]
    gaps, own = bool(np.isnan(own).any()), own[~np.isnan(own)]
    if not len(own):
        own = values[~np.isnan(values)]
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(own.mean()), float(own.std())
    if not math.isfinite(std):
        raise TableError(f"the numbers in {name!r} are too large, up to {np.abs(own).max():.3g}: scale or exclude them")
    std = std if std > 0 and (own != own[0]).any() else 1.0
    return Column(name, None, gaps, float(np.median(own)), mean, std, float(own.min()), float(own.max()))


def encoded(columns: Sequence[Column], frame: Frame) -> Encoded:
    """The rows of a table as a network takes them.

    Raises:
        TableError: if a column is missing, or holds text where training rows have numbers.
    """
    absent = [column.name for column in columns if column.name not in frame.columns]
    if absent:
        raise TableError(f"columns are missing: {listed(absent)}; the table has {listed(list(frame.columns))}")
    inputs, unseen = [], {}
    outside = np.zeros(len(frame))
    for column in columns:
        if column.categories is None:
            own, gone, far = _numbers_of(column, frame[column.name])
            outside = np.maximum(outside, far)
            new = gone & (not column.gaps)
        else:
            own, gone, new = _categories_of(column, frame[column.name])
        inputs += [own, gone[:, None].astype(np.float64)] if column.gaps else [own]
        if new.any():
            unseen[column.name] = new
    return Encoded(np.concatenate(inputs, 1), outside, unseen)


def _numbers_of(column: Column, values: Series) -> tuple[Numbers, NDArray[np.bool_], Numbers]:
    """Standardised numbers (rows, 1), which are missing, and how far outside they lie."""
    found, wrong = numbers(values)
    if wrong.any():
        first = int(wrong.argmax())
        raise TableError(
            f"{column.name!r} holds numbers in the training rows, and {str(values.iloc[first])!r} in row "
            f"{values.index[first] + 1} of this table: correct it, or leave the cell empty"
        )
    gone = np.isnan(found)
    middle, half = column.low / 2 + column.high / 2, column.high / 2 - column.low / 2
    far = np.where(gone, 0.0, np.abs(found - middle) / (half or 1.0))
    far[far <= EDGE] = 0.0
    standard = (np.where(gone, column.fill, found) - column.mean) / column.std
    return np.clip(standard, -FAR, FAR)[:, None], gone, far


def _categories_of(column: Column, values: Series) -> tuple[Numbers, NDArray[np.bool_], NDArray[np.bool_]]:
    """Columns of 0 and 1, which values are missing, and which are those of no training row."""
    place = {value: number for number, value in enumerate(column.categories or ())}
    found = texts(values)
    rows = np.zeros((len(found), len(place)))
    for row, value in enumerate(found):
        if value in place:
            rows[row, place[value]] = 1
    gone = np.array([value is None for value in found])
    new = ~rows.any(1) & ~(gone & column.gaps)
    return rows, gone, new
