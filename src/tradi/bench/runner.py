"""One runner for all benchmarks: cases in parallel, a file for every result, nothing done twice."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tradi.bench.cases import RUN, Case, Options, cases
from tradi.bench.engines import Failure, in_processes, in_this_process, on_ray
from tradi.bench.evaluate import evaluate
from tradi.bench.evaluation import Pictures
from tradi.bench.methods import Method, Tradi
from tradi.bench.problem import Data, Problem
from tradi.bench.recipe import Recipe
from tradi.bench.results import Result, forget_peak_memory, made_by, peak_memory_mb, write_pictures
from tradi.bench.rounds import Asking, Course, learn
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.training import Run, train
from tradi.posterior.posterior import Posterior
from tradi.progress import hosted_by, time_left

PRIOR = "prior"  # what tracks an earlier training

if TYPE_CHECKING:
    from rich.console import Console


def run(benchmark: Benchmark, options: Options) -> Iterator[tuple[Case, list[Failure]]]:
    """Work through the cases, handing over each as it ends; results are written on the way.

    What a report must know of the benchmark is written beside them, before anything runs.
    """
    todo = cases(benchmark, options)
    benchmark.declaration().write(options.out)
    if options.engine == "ray":
        return on_ray(run_case, todo, options)
    return (in_this_process if options.jobs in (None, 1) else in_processes)(run_case, todo, options)


def run_case(case: Case, options: Options) -> list[Failure]:
    """Train what the methods need and evaluate them one by one; a method that fails does not stop the others."""
    threads = case.threads(options)
    torch.set_num_threads(threads)
    variant, methods = case.variant, case.methods
    if options.quick:
        variant, methods = variant.quick(), {name: method.quick() for name, method in methods.items()}
    try:
        problem = case.problem(options)
    except Exception as error:
        return [Failure(str(case), "all methods", f"{type(error).__name__}: {error}")]
    trained = _Trainings(case, variant, problem, options, methods)
    failures = []
    for name, method in methods.items():
        if case.key(name).is_done(options.out):
            continue  # by another process, since this one began
        try:
            result: dict[str, Any] = {
                "key": case.key(name),
                "settings": {
                    "method": repr(method),
                    "recipe": repr(method.recipe(variant.recipe)),
                    "data": problem.about,
                    "quick": options.quick,
                },
                "made_by": {"command": options.command, **made_by(), "threads": threads},
            }
            forget_peak_memory()
            found, pictures = _found(method, variant, problem, trained, case.seed)
            if pictures and case.seed == case.network == 0:
                write_pictures(result["key"], options.out, pictures)
            Result(**result, **found).write(options.out)
        except OSError as error:  # a full disk, a folder that is read-only, data that is gone
            failures.append(Failure(str(case), name, f"{type(error).__name__}: {error}"))
        except Exception:
            failures.append(Failure(str(case), name, traceback.format_exc()))
    return failures


@dataclass
class _Trainings:
    """The runs of a case, trained when first asked for, with every tracker that any method wants."""

    case: Case
    variant: Variant
    problem: Problem
    options: Options
    methods: dict[str, Method]

    def __post_init__(self) -> None:
        self._runs: dict[tuple[Recipe, float | None, int], Run] = {}
        self._before: Run | None = None

    def get(self, method: Method) -> list[Run]:
        first = self.case.network
        recipe = method.recipe(self.variant.recipe)
        return [self._run(recipe, method.dropout, number) for number in range(first, first + method.runs)]

    def _on(self, number: int) -> list[Method]:
        """The methods that are given this run, now or when other runs are evaluated: it is trained once for both."""
        return [
            method
            for name, method in self.methods.items()
            if self.case.network <= number < self.case.network + method.runs or name in self.variant.other_runs
        ]

    def _run(self, recipe: Recipe, dropout: float | None, number: int) -> Run:
        usual = self.variant.recipe
        if (recipe, dropout, number) not in self._runs:
            attach = {
                name: one
                for method in self._on(number)
                if (method.recipe(usual), method.dropout) == (recipe, dropout)
                for name, one in method.attach().items()
            }
            # Runs of one seed are as different as those of two: the number counts in steps that seeds do not reach.
            torch.manual_seed(self.case.seed + RUN * number)
            model = self.variant.model(self.problem, dropout)
            prior = None if recipe.scratch else self._begun(model)
            # A recipe of a method's own keeps nothing: not every optimizer's state_dict says all that it goes on from.
            place = self.case.checkpoint(self.options.out, dropout, number) if recipe == usual else None
            self._runs[recipe, dropout, number] = train(
                model, self.problem, replace(recipe, prior=prior), attach, place
            )
        return self._runs[recipe, dropout, number]

    def _begun(self, model: nn.Module) -> Posterior | None:
        """Put the weights of the earlier training into a network, if there is one; its posterior."""
        if self.variant.before is None:
            return None
        if self._before is None:
            self._before = self._earlier(self.variant.before)
        own, theirs = model.state_dict(), self._before.model.state_dict()
        model.load_state_dict(own | {n: t for n, t in theirs.items() if n in own and own[n].shape == t.shape})
        return self._before.posteriors[PRIOR]

    def _earlier(self, before: Variant) -> Run:
        options, random = self.options, torch.get_rng_state()
        problem = before.problem(options.data, 0, self.case.seed, options.quick)
        assert isinstance(problem, Data)
        torch.manual_seed(self.case.seed)
        case = Case(self.case.benchmark, before, {}, self.case.seed, 0)
        run = train(
            before.model(problem, None),
            problem,
            before.recipe,
            {PRIOR: Tradi().build},
            case.checkpoint(options.out, None, 0),
        )
        prior = run.posteriors[PRIOR].condition(problem.training_batches, likelihood=problem.likelihood)
        torch.set_rng_state(random)  # what follows does not depend on whether this was kept
        return replace(run, posteriors={PRIOR: prior})


def _found(
    method: Method, variant: Variant, problem: Problem, trained: _Trainings, seed: int
) -> tuple[dict[str, Any], Pictures]:
    """What a result file holds of a method, and pictures."""
    if isinstance(method, Asking) and variant.rounds is not None and isinstance(problem, Data):
        course = Course(variant.rounds, variant.model, variant.recipe)
        return learn(method, course, problem, seed) | {"peak_memory_mb": peak_memory_mb()}, {}
    return _evaluate(method, problem, trained, seed)


def _evaluate(method: Method, problem: Problem, trained: _Trainings, seed: int) -> tuple[dict[str, Any], Pictures]:
    runs = trained.get(method)
    tracking = sum(run.tracking[tracker] for run in runs for tracker in method.attach())
    started = time.perf_counter()
    ensemble, notes = method.ensemble(runs, problem, seed)
    prepared = time.perf_counter()
    measured = evaluate(ensemble, problem)
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
