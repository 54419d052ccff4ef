"""What is to be predicted: numbers or classes, and the rows that are held back for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tradi.tables.columns import MOST_CATEGORIES
from tradi.tables.frames import Frame, Numbers, Series, TableError, listed, numbers, texts
from tradi.tables.scaling import within_reach

Rows = NDArray[np.int64]

TASKS = ("auto", "regression", "classes")
FEW = 10  # different whole numbers that are taken for classes
FEWEST_ROWS = 20
ENOUGH_TO_TEST = 200  # rows; with fewer none are kept for the report alone
HELD_OUT = 0.1
FEWEST_HELD_OUT = 20
MOST_HELD_OUT = 10_000


@dataclass(frozen=True)
class Target:
    """What is predicted.

    Args:
        name: of the column.
        classes: in the order of the network's outputs; None for numbers.
        mean, std: numbers are standardised with.

    Raises:
        ValueError: if it cannot be predicted.
    """

    name: str
    classes: tuple[str, ...] | None
    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if self.classes is not None and not 2 <= len(set(self.classes)) == len(self.classes):
            raise ValueError(f"classes must be at least 2 and differ, got {len(self.classes)}")
        if not 0 < self.std < math.inf:
            raise ValueError(f"std must be positive and finite, got {self.std}")

    @property
    def about(self) -> str:
        """The task in words."""
        return "regression" if self.classes is None else f"{len(self.classes)} classes: {listed(list(self.classes))}"

    def values(self, column: Series) -> NDArray[Any]:
        """The column as the network learns it: standardised numbers (rows, 1), or class numbers (rows,).

        Raises:
            TableError: if a value is none of the target's.
        """
        if self.classes is None:
            return ((numbers(column)[0] - self.mean) / self.std)[:, None]
        place = {name: number for number, name in enumerate(self.classes)}
        return np.array([place[str(text)] for text in _labels(column)], dtype=np.int64)


def known_rows(frame: Frame, name: str) -> Frame:
    """The rows whose target is known.

    Raises:
        TableError: if there is no such column, or too few rows are left.
    """
    if name not in frame.columns:
        raise TableError(f"there is no column {name!r} to predict; the table has {listed(list(frame.columns))}")
    column = frame[name]
    found, wrong = numbers(column)
    there = ~np.isnan(found) | wrong
    if there.sum() < FEWEST_ROWS:
        raise TableError(
            f"{int(there.sum())} of {len(frame)} rows have a value of {name!r}: at least {FEWEST_ROWS} are needed"
        )
    return frame[there]


def target_of(name: str, column: Series, task: str) -> Target:
    """What there is to predict in a column without gaps.

    Numbers are classes if they are whole and few, at most 10 different ones; text is always classes.

    Raises:
        TableError: if all values are the same, or do not fit the task.
    """
    found, wrong = numbers(column)
    if wrong.any() and (task == "regression" or (task == "auto" and wrong.mean() < 0.1)):
        first = int(wrong.argmax())
        raise TableError(
            f"{name!r} holds {str(column.iloc[first])!r} among numbers, in row {column.index[first] + 1}: correct it, "
            "empty the cell, or say --task classes"
        )
    different = len(set(_labels(column)))
    if different < 2:
        raise TableError(f"{name!r} is {column.iloc[0]!r} in every row: there is nothing to predict")
    classes = wrong.any() or _is_of_classes(column, found) if task == "auto" else task == "classes"
    if not classes:
        return Target(name, None, *_standard(name, found))
    if different > min(MOST_CATEGORIES, len(column) / 2):
        text = f" is text, such as {str(column.iloc[0])!r}, and" if wrong.any() else ""
        raise TableError(
            f"{name!r}{text} has {different:,} different values in {len(column):,} rows, too many for classes: write "
            "it as numbers, group them, or choose another target"
        )
    return Target(name, _in_order(set(_labels(column))))


def _standard(name: str, found: Numbers) -> tuple[float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        near, _ = within_reach(found)
        mean, std = float(near.mean()), float(near.std())
    if not 0 < std < math.inf:
        raise TableError(f"the numbers in {name!r} cannot be standardised: their deviation is {std}; scale them")
    return mean, std


def _is_of_classes(column: Series, found: Numbers) -> bool:
    if str(column.dtype) in ("bool", "boolean") or not set(map(str.lower, _labels(column))) - {"true", "false"}:
        return True
    return bool((found == np.round(found)).all()) and len(np.unique(found)) <= FEW


def _labels(column: Series) -> list[str]:
    """Names of classes; whole numbers are written without .0, which files put there where cells were empty."""
    found, wrong = numbers(column)
    whole = not wrong.any() and bool((found == np.round(found)).all())
    return [str(text).removesuffix(".0") if whole else str(text) for text in texts(column)]


def _in_order(labels: set[str]) -> tuple[str, ...]:
    try:
        return tuple(sorted(labels, key=float))
    except ValueError:
        return tuple(sorted(labels))


@dataclass(frozen=True, eq=False)
class Parts:
    """Numbers of rows: to train on, to choose the OOD threshold by, and to test on."""

    train: Rows
    held_out: Rows
    test: Rows


def split(labels: NDArray[np.int64] | None, rows: int, seed: int) -> Parts:
    """A tenth of the rows to choose the OOD threshold by, and, of 200 rows or more, another tenth to test on.

    Of fewer than 200 rows, 20 are held out, but at most a quarter. One row of every class stays to train on.

    Args:
        labels: class numbers, if the target has any.
        rows: how many there are.
        seed: of the choice.
    """
    order = np.random.default_rng(seed).permutation(rows)
    free = rows - 1
    if labels is not None:
        stays = np.zeros(rows, dtype=bool)
        stays[np.unique(labels[order], return_index=True)[1]] = True
        order, free = np.concatenate([order[~stays], order[stays]]), int((~stays).sum())
    tenth = min(round(HELD_OUT * rows), MOST_HELD_OUT)
    held = min(max(tenth, min(FEWEST_HELD_OUT, rows // 4)), free)
    test = min(tenth, free - held) if rows >= ENOUGH_TO_TEST else 0
    return Parts(order[held + test :], order[:held], order[held : held + test])
