"""The tables that a benchmark declares: which measures they show, and how they are printed. A report fills them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

# Published figures: by method, then by metric in the unit of result files.
Published = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Column:
    """One measure in a table.

    Args:
        title: above it.
        metric: its key in result files.
        factor: it is printed times this.
        digits: after the point.
        higher: whether higher is better; None where neither way is, as with a share that should be 95%.
    """

    title: str
    metric: str
    factor: float = 1.0
    digits: int = 2
    higher: bool | None = False


@dataclass(frozen=True)
class ByMethod:
    """Methods down, measures across: one table for every variant whose results have the metric of the first column.

    Args:
        columns: the measures.
        title: what is added to the names of benchmark and variant.
        each: for a table that is made once for every OOD set: a metric that every OOD set has, with {} in place of its
            name. In `columns` and `title`, {} stands for the name too.
    """

    columns: tuple[Column, ...]
    title: str = ""
    each: str = ""

    def made_for(self, metrics: Sequence[str]) -> list[ByMethod]:
        """The tables that results with these metrics suffice for."""
        if not self.each:
            return [self] if self.columns[0].metric in metrics else []
        before, after = self.each.split("{}")
        found = (metric for metric in metrics if metric.startswith(before) and metric.endswith(after))
        return [self._against(metric[len(before) : len(metric) - len(after)]) for metric in found]

    def _against(self, name: str) -> ByMethod:
        columns = tuple(replace(column, metric=column.metric.replace("{}", name)) for column in self.columns)
        return ByMethod(columns, self.title.replace("{}", name))


@dataclass(frozen=True)
class ByVariant:
    """Variants down, methods across, then published figures: one table for each measure.

    Args:
        columns: the measures.
        title: before the measure's.
        note: below each table.
        published: figures, by variant.
        digits: that figures were published with.
    """

    columns: tuple[Column, ...]
    title: str
    note: str = ""
    published: dict[str, Published] = field(default_factory=dict)
    digits: int = 2


@dataclass(frozen=True)
class Paired:
    """Variants down, and across by how much one method differs from others, run by run: one table for each measure.

    Args:
        columns: the measures.
        title: before the measure's.
        method: that is compared.
        others: methods that it is compared with.
    """

    columns: tuple[Column, ...]
    title: str
    method: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class Overview:
    """Methods down, and across the measures of every variant that has them: all results in one table and one figure.

    Args:
        columns: the measures.
        title: of the table.
        note: below it, after the number of seeds.
        drawn: groups of measures; the figure shows the first group that a variant has.
    """

    columns: tuple[Column, ...]
    title: str
    note: str = ""
    drawn: tuple[tuple[Column, ...], ...] = ()


@dataclass(frozen=True)
class Needed:
    """Methods down, and across how many labels each needs to get as far as a rival does with all: one per variant.

    Args:
        columns: measures that results have learning curves of; those of a variant are shown.
        title: what is added to the names of benchmark and variant.
        rival: the method that sets the goal, by its own last round of the same seed and split.
    """

    columns: tuple[Column, ...]
    title: str
    rival: str


Table = ByMethod | ByVariant | Paired | Overview | Needed
