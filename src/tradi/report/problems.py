"""What a summary compares: every problem whose results answer one of two questions, read from the declared tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tradi.bench.declaration import Declaration
from tradi.bench.results import Result
from tradi.bench.tables import ByMethod, Column, Overview
from tradi.report.compare import Lead, Runs, lead, runs
from tradi.report.style import is_first, known
from tradi.report.tables import in_order

OURS = "TRADI"
DETECTION, LIKELIHOOD = "detection", "likelihood"
# What readers call variants.
SPELLED = {
    **{"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "gp": "GP", "small": "small network"},
    **{"480x360-60-epochs": "480x360, 60 epochs", "240x180-other-runs": "240x180, other runs"},
}
WAYS = {"ahead": "ahead of", "level": "level with", "behind": "behind"}


@dataclass(frozen=True)
class Verdict:
    """How TRADI fares on one problem.

    Args:
        kind: `ahead` of all rivals, `level` with the best, or `behind` one.
        whom: the rivals that this is about.
        rivals: their number.
    """

    kind: str
    whom: tuple[str, ...]
    rivals: int

    @property
    def short(self) -> str:
        """In a few words: a name, or how many of the rivals."""
        if len(self.whom) == 1:
            return f"{WAYS[self.kind]} {self.whom[0]}"
        all_of_them = len(self.whom) == self.rivals
        return f"{WAYS[self.kind]} {f'all {self.rivals}' if all_of_them else f'{len(self.whom)} of {self.rivals}'}"

    @property
    def full(self) -> str:
        """With all names."""
        return f"{WAYS[self.kind]} {', '.join(self.whom)}"


@dataclass(frozen=True)
class Problem:
    """One measure on one variant of a benchmark.

    Args:
        question: `DETECTION` or `LIKELIHOOD`.
        benchmark, title: its name and its title.
        name: of the problem within the benchmark.
        column: the measure.
        numbers: by method, in the benchmark's order.
    """

    question: str
    benchmark: str
    title: str
    name: str
    column: Column
    numbers: dict[str, Runs] = field(default_factory=dict)

    def lead(self, rival: str) -> Lead | None:
        """By how much TRADI is ahead of another method; None where they cannot be compared."""
        if rival not in self.numbers or OURS not in self.numbers:
            return None
        return lead(self.numbers[OURS], self.numbers[rival], bool(self.column.higher))

    @property
    def rivals(self) -> list[str]:
        """The well-known methods that TRADI is compared with first."""
        return [name for name in self.numbers if is_first(name) and known(name) != known(OURS)]

    @property
    def verdict(self) -> Verdict | None:
        """How TRADI fares against the well-known methods; None where there is nobody to compare with."""
        leads = {name: found for name in self.rivals if (found := self.lead(name)) is not None}
        behind = tuple(name for name, found in leads.items() if found.behind)
        level = tuple(name for name, found in leads.items() if not found.ahead and not found.behind)
        if not leads:
            return None
        if behind:
            return Verdict("behind", behind, len(leads))
        return Verdict("level", level, len(leads)) if level else Verdict("ahead", tuple(leads), len(leads))


def problems(results: Sequence[Result], declarations: Mapping[str, Declaration]) -> list[Problem]:
    """All that results and declared tables answer; settings of one method, as an overview compares, are left out."""
    found = []
    for benchmark in dict.fromkeys(result.key.benchmark for result in results):
        declared = declarations[benchmark]
        if any(isinstance(table, Overview) for table in declared.tables):
            continue
        own = in_order([r for r in results if r.key.benchmark == benchmark], declared)
        for variant in dict.fromkeys(result.key.variant for result in own):
            found += _of_variant([r for r in own if r.key.variant == variant], declared)
    return found


def _of_variant(results: Sequence[Result], declared: Declaration) -> list[Problem]:
    columns = {column.metric: column for column in _columns(results, declared)}
    methods = list(dict.fromkeys(result.key.method for result in results))
    benchmark, title, variant = declared.name, short_title(declared), results[0].key.variant
    variant = spelled(variant)
    found = []
    for kind in dict.fromkeys(metric.split("/")[0] for metric in columns if metric.endswith("/confidence/auroc")):
        column = columns[f"{kind}/confidence/auroc"]
        own = runs_by_method(results, methods, [columns.get(f"{kind}/information/auroc", column), column])
        found.append(Problem(DETECTION, benchmark, title, f"{variant}, {kind}", column, own))
    likelihoods: dict[str, Column] = {}
    for metric, column in columns.items():
        if metric.split("/")[-1].startswith("nll"):
            likelihoods.setdefault(metric.rpartition("/")[0], column)
    for column in likelihoods.values():
        place = column.title.removeprefix("NLL").strip()
        own = runs_by_method(results, methods, [column])
        found.append(Problem(LIKELIHOOD, benchmark, title, f"{variant}, {place}" if place else variant, column, own))
    return found


def _columns(results: Sequence[Result], declared: Declaration) -> list[Column]:
    """What the tables of a variant show of test data."""
    metrics = list(dict.fromkeys(metric for result in results for metric in result.metrics))
    tables = [table for table in declared.tables if isinstance(table, ByMethod)]
    found = [column for table in tables for one in table.made_for(metrics) for column in one.columns]
    return [c for c in found if c.metric in metrics and not c.metric.startswith("validation/")]


def runs_by_method(results: Sequence[Result], methods: Sequence[str], columns: Sequence[Column]) -> dict[str, Runs]:
    """Each method's numbers in the first of these columns that it has."""
    found = {}
    for method in methods:
        own = next((numbers for column in columns if (numbers := runs(results, method, column))), None)
        if own:
            found[method] = own
    return found


def spelled(variant: str) -> str:
    """A variant's name as a page shows it."""
    return SPELLED.get(variant, variant)


def short_title(declared: Declaration) -> str:
    """A benchmark's title without what is said about it."""
    return re.split(r" \(|: |, against|, under", declared.title)[0]
