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
from tradi.tables.scaling import Standard, bent, within_reach

MOST_CATEGORIES = 200
LARGEST = 1e150  # squares must be finite
EDGE = 1 + 1e-9  # halves of a range; rounding must not put its ends outside
DATE = re.compile(r"(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4})([ T]\d{1,2}:\d{2}.*)?")
DATES = "dates are not used: put year, month or weekday into columns of numbers"
SIGNED = re.compile(r"[-+]?[$€£¥]?\s?[-+]?\d[\d.,]*\s?[%$€£¥]?")  # a number as people write it
FEW_WORDS = 0.1  # share of the cells: up to here, text among numbers is taken as missing
MANY_NUMBERS = 10  # different ones: with fewer, numbers beside text are categories too


@dataclass(frozen=True)
class Column:
    """A column as the training rows have it.

    Args:
        name: of the column.
        categories: values of a column of text, each of which becomes a column of 0 and 1; None for numbers.
        gaps: whether values were missing: that becomes a column of 0 and 1 too.
        middle: the median, which stands in for missing numbers.
        spread: in which the distance from the median is measured, to draw in long tails (`scaling`).
        mean, std: what numbers are standardised with after that.
        low, high: the smallest and the largest number within reach of the others.
        words: text among the numbers, such as "unknown", which is taken as missing.

    Raises:
        ValueError: if a value cannot be that of a column.
    """

    name: str
    categories: tuple[str, ...] | None
    gaps: bool
    middle: float = 0.0
    spread: float = 1.0
    mean: float = 0.0
    std: float = 1.0
    low: float = 0.0
    high: float = 0.0
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("spread", "std"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
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
        words = f"; {listed(list(self.words))} is taken as missing" if self.words else ""
        return f"numbers from {self.low + 0:.6g} to {self.high + 0:.6g}{gaps}{words}"  # -0 becomes 0


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
        return DATES
    if not is_text(column):
        values, _ = numbers(column)
        return _why_not_numbers(values)
    if not all(isinstance(value, str | bool | Decimal) for value in there.iloc[:100]):
        return f"it holds values of type {type(there.iloc[0]).__name__}"
    values, wrong = numbers(column)
    if not wrong.any() or _words(column, values, wrong):
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
        return DATES
    if different > 10 and all(SIGNED.fullmatch(value) for value in known):
        return f"its numbers have signs, such as {known[0]!r}: write them with digits and a decimal point only"
    if different > 10 and 2 * different > len(known):
        return f"it has {different:,} different texts in {len(known):,} rows, like a name or an identifier"
    if different > MOST_CATEGORIES:
        return f"it has {different:,} different texts, and at most {MOST_CATEGORIES} become categories: group them"
    return None


def _words(column: Series, values: Numbers, wrong: NDArray[np.bool_]) -> tuple[str, ...]:
    """The few different texts among many numbers; none if the column is rather one of text."""
    if wrong.sum() > FEW_WORDS * column.notna().sum() or len(np.unique(values[~np.isnan(values)])) <= MANY_NUMBERS:
        return ()
    found = sorted({value for value in texts(column[wrong]) if value is not None})
    return tuple(found) if len(found) <= MANY_NUMBERS else ()


def described(name: str, column: Series, train: NDArray[np.int64]) -> Column:
    """A column as its training rows have it.

    Raises:
        TableError: if its numbers are too large to standardise.
    """
    values, wrong = numbers(column)
    words = _words(column, values, wrong)
    if wrong.any() and not words:
        known = texts(column.iloc[train])
        return Column(name, tuple(sorted({value for value in known if value is not None})), None in known)
    own = values[train]
    gaps, own = bool(np.isnan(own).any()), own[~np.isnan(own)]
    if not len(own):
        own = values[~np.isnan(values)]
    if (largest := np.abs(own).max()) > LARGEST:
        raise TableError(f"the numbers in {name!r} are too large, up to {largest:.3g}: scale or exclude them")
    scale = Standard.of(own[:, None])
    middle, spread, mean, std = (float(part[0]) for part in (scale.middle, scale.spread, scale.mean, scale.std))
    near, _ = within_reach(own)
    return Column(name, None, gaps, middle, spread, mean, std, float(near.min()), float(near.max()), words)


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
    wrong &= ~values.isin(column.words).to_numpy()
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
    near = bent(np.where(gone, column.middle, found), column.middle, column.spread)
    return ((near - column.mean) / column.std)[:, None], gone, far


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
