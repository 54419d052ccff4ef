"""Tables, made from result files alone."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tradi.bench.declaration import Declaration
from tradi.bench.results import Result
from tradi.bench.tables import ByMethod, ByVariant, Column, Needed, Overview, Paired, Published
from tradi.report.cells import Cell, Head, Table
from tradi.report.compare import Runs, best, deviation, in_trainings, mean, runs
from tradi.report.needed import needed
from tradi.report.style import same

BOLD = "Bold: ahead of all others by more than the standard deviation of the difference, run by run."


def tables(results: Sequence[Result], declarations: Mapping[str, Declaration]) -> list[Table]:
    """Every table that the results suffice for, as the benchmarks declare them."""
    made = []
    for benchmark in dict.fromkeys(result.key.benchmark for result in results):
        made += of_benchmark([r for r in results if r.key.benchmark == benchmark], declarations[benchmark])
    return made


def of_benchmark(results: Sequence[Result], declared: Declaration) -> list[Table]:
    """The tables of one benchmark: those of all its variants, then those of each."""
    own = in_order(results, declared)
    made = []
    for table in declared.tables:
        if isinstance(table, Overview):
            made.append(overview(own, table))
        elif isinstance(table, ByVariant):
            made += [by_variant(own, column, table) for column in table.columns]
        elif isinstance(table, Paired):
            made += [paired(own, column, table) for column in table.columns]
    for variant in dict.fromkeys(result.key.variant for result in own):
        made += _of_variant([result for result in own if result.key.variant == variant], declared)
    return made


def _of_variant(results: Sequence[Result], declared: Declaration) -> list[Table]:
    metrics = list(dict.fromkeys(metric for result in results for metric in result.metrics))
    found = [one for table in declared.tables if isinstance(table, ByMethod) for one in table.made_for(metrics)]
    variant = results[0].key.variant
    name = f"{declared.name}: {variant}"
    if not found:
        warnings.warn(f"no table that is declared shows {name}, whose results have {', '.join(metrics)}", stacklevel=5)
    made = ((one, by_method(f"{name}{one.title}", results, one.columns, declared.published)) for one in found)
    wanted = [table for table in declared.tables if isinstance(table, Needed)]
    labels = [(one.title, needed(f"{name}{one.title}", results, one)) for one in wanted]
    both = [(title, table) for title, table in labels if table is not None]
    both += [(one.title, table) for one, table in made]
    return [replace(table, kind=title.removeprefix(", "), variant=variant) for title, table in both]


def in_order(results: Sequence[Result], declared: Declaration) -> list[Result]:
    """Results of one benchmark in the order in which it declares its problems and methods; others after them."""

    def place(result: Result) -> tuple[int, int]:
        return _index(declared.variants, result.key.variant), _index(declared.methods, result.key.method)

    return sorted(results, key=place)


def _index(names: Sequence[str], name: str) -> int:
    return names.index(name) if name in names else len(names)


def by_method(title: str, results: Sequence[Result], columns: Sequence[Column], published: Published) -> Table:
    """Methods down, measures across, the paper's figures beside ours; at the end the paper's other methods."""
    methods = list(dict.fromkeys(result.key.method for result in results))
    paper = {name: line for name, line in published.items() if any(column.metric in line for column in columns)}
    beside = {method: next((line for name, line in paper.items() if same(name, method)), {}) for method in methods}
    others = {name: line for name, line in paper.items() if not any(same(name, method) for method in methods)}
    heads, cells = [Head("")], []
    for column in columns:
        numbers = [runs(results, method, column) for method in methods]
        heads.append(Head(column.title, column.higher))
        cells.append(_cells(numbers, column) + [Cell()] * len(others))
        if any(column.metric in line for line in paper.values()):
            heads.append(Head(f"paper: {column.title}", column.higher, of_paper=True))
            cells.append([_published(line, column) for line in (*beside.values(), *others.values())])
    heads.append(Head("time, in trainings", False))
    cells.append([time([r for r in results if r.key.method == method]) for method in methods] + [Cell()] * len(others))
    names = [*methods, *(f"paper: {name}" for name in others)]
    rows = [(name, [column[row] for column in cells]) for row, name in enumerate(names)]
    return Table(title, heads, rows, _about(results, columns, published), _commits(results))


def _about(results: Sequence[Result], columns: Sequence[Column], published: Published) -> str:
    """On how many runs and cores a table stands, and where TRADI is behind the paper's."""
    count = len({(result.key.seed, result.key.split) for result in results})
    cores = sorted({result.made_by.get("threads", 1) for result in results})
    ours = {column.title: (runs(results, "TRADI", column), column) for column in columns}
    theirs = published.get("TRADI", {})
    goals = {column.metric: _published(theirs, column).value for column in columns}
    return (
        f"{f'Mean ± standard deviation over {count} seeds or splits' if count > 1 else 'One run'}. "
        "Time until it predicts: the median, in trainings of one network without tracking, on "
        f"{' or '.join(map(str, cores))} {'core' if cores == [1] else 'cores'}."
        + _missed([title for title, (own, column) in ours.items() if _behind(own, goals.get(column.metric), column)])
    )


