"""Tables, made from result files alone."""

from __future__ import annotations

import html
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tradi.bench.declaration import Declaration
from tradi.bench.results import Result
from tradi.bench.tables import ByMethod, ByVariant, Column, Overview, Published


@dataclass(frozen=True)
class Table:
    """A title, a header and rows of text; `best` marks cells (row, column) to stand out."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""
    best: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """GitHub's dialect."""
        lines = [f"### {self.title}", "", _row(self.header), _row(["---"] * len(self.header))]
        for r, row in enumerate(self.rows):
            lines.append(_row([f"**{cell}**" if (r, c) in self.best else cell for c, cell in enumerate(row)]))
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])

    def html(self) -> str:
        """A table element with its heading."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = ""
        for r, row in enumerate(self.rows):
            cells = (
                f"<td{' class=best' if (r, c) in self.best else ''}>{html.escape(t)}</td>" for c, t in enumerate(row)
            )
            body += f"<tr>{''.join(cells)}</tr>\n"
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        table = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
        return f"<h3>{html.escape(self.title)}</h3>\n{table}{note}"


def tables(results: Sequence[Result], declarations: Mapping[str, Declaration]) -> list[Table]:
    """Every table that the results suffice for, as the benchmarks declare them."""
    made = []
    for benchmark in dict.fromkeys(result.key.benchmark for result in results):
        declared = declarations[benchmark]
        own = in_order([result for result in results if result.key.benchmark == benchmark], declared)
        for table in declared.tables:
            if isinstance(table, Overview):
                made.append(overview(own, table))
            elif isinstance(table, ByVariant):
                made += [by_variant(own, column, table) for column in table.columns]
        for variant in dict.fromkeys(result.key.variant for result in own):
            made += _of_variant([result for result in own if result.key.variant == variant], declared)
    return made


def _of_variant(results: Sequence[Result], declared: Declaration) -> list[Table]:
    metrics = list(dict.fromkeys(metric for result in results for metric in result.metrics))
    found = [one for table in declared.tables if isinstance(table, ByMethod) for one in table.made_for(metrics)]
    name = f"{declared.name}: {results[0].key.variant}"
    if not found:
        warnings.warn(f"no table that is declared shows {name}, whose results have {', '.join(metrics)}", stacklevel=4)
    return [by_method(f"{name}{one.title}", results, one.columns, declared.published) for one in found]


def in_order(results: Sequence[Result], declared: Declaration) -> list[Result]:
    """Results of one benchmark in the order in which it declares its problems and methods; others after them."""

    def place(result: Result) -> tuple[int, int]:
        return _index(declared.variants, result.key.variant), _index(declared.methods, result.key.method)

    return sorted(results, key=place)


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def by_method(title: str, results: Sequence[Result], columns: Sequence[Column], published: Published) -> Table:
    """Methods down, measures across: mean and standard deviation over seeds and splits; then published figures."""
    methods = list(dict.fromkeys(result.key.method for result in results))
    values = [[_values(results, m, column) for m in methods] for column in columns]
    cells = [_cells(each, column) for each, column in zip(values, columns, strict=True)]
    rows = [[m, *(column[i] for column in cells), _seconds(results, m)] for i, m in enumerate(methods)]
    best = frozenset(
        (row, 1 + number) for number, column in enumerate(columns) for row in _winners(values[number], column)
    )
    rows += [
        [f"paper: {m}", *(f"{c.factor * line[c.metric]:.{c.digits}f}" if c.metric in line else "" for c in columns), ""]
        for m, line in published.items()
        if any(column.metric in line for column in columns)
    ]
    count = len({(result.key.seed, result.key.split) for result in results})
    cores = sorted({result.made_by.get("threads", 1) for result in results})
    note = (
        f"{f'Mean ± standard deviation over {count} seeds or splits' if count > 1 else 'One run'}. "
        f"Seconds are of training. Evaluated on {' or '.join(map(str, cores))} {'core' if cores == [1] else 'cores'}, "
        f"at {_commits(results)}."
    )
    goals = published.get("TRADI", {})
    ours = [_values(results, "TRADI", column) for column in columns]
    note += _missed([c.title for c, v in zip(columns, ours, strict=True) if _behind(v, goals.get(c.metric), c)])
    return Table(title, ["", *(column.title for column in columns), "training s"], rows, note, best)


def _commits(results: Sequence[Result]) -> str:
    """The commits that results were made at: rows of one table may be of several versions of a method."""
    commits = dict.fromkeys(str(result.made_by.get("commit"))[:7] for result in results)
    return f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}"


def by_variant(results: Sequence[Result], column: Column, declared: ByVariant) -> Table:
    """Variants down, methods across, and published figures."""
    variants = list(dict.fromkeys(result.key.variant for result in results))
    methods = list(dict.fromkeys(result.key.method for result in results))
    published = list(dict.fromkeys(method for figures in declared.published.values() for method in figures))
    rows, best, missed = [], set(), []
    for number, variant in enumerate(variants):
        own = [result for result in results if result.key.variant == variant]
        values = [_values(own, method, column) for method in methods]
        theirs = {m: line[column.metric] for m, line in declared.published.get(variant, {}).items()}
        figures = [f"{theirs[method]:.{declared.digits}f}" if method in theirs else "" for method in published]
        rows.append([variant, *_cells(values, column), *figures])
        if _behind(_values(own, "TRADI", column), theirs.get("TRADI"), replace(column, digits=declared.digits)):
            missed.append(variant)
        best |= {(number, 1 + winner) for winner in _winners(values, column)}
    header = ["", *methods, *(f"paper: {name}" for name in published)]
    return Table(f"{declared.title}: {column.title}", header, rows, declared.note + _missed(missed), frozenset(best))


def overview(results: Sequence[Result], declared: Overview) -> Table:
    """Methods down, and across what matters of every variant: all in one table."""
    methods = list(dict.fromkeys(result.key.method for result in results))
    header, cells = [""], [[method] for method in methods]
    best = set()
    for variant in dict.fromkeys(result.key.variant for result in results):
        own = [result for result in results if result.key.variant == variant]
        for column in (column for column in declared.columns if _has(own, column)):
            values = [_values(own, method, column) for method in methods]
            best |= {(row, len(header)) for row in _winners(values, column)}
            header.append(f"{variant}: {column.title}")
            for row, each in zip(cells, values, strict=True):
                row.append(f"{statistics.fmean(each):.{column.digits}f}" if each else "")
    seeds = len({result.key.seed for result in results})
    note = f"Means over {seeds} seed{'s' if seeds > 1 else ''} {declared.note}"
    return Table(declared.title, header, cells, note, frozenset(best))


def by_problem(results: Sequence[Result], declared: Overview) -> dict[str, dict[str, dict[str, float]]]:
    """Variant, measure, method: the mean over seeds and splits, of the measures that the overview's figure shows."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for variant in dict.fromkeys(result.key.variant for result in results):
        own = [result for result in results if result.key.variant == variant]
        columns = next((group for group in declared.drawn if _has(own, group[0])), ())
        for column in columns:
            each = {m: _values(own, m, column) for m in dict.fromkeys(result.key.method for result in own)}
            means = {method: statistics.fmean(values) for method, values in each.items() if values}
            found.setdefault(variant, {})[column.title] = means
    return found


