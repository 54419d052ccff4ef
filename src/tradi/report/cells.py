"""What tables are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """A number in a table, or none.

    Args:
        value, deviation: over seeds and splits.
        digits: after the point.
        runs: such as "4 of 20", where others have more.
        best: whether it stands out.
    """

    value: float | None = None
    deviation: float | None = None
    digits: int = 2
    runs: str = ""
    best: bool = False

    @property
    def text(self) -> str:
        if self.value is None:
            return ""
        around = "" if self.deviation is None else f" ± {self.deviation:.{self.digits}f}"
        return f"{self.value:.{self.digits}f}{around}" + (f" ({self.runs})" if self.runs else "")


@dataclass(frozen=True)
class Head:
    """What stands above a column: a title, whether higher is better, and whether it holds the paper's figures."""

    title: str
    higher: bool | None = None
    of_paper: bool = False


@dataclass(frozen=True)
class Table:
    """A title, heads (the first of the rows' names), and rows of a name and cells.

    Args:
        title: above it.
        heads: of the columns.
        rows: by name.
        note: below it.
        made: at which commits.
        kind: what it is about, such as an OOD set, within its benchmark and variant.
        variant: of the benchmark; none if it is of all.
    """

    title: str
    heads: list[Head]
    rows: list[tuple[str, list[Cell]]]
    note: str = ""
    made: str = ""
    kind: str = ""
    variant: str | None = None

    @property
    def texts(self) -> list[list[str]]:
        """Names and cells as they are printed."""
        return [[name, *(cell.text for cell in cells)] for name, cells in self.rows]

    def markdown(self) -> str:
        """GitHub's dialect."""
        titles = [head.title for head in self.heads]
        lines = [f"### {self.title}", "", _row(titles), _row(["---"] * len(titles))]
        for name, cells in self.rows:
            lines.append(_row([name, *(f"**{cell.text}**" if cell.best else cell.text for cell in cells)]))
        note = " ".join(part for part in (self.note, self.made) if part)
        return "\n".join([*lines, "", *([note, ""] if note else [])])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