def _commits(results: Sequence[Result]) -> str:
    """The commits that results were made at: rows of one table may be of several versions of a method."""
    commits = dict.fromkeys(str(result.made_by.get("commit"))[:7] for result in results)
    return f"Made at commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}."


def by_variant(results: Sequence[Result], column: Column, declared: ByVariant) -> Table:
    """Variants down, methods across, the paper's figures beside those of the same method."""
    variants = list(dict.fromkeys(result.key.variant for result in results))
    methods = list(dict.fromkeys(result.key.method for result in results))
    published = list(dict.fromkeys(method for figures in declared.published.values() for method in figures))
    heads, order = [Head("")], list(_beside(methods, published))
    heads += [Head(f"paper: {name}" if of_paper else name, column.higher, of_paper) for name, of_paper in order]
    rows, missed = [], []
    printed = replace(column, digits=declared.digits)
    for variant in variants:
        own = [result for result in results if result.key.variant == variant]
        numbers = [runs(own, method, column) for method in methods]
        ours = dict(zip(methods, _cells(numbers, column), strict=True))
        theirs = {m: _published(line, printed) for m, line in declared.published.get(variant, {}).items()}
        rows.append((variant, [theirs.get(name, Cell()) if paper else ours[name] for name, paper in order]))
        if "TRADI" in theirs and _behind(runs(own, "TRADI", column), theirs["TRADI"].value, printed):
            missed.append(variant)
    return Table(f"{declared.title}: {column.title}", heads, rows, declared.note + _missed(missed))


def paired(results: Sequence[Result], column: Column, declared: Paired) -> Table:
    """Variants down, and across by how much a method differs from others over the runs of both."""
    variants = list(dict.fromkeys(result.key.variant for result in results))
    heads = [Head(""), *(Head(f"minus {other}") for other in declared.others)]
    rows = []
    for variant in variants:
        own = [result for result in results if result.key.variant == variant]
        ours = runs(own, declared.method, column)
        rows.append((variant, [_difference(ours, runs(own, other, column), column) for other in declared.others]))
    note = (
        f"{declared.method} minus the other method on the same seed and split: mean ± standard error. "
        f"{'Positive' if column.higher else 'Negative'}: {declared.method} is ahead."
    )
    return Table(f"{declared.title}: {column.title} of {declared.method}, minus others", heads, rows, note)


def _difference(ours: Runs, theirs: Runs, column: Column) -> Cell:
    """The mean of the differences, its standard error, and of how many runs they are where there are more of ours."""
    both = {key: ours[key] - theirs[key] for key in ours if key in theirs}
    if not both:
        return Cell()
    spread, size = deviation(both), len(both)
    error = None if spread is None else spread / math.sqrt(size)
    return Cell(mean(both), error, column.digits, f"{size} of {len(ours)}" if size < len(ours) else "")


