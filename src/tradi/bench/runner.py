"""One runner for all benchmarks: cases in parallel, a file for every result, nothing done twice."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tradi.bench.measure import measure
from tradi.bench.measured import Pictures
from tradi.bench.methods import Method
from tradi.bench.problem import Problem
from tradi.bench.results import Key, Result, forget_peak_memory, made_by, peak_memory_mb, write_pictures
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.training import Run, train
from tradi.extras import require
from tradi.progress import hosted_by, time_left

if TYPE_CHECKING:
    from rich.console import Console

RUN = 1000  # what seeds of one method's runs differ by
KILLED = "a process was killed that this or another case ran in, perhaps for want of memory: run again to go on"
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What a user asks for.

    Args:
        data: root of the data.
        out: folder of the results.
        methods: names of methods; None for all.
        variants: names of variants; None for all that are not optional.
        seeds, splits: numbers; None for all.
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

    def missing(self, out: Path) -> list[str]:
        """The methods that have no result yet."""
        return [name for name in self.methods if not self.key(name).is_done(out)]

    def key(self, method: str) -> Key:
        return Key(self.benchmark, self.variant.name, method, self.seed, self.split)

    def threads(self, options: Options) -> int:
        """Threads of torch: one, for small networks gain nothing from more, but heavy cases share all cores."""
        heavy = self.variant.heavy and not options.quick
        return max(1, (os.cpu_count() or 1) // options.jobs) if heavy else 1

    def checkpoint(self, out: Path, dropout: float | None, number: int) -> Path | None:
        """Where a heavy training run is kept, beside the results: it may be deleted once they are there."""
        own = "" if dropout is None else f"-dropout-{dropout:g}"
        name = f"seed-{self.seed}-split-{self.split}{own}-run-{number}.pt"
        return out / ".runs" / self.benchmark / self.variant.name / name if self.variant.heavy else None


@dataclass(frozen=True)
class Failure:
    """A method that raised, and where."""

    case: str
    method: str
    error: str


def cases(benchmark: Benchmark, options: Options) -> list[Case]:
    """What is left to do: everything asked for, less what is in the folder already."""
    default = tuple(variant.name for variant in benchmark.variants if not variant.optional)
    variants = _chosen({v.name: v for v in benchmark.variants}, options.variants or default, "variant")
    found = []
    for variant in variants.values():
        methods = _chosen(benchmark.methods_of(variant), options.methods, "method")
        for split in (0,) if options.quick else options.splits or range(variant.splits):
            if not 0 <= split < variant.splits:
                raise ValueError(f"{variant.name} has splits 0 to {variant.splits - 1}, got {split}")
            for seed in benchmark.seeds[:1] if options.quick else options.seeds or benchmark.seeds:
                if not 0 <= seed < RUN:
                    raise ValueError(f"seeds are 0 to {RUN - 1}, got {seed}")
                case = Case(benchmark.name, variant, methods, seed, split)
                missing = {name: methods[name] for name in case.missing(options.out)}
                if missing:
                    found.append(replace(case, methods=missing))
    return found


def run(benchmark: Benchmark, options: Options) -> Iterator[tuple[Case, list[Failure]]]:
    """Work through the cases, handing over each as it ends; results are written on the way."""
    todo = cases(benchmark, options)
    if options.jobs == 1:
        yield from ((case, run_case(case, options)) for case in todo)
        return
    joblib = require("joblib", "parallel")
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(enumerate(todo))
    while left:
        parallel = joblib.Parallel(n_jobs=options.jobs, return_as="generator_unordered", batch_size=1)
        jobs = [joblib.delayed(_numbered)(number, case, options) for number, case in left.items()]
        try:
            for number, failures in parallel(jobs):
                yield left.pop(number), failures
        except TerminatedWorkerError:  # for want of memory, most likely; the pool is gone, and a new one takes over
            for number in list(left)[: options.jobs]:  # cases begin in order: these were under way
                case = left.pop(number)
                yield case, [Failure(str(case), name, KILLED) for name in case.missing(options.out)]


def run_case(case: Case, options: Options) -> list[Failure]:
    """Train what the methods need and evaluate them one by one; a method that fails does not stop the others."""
    threads = case.threads(options)
    torch.set_num_threads(threads)
    variant, methods = case.variant, case.methods
    if options.quick:
        variant, methods = variant.quick(), {name: method.quick() for name, method in methods.items()}
    try:
        problem = case.variant.problem(options.data, case.split, case.seed, options.quick)
    except Exception as error:
        return [Failure(str(case), "all methods", f"{type(error).__name__}: {error}")]
    trained = _Trainings(case, variant, problem, options.out, list(methods.values()))
    failures = []
    for name, method in methods.items():
        try:
            result: dict[str, Any] = {
                "key": case.key(name),
                "settings": {
                    "method": repr(method),
                    "recipe": repr(variant.recipe),
                    "data": problem.about,
                    "quick": options.quick,
                },
                "made_by": {"command": options.command, **made_by(), "threads": threads},
            }
            forget_peak_memory()
            found, pictures = _evaluate(method, problem, trained, case.seed)
            if pictures and case.seed == 0:
                write_pictures(result["key"], options.out, pictures)
            Result(**result, **found).write(options.out)
        except Exception:
            failures.append(Failure(str(case), name, traceback.format_exc()))
    return failures


@dataclass
class _Trainings:
    """The runs of a case, trained when first asked for, with every tracker that any method wants."""

    case: Case
    variant: Variant
    problem: Problem
    out: Path
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
            torch.manual_seed(self.case.seed + RUN * number)
            model = self.variant.model(self.problem, dropout)
            place = self.case.checkpoint(self.out, dropout, number)
            self._runs[dropout, number] = train(model, self.problem, self.variant.recipe, attach, place)
        return self._runs[dropout, number]


def _evaluate(method: Method, problem: Problem, trained: _Trainings, seed: int) -> tuple[dict[str, Any], Pictures]:
    runs = trained.get(method)
    tracking = sum(run.tracking[tracker] for run in runs for tracker in method.attach())
    started = time.perf_counter()
    ensemble, notes = method.ensemble(runs, problem, seed)
    prepared = time.perf_counter()
    measured = measure(ensemble, problem)
    seconds = {
        "training": sum(run.seconds for run in runs) + tracking,
        "tracking": tracking,
        "preparing": prepared - started,
        "predicting": measured.seconds,
    }
    notes = notes | {"steps": [run.steps for run in runs]}
    found = {
        "metrics": measured.metrics,
        "curves": measured.curves,
        "notes": notes,
        "seconds": seconds,
        "peak_memory_mb": peak_memory_mb(),
    }
    return found, measured.pictures


def _numbered(number: int, case: Case, options: Options) -> tuple[int, list[Failure]]:
    return number, run_case(case, options)


def _chosen(everything: dict[str, T], names: Sequence[str] | None, kind: str) -> dict[str, T]:
    for name in names or ():
        if name not in everything:
            raise ValueError(f"unknown {kind} {name!r}: choose from {', '.join(everything)}")
    return {name: value for name, value in everything.items() if names is None or name in names}


def show(benchmark: Benchmark, options: Options, console: Console) -> list[Failure]:
    """Run with a progress bar, an estimate of the time left, and a line for every failure."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    todo = cases(benchmark, options)
    options.out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=options.out):  # that nothing can be written there is better known now than after training
        pass
    console.print(f"{benchmark.name}: {len(todo)} cases to run, results in {options.out}", highlight=False)
    failures: list[Failure] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), time_left())
    with Progress(*columns, console=console) as progress, hosted_by(progress):
        task = progress.add_task(benchmark.name, total=len(todo))
        for case, failed in run(benchmark, options):
            progress.update(task, advance=1, description=str(case))
            for failure in failed:
                known = failure.error in (other.error for other in failures)
                text = f"FAILED {failure.case}, {failure.method}: {'as above' if known else failure.error}"
                console.print(text, markup=False, highlight=False, soft_wrap=True)
                failures.append(failure)
    return failures
