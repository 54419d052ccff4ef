"""One runner for all benchmarks: cases in parallel, a file for every result, nothing done twice."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tradi.bench.measure import measure
from tradi.bench.methods import Method
from tradi.bench.problem import EVALUATED, Data
from tradi.bench.results import Key, Result, made_by, peak_memory_mb
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.training import Run, train
from tradi.extras import require

if TYPE_CHECKING:
    from rich.console import Console

QUICK_SAMPLES = 48
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What a user asks for.

    Args:
        data: root of the data.
        out: folder of the results.
        methods: names of methods, of variants, ...; None for all.
        variants, seeds, splits: likewise.
        quick: the smallest run that goes through everything; its results say nothing.
        jobs: processes.
        command: how this was called, for the record.
    """

    data: Path
    out: Path
    methods: tuple[str, ...] | None = None
    variants: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    splits: tuple[int, ...] | None = None
    quick: bool = False
    jobs: int = 1
    command: str = ""


@dataclass(frozen=True)
class Case:
    """One problem, split and seed, and the methods that are still missing: they share the training runs."""

    benchmark: str
    variant: Variant
    methods: dict[str, Method]
    seed: int
    split: int

    def __str__(self) -> str:
        return f"{self.benchmark}/{self.variant.name} split {self.split} seed {self.seed}"


@dataclass(frozen=True)
class Failure:
    """A method that raised, and where."""

    case: str
    method: str
    error: str


def cases(benchmark: Benchmark, options: Options) -> list[Case]:
    """What is left to do: everything asked for, less what is in the folder already."""
    methods = _chosen(benchmark.methods, options.methods, "method")
    variants = _chosen({variant.name: variant for variant in benchmark.variants}, options.variants, "variant")
    found = []
    for variant in variants.values():
        for split in (0,) if options.quick else options.splits or range(variant.splits):
            if not 0 <= split < variant.splits:
                raise ValueError(f"{variant.name} has splits 0 to {variant.splits - 1}, got {split}")
            for seed in benchmark.seeds[:1] if options.quick else options.seeds or benchmark.seeds:
                keys = {name: Key(benchmark.name, variant.name, name, seed, split) for name in methods}
                missing = {name: m for name, m in methods.items() if not keys[name].path(options.out).exists()}
                if missing:
                    found.append(Case(benchmark.name, variant, missing, seed, split))
    return found


def run(benchmark: Benchmark, options: Options) -> Iterator[tuple[Case, list[Failure]]]:
    """Work through the cases, handing over each as it ends; results are written on the way."""
    todo = cases(benchmark, options)
    if options.jobs == 1:
        yield from ((case, run_case(case, options)) for case in todo)
        return
    joblib = require("joblib", "parallel")
    parallel = joblib.Parallel(n_jobs=options.jobs, return_as="generator_unordered")
    yield from parallel(joblib.delayed(_with_case)(case, options) for case in todo)


def run_case(case: Case, options: Options) -> list[Failure]:
    """Train what the methods need and evaluate them one by one; a method that fails does not stop the others."""
    torch.set_num_threads(1)  # cases run beside each other, and small networks gain nothing from threads
    try:
        data = case.variant.load(options.data, case.split, case.seed)
    except Exception as error:
        return [Failure(str(case), name, f"{type(error).__name__}: {error}") for name in case.methods]
    recipe, methods = case.variant.recipe, case.methods
    if options.quick:
        data, recipe = data.first(QUICK_SAMPLES), recipe.quick()
        methods = {name: method.quick() for name, method in methods.items()}
    trained = _Trainings(case, data, partial(train, data=data, recipe=recipe), list(methods.values()))
    failures = []
    for name, method in methods.items():
        try:
            result: dict[str, Any] = {
                "key": Key(case.benchmark, case.variant.name, name, case.seed, case.split),
                "settings": {"method": repr(method), "recipe": repr(recipe), "quick": options.quick},
                "made_by": {"command": options.command, **made_by()},
            }
            Result(**result, **_evaluate(method, data, trained, case.seed)).write(options.out)
        except Exception:
            failures.append(Failure(str(case), name, traceback.format_exc()))
    return failures


@dataclass
class _Trainings:
    """The runs of a case, trained when first asked for, with every tracker that any method wants."""

    case: Case
    data: Data
    fit: Callable[..., Run]
    methods: list[Method]

    def __post_init__(self) -> None:
        self._runs: dict[tuple[float | None, int], Run] = {}

    def get(self, method: Method) -> list[Run]:
        return [self._run(method.dropout, number) for number in range(method.runs)]

    def _run(self, dropout: float | None, number: int) -> Run:
        if (dropout, number) not in self._runs:
            attach = {
                name: one
                for method in self.methods
                if method.dropout == dropout and number < method.runs
                for name, one in method.attach().items()
            }
            # Runs of one seed are as different as those of two: the number counts in steps that seeds do not reach.
            torch.manual_seed(self.case.seed + 1000 * number)
            model = self.case.variant.model(self.data, dropout)
            self._runs[dropout, number] = self.fit(model, attach=attach)
        return self._runs[dropout, number]


def _evaluate(method: Method, data: Data, trained: _Trainings, seed: int) -> dict[str, Any]:
    runs = trained.get(method)
    tracking = sum(run.tracking[tracker] for run in runs for tracker in method.attach())
    started = time.perf_counter()
    ensemble, notes = method.ensemble(runs, data, seed)
    prepared = time.perf_counter()
    ensemble.predict(data.test[0].split(EVALUATED))
    predicted = time.perf_counter()
    numbers, curves = measure(ensemble, data)
    seconds = {
        "training": sum(run.seconds for run in runs) + tracking,
        "tracking": tracking,
        "preparing": prepared - started,
        "predicting": predicted - prepared,
    }
    notes = notes | {"steps": [run.steps for run in runs]}
    return {
        "metrics": numbers,
        "curves": curves,
        "notes": notes,
        "seconds": seconds,
        "peak_memory_mb": peak_memory_mb(),
    }


def _with_case(case: Case, options: Options) -> tuple[Case, list[Failure]]:
    return case, run_case(case, options)


def _chosen(everything: dict[str, T], names: Sequence[str] | None, kind: str) -> dict[str, T]:
    for name in names or ():
        if name not in everything:
            raise ValueError(f"unknown {kind} {name!r}: choose from {', '.join(everything)}")
    return {name: value for name, value in everything.items() if names is None or name in names}


def show(benchmark: Benchmark, options: Options, console: Console) -> list[Failure]:
    """Run with a progress bar, an estimate of the time left, and a line for every failure."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    todo = cases(benchmark, options)
    console.print(f"{benchmark.name}: {len(todo)} cases to run, results in {options.out}", highlight=False)
    failures: list[Failure] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # Cases differ in length, so the estimate averages over all that are done.
    with Progress(*columns, console=console, speed_estimate_period=1e9) as progress:
        task = progress.add_task(benchmark.name, total=len(todo))
        for case, failed in run(benchmark, options):
            progress.update(task, advance=1, description=str(case))
            for failure in failed:
                console.print(
                    f"FAILED {failure.case}, {failure.method}:\n{failure.error}", markup=False, highlight=False
                )
            failures += failed
    return failures
