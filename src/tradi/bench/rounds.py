"""Active learning: a network that starts with a few labels and asks for more, round by round."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from tradi.acquisition import acquire, bald
from tradi.acquisition.joint import BatchBALD
from tradi.acquisition.pool import Score
from tradi.bench.evaluate import evaluate
from tradi.bench.methods import Method, Single
from tradi.bench.problem import Data, Problem
from tradi.bench.recipe import Recipe
from tradi.bench.row import Detector, Notes
from tradi.bench.training import Attach, Run, train
from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import Ensemble

RUN, SEEDS = 1000, 100_000  # what seeds of runs and of rounds differ by
CURVE = "learning_curve"  # what the names of curves end in, after that of a measure


@dataclass(frozen=True)
class Rounds:
    """How many labels there are in each round. A problem's training data is the pool.

    Args:
        labels: in each round, the first ones drawn at random.
        held: share of the labels that serve as validation data, so that settings cost labels too.
    """

    labels: tuple[int, ...]
    held: float = 0.2

    def quick(self) -> Rounds:
        """Two small ones."""
        return Rounds((10, 20), self.held)


@dataclass(frozen=True)
class Asking:
    """A method that says which samples are labelled next.

    Args:
        method: gives the ensemble that is asked, and that predicts test data.
        score: by which it asks.
    """

    method: Method = field(default_factory=Single)
    score: Score | BatchBALD = bald

    @property
    def runs(self) -> int:
        return self.method.runs

    @property
    def dropout(self) -> float | None:
        return self.method.dropout

    def recipe(self, usual: Recipe) -> Recipe:
        return self.method.recipe(usual)

    def attach(self) -> dict[str, Attach]:
        return self.method.attach()

    def ensemble(self, runs: Sequence[Run], data: Problem, seed: int) -> tuple[Ensemble | Detector, Notes]:
        return self.method.ensemble(runs, data, seed)

    def quick(self) -> Asking:
        return replace(self, method=self.method.quick())


@dataclass(frozen=True)
class Course:
    """What all methods of a variant have in common.

    Args:
        rounds: how many labels there are.
        model: builds a fresh network for the pool, given a dropout rate.
        recipe: trains it in every round; each goes on from the weights of the one before.
    """

    rounds: Rounds
    model: Callable[[Any, float | None], nn.Module]
    recipe: Recipe


def learn(row: Asking, course: Course, pool: Data, seed: int) -> dict[str, Any]:
    """All rounds of one method: what its result file holds."""
    sizes, generator = course.rounds.labels, torch.Generator().manual_seed(seed)
    left = torch.randperm(len(pool.train[0]), generator=generator)
    asked, left = left[: sizes[0]], left[sizes[0] :]
    learnt = held = torch.empty(0, dtype=torch.long)
    seconds = dict.fromkeys(("training", "tracking", "preparing", "acquiring", "predicting"), 0.0)
    runs: list[Run] = []
    steps = [0] * row.runs
    measured: list[dict[str, float]] = []
    notes: Notes = {}
    for number, size in enumerate(sizes):
        asked = asked[torch.randperm(len(asked), generator=generator)]
        share = round(course.rounds.held * len(asked))
        held, learnt = torch.cat([held, asked[:share]]), torch.cat([learnt, asked[share:]])
        data = _labelled(pool, learnt, held)
        clock = Clock()
        runs = _trained(row, course, pool, data, runs, seed + SEEDS * number)
        steps = [before + run.steps for before, run in zip(steps, runs, strict=True)]
        training = clock.lap()
        seconds["training"] += training
        seconds["tracking"] += training * _tracking(runs)
        ensemble, notes = row.ensemble(runs, data, seed)
        assert isinstance(ensemble, Ensemble)
        seconds["preparing"] += clock.lap()
        if number + 1 < len(sizes):
            asked = left[_ask(row, ensemble, pool, left, sizes[number + 1] - size, seed + SEEDS * number)]
            left = left[~torch.isin(left, asked)]
            seconds["acquiring"] += clock.lap()
        tested = evaluate(ensemble, data)
        measured.append(tested.metrics)
        seconds["predicting"] += tested.seconds
    return _found(sizes, measured, seconds, notes | {"steps": steps})


class Clock:
    """Seconds of the processor since it was last asked: other work on the machine does not count."""

    def __init__(self) -> None:
        self._before = time.process_time()

    def lap(self) -> float:
        """Seconds, and start again."""
        before, self._before = self._before, time.process_time()
        return self._before - before


def _labelled(pool: Data, learnt: Tensor, held: Tensor) -> Data:
    (x, y) = pool.train
    return replace(pool, train=(x[learnt], y[learnt]), validation=(x[held], y[held]))


def _trained(row: Asking, course: Course, pool: Data, data: Data, before: Sequence[Run], seed: int) -> list[Run]:
    """The runs of a round: each goes on from the weights of the round before.

    No tracker has the posterior of that round for its prior: the labels of a round are among those of the next, which
    would count them twice.
    """
    runs = []
    for number in range(row.runs):
        torch.manual_seed(seed + RUN * number)
        model = copied(before[number].model).train() if before else course.model(pool, row.dropout)
        runs.append(train(model, data, row.recipe(course.recipe), row.attach()))
    return runs


def _tracking(runs: Sequence[Run]) -> float:
    """Its share of the time of training."""
    tracking = sum(sum(run.tracking.values()) for run in runs)
    return tracking / (tracking + sum(run.seconds for run in runs))


def _ask(row: Asking, ensemble: Ensemble, pool: Data, left: Tensor, n: int, seed: int) -> Tensor:
    batches = [pool.train[0][part] for part in left.split(pool.at_once)]
    likelihood = ensemble.likelihood or pool.likelihood
    with warnings.catch_warnings():
        # Members that are all alike are a result of a row like another: its labels are then those of chance.
        warnings.filterwarnings("ignore", "the scores of all")
        return acquire(ensemble, batches, n, score=row.score, seed=seed, likelihood=likelihood)


def _found(
    sizes: Sequence[int], measured: Sequence[dict[str, float]], seconds: dict[str, float], notes: Notes
) -> dict[str, Any]:
    """Measures of the last round, their averages over the curve, and what a round costs beside its training."""
    labels = torch.tensor(sizes, dtype=torch.float64)
    metrics, curves = dict(measured[-1]), {}
    for name in measured[-1]:
        values = [one[name] for one in measured]
        area = torch.trapezoid(torch.tensor(values, dtype=torch.float64), labels) / (labels[-1] - labels[0])
        metrics[f"average/{name}"] = area.item()
        curves[f"{name}/{CURVE}"] = {"labels": list(sizes), "value": values}
    beside = seconds["preparing"] + seconds["acquiring"]
    metrics["round/seconds"] = (seconds["training"] + beside) / len(sizes)
    metrics["round/beside"] = beside / seconds["training"]
    return {
        "metrics": metrics,
        "curves": curves,
        "notes": notes,
        "seconds": seconds,
    }
