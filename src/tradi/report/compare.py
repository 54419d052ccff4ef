"""Numbers over seeds and splits: means, deviations, and by how much one method is ahead of another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tradi.bench.results import Result
from tradi.bench.tables import Column

Runs = dict[tuple[int, int], float]  # by seed and split


@dataclass(frozen=True)
class Lead:
    """By how much one method is better than another, over the runs of both; positive is better.

    Args:
        mean: of the differences, run by run.
        deviation: of these differences; None where there is one run, from which nothing follows.
    """

    mean: float
    deviation: float | None

    @property
    def ahead(self) -> bool:
        """Whether it is better by more than the deviation."""
        return self.deviation is not None and self.mean > self.deviation

    @property
    def behind(self) -> bool:
        """Whether it is worse by more than the deviation."""
        return self.deviation is not None and -self.mean > self.deviation


def runs(results: Sequence[Result], method: str, column: Column) -> Runs:
    """A method's numbers as a column prints them, by seed and split."""
    own = (r for r in results if r.key.method == method and column.metric in r.metrics)
    return {(r.key.seed, r.key.split): column.factor * r.metrics[column.metric] for r in own}


def mean(numbers: Runs) -> float:
    """Over seeds and splits."""
    return statistics.fmean(numbers.values())


def deviation(numbers: Runs) -> float | None:
    """The standard deviation over runs; None of a single one."""
    return statistics.stdev(numbers.values()) if len(numbers) > 1 else None


def lead(ours: Runs, theirs: Runs, higher: bool) -> Lead | None:
    """By how much `ours` is better, or None where no run is of both.

    Args:
        ours: numbers of a method.
        theirs: numbers of another.
        higher: whether higher is better.
    """
    both = [key for key in ours if key in theirs]
    if not both:
        return None
    differences = [ours[key] - theirs[key] if higher else theirs[key] - ours[key] for key in both]
    return Lead(statistics.fmean(differences), statistics.stdev(differences) if len(both) > 1 else None)


def best(numbers: Sequence[Runs], column: Column) -> int | None:
    """The place of the method that is ahead of all others of as many runs, in print and by more than the deviation."""
    if column.higher is None:
        return None
    most = max((len(one) for one in numbers), default=0)
    compared = [place for place, one in enumerate(numbers) if one and len(one) == most]
    if len(compared) < 2:
        return None
    top = (max if column.higher else min)(compared, key=lambda place: mean(numbers[place]))
    for place in compared:
        ahead = lead(numbers[top], numbers[place], column.higher)
        alike = round(mean(numbers[top]), column.digits) == round(mean(numbers[place]), column.digits)
        if place != top and (ahead is None or not ahead.ahead or alike):
            return None
    return top


def in_trainings(result: Result) -> float | None:
    """Time until a method can predict, in units of one of its trainings without tracking."""
    networks = len(result.notes.get("steps") or ())
    trained = result.seconds["training"]
    plain = trained - result.seconds.get("tracking", 0.0)
    whole = trained + result.seconds.get("preparing", 0.0)
    return whole / (plain / networks) if networks and plain > 0 else None
