"""How many labels a method needs, read from learning curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tradi.bench.results import Result
from tradi.bench.rounds import CURVE
from tradi.bench.tables import Column, Needed
from tradi.report.cells import Cell, Head, Table
from tradi.report.compare import deviation, mean

Place = tuple[int, int]  # seed and split


def labels_needed(curve: dict[str, Any], goal: float, higher: bool) -> float | None:
    """The number of labels at which a curve first gets to the goal, on straight lines between rounds; None if never."""
    before: tuple[float, float] | None = None
    for labels, value in zip(curve["labels"], curve["value"], strict=True):
        if value == goal or (value > goal) == higher:
            if before is None:
                return float(labels)
            return float(before[0] + (labels - before[0]) * (goal - before[1]) / (value - before[1]))
        before = labels, value
    return None


def needed(title: str, results: Sequence[Result], declared: Needed) -> Table | None:
    """The table of one variant; None where there are no curves, or none of the rival."""
    methods = list(dict.fromkeys(result.key.method for result in results))
    columns = [column for column in declared.columns if _curves(results, declared.rival, column)]
    if not columns:
        return None
    heads, cells = [Head("")], []
    for column in columns:
        goals = {place: curve["value"][-1] for place, curve in _curves(results, declared.rival, column).items()}
        heads.append(Head(f"labels until {column.title.removesuffix(' %')}", higher=False))
        cells.append([_cell(_curves(results, method, column), goals, bool(column.higher)) for method in methods])
    last = next(iter(_curves(results, declared.rival, columns[0]).values()))["labels"][-1]
    note = (
        f"Labels until a method is as good as {declared.rival} with {last}: mean ± standard error over seeds or "
        f"splits, on straight lines between rounds. A run that does not get there counts as {last}, and the cell says "
        "how many do."
    )
    rows = [(name, [column[row] for column in cells]) for row, name in enumerate(methods)]
    return Table(title, heads, rows, note)


def _curves(results: Sequence[Result], method: str, column: Column) -> dict[Place, dict[str, Any]]:
    name = f"{column.metric}/{CURVE}"
    own = (result for result in results if result.key.method == method and name in result.curves)
    return {(result.key.seed, result.key.split): result.curves[name] for result in own}


def _cell(curves: dict[Place, dict[str, Any]], goals: dict[Place, float], higher: bool) -> Cell:
    both = {place: curve for place, curve in curves.items() if place in goals}
    if not both:
        return Cell()
    found = {place: labels_needed(curve, goals[place], higher) for place, curve in both.items()}
    numbers = {place: both[place]["labels"][-1] if value is None else value for place, value in found.items()}
    spread, reached = deviation(numbers), sum(value is not None for value in found.values())
    error = None if spread is None else spread / math.sqrt(len(numbers))
    return Cell(mean(numbers), error, 0, "" if reached == len(found) else f"{reached} of {len(found)}")