def _has(results: Sequence[Result], column: Column) -> bool:
    return any(column.metric in result.metrics for result in results)


def _values(results: Sequence[Result], method: str, column: Column) -> list[float]:
    own = (result for result in results if result.key.method == method)
    return [column.factor * result.metrics[column.metric] for result in own if column.metric in result.metrics]


def _cells(values: Sequence[Sequence[float]], column: Column) -> list[str]:
    """Mean and deviation of every method, and of how many runs they are where others have more."""
    most = max(map(len, values))
    return [_mean_sd(v, column) + (f" ({len(v)} of {most})" if 0 < len(v) < most else "") for v in values]


def _mean_sd(values: Sequence[float], column: Column) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{column.digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{column.digits}f}" if len(values) > 1 else mean


def _behind(values: Sequence[float], goal: float | None, column: Column) -> bool:
    """Whether there is a mean and a goal, and the mean is worse to the digits that it is printed with."""
    if not values or goal is None:
        return False
    lead = round(statistics.fmean(values), column.digits) - round(column.factor * goal, column.digits)
    return not (lead >= 0 if column.higher else lead <= 0)  # nor is what is not a number ahead


def _missed(what: Sequence[str]) -> str:
    return f" TRADI is behind the paper's TRADI: {', '.join(what)}." if what else ""


def _winners(values: Sequence[Sequence[float]], column: Column) -> list[int]:
    """Rows whose mean, as printed, is the best; of fewer runs than others have, it is not compared."""
    if column.higher is None:
        return []
    most = max(map(len, values))
    means = [round(statistics.fmean(v), column.digits) if v and len(v) == most else None for v in values]
    known = [mean for mean in means if mean is not None]
    if not known:
        return []
    top = max(known) if column.higher else min(known)
    return [row for row, mean in enumerate(means) if mean == top]


def _seconds(results: Sequence[Result], method: str) -> str:
    return f"{statistics.fmean(r.seconds['training'] for r in results if r.key.method == method):.1f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