def _beside(methods: Sequence[str], published: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Ours, each with the paper's of the same name after it, then the paper's others; and whether it is the paper's."""
    for method in methods:
        yield method, False
        yield from ((name, True) for name in published if same(name, method))
    yield from ((name, True) for name in published if not any(same(name, method) for method in methods))


def overview(results: Sequence[Result], declared: Overview) -> Table:
    """Methods down, and across what matters of every variant: all in one table."""
    methods = list(dict.fromkeys(result.key.method for result in results))
    heads, cells = [Head("")], []
    for variant in dict.fromkeys(result.key.variant for result in results):
        own = [result for result in results if result.key.variant == variant]
        for column in (column for column in declared.columns if _has(own, column)):
            heads.append(Head(f"{variant}: {column.title}", column.higher))
            found = _cells([runs(own, method, column) for method in methods], column)
            cells.append([replace(cell, deviation=None, runs="") for cell in found])
    seeds = len({result.key.seed for result in results})
    note = f"Means over {seeds} seed{'s' if seeds > 1 else ''} {declared.note}"
    rows = [(name, [column[row] for column in cells]) for row, name in enumerate(methods)]
    return Table(declared.title, heads, rows, note)


def by_problem(results: Sequence[Result], declared: Overview) -> dict[str, dict[str, dict[str, float]]]:
    """Variant, measure, method: the mean over seeds and splits, of the measures that the overview's figure shows."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for variant in dict.fromkeys(result.key.variant for result in results):
        own = [result for result in results if result.key.variant == variant]
        columns = next((group for group in declared.drawn if _has(own, group[0])), ())
        for column in columns:
            each = {m: runs(own, m, column) for m in dict.fromkeys(result.key.method for result in own)}
            unit = ", %" if column.factor == 100 else ""
            way = "" if column.higher is None else " ↑" if column.higher else " ↓"
            measures = found.setdefault(variant, {})
            measures[f"{column.title}{unit}{way}"] = {m: mean(one) for m, one in each.items() if one}
    return found


def _has(results: Sequence[Result], column: Column) -> bool:
    return any(column.metric in result.metrics for result in results)


def _cells(numbers: Sequence[Runs], column: Column) -> list[Cell]:
    """Mean and deviation of every method, and of how many runs they are where others have more."""
    column = replace(column, digits=_digits(numbers, column))
    most, winner = max(map(len, numbers)), best(numbers, column)
    return [
        Cell(
            mean(own),
            deviation(own),
            column.digits,
            f"{len(own)} of {most}" if len(own) < most else "",
            place == winner,
        )
        if own
        else Cell()
        for place, own in enumerate(numbers)
    ]


def _digits(numbers: Sequence[Runs], column: Column) -> int:
    """As many as the column has, and up to three more where the usual mean would be left with a single one."""
    usual = statistics.median([abs(mean(own)) for own in numbers if own] or [0.0])
    wanted = 1 - math.floor(math.log10(usual)) if 0 < usual < math.inf else 0
    return max(column.digits, min(wanted, column.digits + 3))


def _published(line: Mapping[str, float], column: Column) -> Cell:
    return Cell(column.factor * line[column.metric], digits=column.digits) if column.metric in line else Cell()


def _behind(numbers: Runs, goal: float | None, column: Column) -> bool:
    """Whether there is a mean and a goal, and the mean is worse to the digits that it is printed with."""
    if not numbers or goal is None:
        return False
    ahead = round(mean(numbers), column.digits) - round(goal, column.digits)
    return not (ahead >= 0 if column.higher else ahead <= 0)  # nor is what is not a number ahead


def _missed(what: Sequence[str]) -> str:
    return f" TRADI is behind the paper's TRADI: {', '.join(what)}." if what else ""


def time(results: Sequence[Result]) -> Cell:
    """Time until one method predicts, the median: seconds depend on the machine, shares of a training hardly do."""
    found = [share for result in results if (share := in_trainings(result)) is not None]
    return Cell(statistics.median(found)) if found else Cell()
