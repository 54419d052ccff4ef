"""Mutation testing: change one thing in a module and see whether the tests of that module notice.

`make mutants` draws changes at random from the modules below (with a seed), adds those listed by hand, runs the
mirrored test files on each, and writes what came out as JSON. Every verdict is kept at once, in `verdicts.json`: what
is stopped, or runs out of `--minutes`, goes on from there, and what is known is tried again only if the module or its
tests have changed. docs/quality.md says what the survivors mean.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from itertools import chain, zip_longest
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
SLOW = ("numpy", "scipy.stats", "sklearn.metrics", "filterpy.kalman", "torch.func")  # to import
HAND = "by-hand"
SECONDS = 120  # of a processor: a mutant whose tests take more runs on for ever, which is to notice it as well
PATIENCE = 5  # times as long it may take in all, where others use the processor too
ENDED = {signal.SIGXCPU, signal.SIGALRM}  # what happens then
NOTICED, RAN_ON, SURVIVED = "noticed", "ran on", "SURVIVED"

# From which modules of a room mutants are drawn; their tests are the mirrored ones, or those named below.
ROOMS = {
    "filter": ("equations", "gains", "kalman"),
    "prediction": (
        *("bernoulli", "class_likelihoods", "classes", "gaussian", "likelihood", "likelihoods", "number_likelihoods"),
    ),
    "metrics": (
        *("calibration", "checks", "classification", "curves", "distances", "ood", "regression", "scores"),
        *("segmentation", "streaming"),
    ),
    "posterior": (
        *("activations", "conditioning", "covariance", "exact", "features", "file_checks", "fisher", "head", "laplace"),
        *("layers", "linear_regression", "linearised", "loudness", "packing", "posterior", "randomness"),
        *("recalibration", "rows", "scale_search", "waves", "without_rows"),
    ),
}
FAR_APART = "filter/test_kalman_long.py::test_looks_are_as_far_apart_as_both_the_option_and_the_resolution_say"
TESTS = {
    "filter/equations": ("filter/test_equations.py", "filter/test_kalman.py"),
    "filter/gains": ("filter/test_gains.py", "filter/test_properties.py"),
    "filter/kalman": ("filter/test_kalman.py", FAR_APART),
    "prediction/gaussian": ("prediction/test_gaussian.py", "prediction/test_likelihoods.py"),
    "prediction/bernoulli": ("prediction/test_bernoulli.py", "prediction/test_likelihoods.py"),
    "prediction/class_likelihoods": ("prediction/test_likelihoods.py", "prediction/test_classes.py"),
    "prediction/likelihood": ("prediction/test_likelihoods.py",),
    "prediction/number_likelihoods": ("prediction/test_likelihoods.py", "prediction/test_gaussian.py"),
    "posterior/covariance": ("posterior/test_covariance.py", "posterior/test_covariance_noise.py"),
    "posterior/packing": ("posterior/test_packing.py", "posterior/test_file_checks.py"),
    "posterior/without_rows": ("posterior/test_file_checks.py", "posterior/test_without_rows.py"),
    "metrics/checks": ("metrics/test_classification.py", "metrics/test_curves.py", "metrics/test_regression.py"),
}

Hand = tuple[str, str, str, tuple[str, ...]]  # module, what is there, what is put there, tests
BY_HAND: tuple[Hand, ...] = (
    ("posterior/waves", "(48 * ROUNDING", "(480 * ROUNDING",
     ("posterior/test_waves.py::test_entries_lie_a_power_of_two_apart_and_more_would_be_more_than_needed",)),
    ("posterior/layers", "1e-6 * max(map(abs, self.extent))", "0.0", ("posterior/test_layers.py",)),
    ("posterior/fisher", "each[each.isfinite()]", "each",
     ("posterior/test_fisher.py::test_a_sample_whose_likelihood_is_not_finite_says_nothing",)),
    ("methods/tradi", "second.to(device, dtype, copy=True)", "second.to(device, dtype)",
     ("methods/test_tradi.py::test_a_state_that_was_loaded_is_no_part_of_the_tracker",)),
    ("metrics/calibration", "known[:: -(-len(known) // ENOUGH)]", "known[:ENOUGH]", ("metrics/test_calibration.py",)),
    ("storage/tensors", "with replacing(path) as file", 'with Path(path).open("wb") as file',
     ("methods/test_deep_ensemble.py::test_a_run_whose_file_could_not_be_finished_leaves_none",)),
    ("filter/kalman", "max(self.every, stride)", "self.every", (FAR_APART,)),
    ("filter/kalman", "max(self.every, stride)", "stride", (FAR_APART,)),
    ("ensemble/joining", "all(output == first for output in outputs)", "True", ("ensemble/test_joining.py",)),
    ("methods/mc_dropout", "key(seed, member)", "seed + member", ("methods/test_mc_dropout.py",)),
    ("methods/mc_dropout", "key(seed, member)", "key(seed, 0)", ("methods/test_mc_dropout.py",)),
)  # fmt: skip

SWAPS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Pow: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
NAMES = {"min": "max", "max": "min", "clamp_min": "clamp_max", "any": "all", "all": "any", "mean": "sum"}


@dataclass(frozen=True)
class Mutant:
    """A change.

    Args:
        module: as a path below src/tradi, without suffix.
        line: of the original.
        before, after: the statement or expression as it was and as it is.
    """

    module: str
    line: int
    before: str
    after: str


@dataclass(frozen=True)
class Trial:
    """A module's source, changed or not, and the tests that run on it."""

    module: str
    source: str
    tests: tuple[str, ...]

    @property
    def key(self) -> str:
        """The same for the same sources."""
        texts = (read(f"tests/{test.partition('::')[0]}") for test in self.tests)
        return hashlib.sha256(json.dumps([self.module, self.source, *self.tests, *texts]).encode()).hexdigest()[:32]

    @property
    def unchanged(self) -> Trial:
        return Trial(self.module, read(f"src/tradi/{self.module}.py"), self.tests)

    def start(self, folder: Path) -> int:
        """Begin in a process of its own, which has what takes long to import already; the number of the process."""
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / f"src/tradi/{self.module}.py").write_text(self.source)
        child = os.fork()
        if child == 0:
            _run(folder, self.tests)
        return child


Planned = tuple[Mutant, Trial]


def read(path: str) -> str:
    return (ROOT / path).read_text()


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """What a node may be replaced by."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield _with(node, ops=[SWAPS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        yield _with(node, op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Name) and node.id in NAMES:
        yield _with(node, id=NAMES[node.id])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield _with(node, attr=NAMES[node.attr])
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield ast.Pass()
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that do something: no annotations, docstrings or messages."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list") or isinstance(tree, ast.Raise | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from places(child)


def mutants(module: str) -> list[Callable[[], tuple[Mutant, str]]]:
    """Every mutant of a module, and its source, as a function that makes them: few are drawn of many."""
    tree = ast.parse(read(f"src/tradi/{module}.py"))
    return [partial(_made, module, tree, node, variant) for node in places(tree) for variant in variants(node)]


def _made(module: str, tree: ast.AST, node: ast.AST, variant: ast.AST) -> tuple[Mutant, str]:
    kept = dict(vars(node)), node.__class__
    before = ast.unparse(node)
    line = getattr(node, "lineno", 0)
    _become(node, variant)
    changed = ast.unparse(ast.fix_missing_locations(copy.deepcopy(tree)))
    after = ast.unparse(node)
    vars(node).clear()
    vars(node).update(kept[0])
    node.__class__ = kept[1]
    return Mutant(module, line, before, after), changed


def by_hand() -> Iterator[Planned]:
    for module, before, after, tests in BY_HAND:
        source = read(f"src/tradi/{module}.py")
        if source.count(before) != 1:
            raise SystemExit(f"{module} no longer has {before!r} once: list another change")
        line = source[: source.index(before)].count("\n") + 1
        yield Mutant(module, line, before, after), Trial(module, source.replace(before, after), tests)


def tests_of(module: str) -> tuple[str, ...]:
    room, _, name = module.partition("/")
    return TESTS.get(module, (f"{room}/test_{name}.py",))


def tried(trials: Iterable[Trial], jobs: int, until: float) -> Iterator[tuple[Trial, str]]:
    """Trials with their verdicts, so many at a time; none begins after a time of `time.monotonic`."""
    waiting, running = deque(trials), dict[int, tuple[Trial, Path]]()
    with tempfile.TemporaryDirectory() as room:
        while running or (waiting and time.monotonic() < until):
            while waiting and len(running) < jobs and time.monotonic() < until:
                trial, folder = waiting.popleft(), Path(room) / str(len(waiting))
                running[trial.start(folder)] = trial, folder
            child, status = os.wait()
            trial, folder = running.pop(child)
            shutil.rmtree(folder)
            in_time = not (os.WIFSIGNALED(status) and os.WTERMSIG(status) in ENDED)
            yield trial, (NOTICED if status else SURVIVED) if in_time else RAN_ON


def _run(folder: Path, tests: tuple[str, ...]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, resource.RLIM_INFINITY))
    signal.alarm(PATIENCE * SECONDS)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    sys.path.insert(0, str(folder / "src"))
    sys.dont_write_bytecode = True
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT), "-k", "not real"]
    os._exit(int(pytest.main([*options, *(str(ROOT / "tests" / test) for test in tests)])))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _become(node: ast.AST, other: ast.AST) -> None:
    """Let a node be another one, wherever in the tree it is."""
    fields = dict(vars(copy.copy(other)))
    vars(node).clear()
    vars(node).update(fields)
    node.__class__ = other.__class__


def drawn(room: str, number: int, seed: int) -> Iterator[Planned]:
    """The first of all mutants of a room, in an order that the seed decides: fewer are the first of more."""
    found = [one for name in ROOMS[room] for one in mutants(f"{room}/{name}")]
    random.Random(seed).shuffle(found)
    for mutant, source in (make() for make in found[:number]):
        yield mutant, Trial(mutant.module, source, tests_of(mutant.module))


def try_all(plan: dict[str, list[Planned]], out: Path, jobs: int, until: float) -> None:
    """Try what has no verdict yet, a mutant of each room in turn, and write verdicts and reports again after each."""
    kept = out / "verdicts.json"
    verdicts: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    rows = list(chain(*zip_longest(*plan.values())))
    about = {trial: mutant for mutant, trial in filter(None, rows) if trial.key not in verdicts}

    def keep(trial: Trial, verdict: str) -> None:
        verdicts[trial.key] = verdict
        new = kept.with_suffix(".partial")
        new.write_text(json.dumps(verdicts, indent=0, sort_keys=True) + "\n")
        new.replace(kept)

    whole = [trial for trial in dict.fromkeys(trial.unchanged for trial in about) if trial.key not in verdicts]
    for trial, verdict in tried(whole, jobs, until):
        if verdict != SURVIVED:
            raise SystemExit(f"{', '.join(trial.tests)} fail with {trial.module} as it is")
        keep(trial, verdict)
    ready = [trial for trial in about if trial.unchanged.key in verdicts]
    for trial, verdict in tried(ready, jobs, until):
        keep(trial, verdict)
        mutant = about[trial]
        print(f"{verdict:8} {mutant.module}:{mutant.line} {mutant.before} -> {mutant.after}", flush=True)
        report(plan, verdicts, out)
    report(plan, verdicts, out)


def report(plan: dict[str, list[Planned]], verdicts: dict[str, str], out: Path) -> None:
    """A file per room: how many there are, what became of how many, and all that were tried."""
    for room, planned in plan.items():
        known = [asdict(mutant) | {"verdict": verdicts[t.key]} for mutant, t in planned if t.key in verdicts]
        counts = Counter(one["verdict"] for one in known)
        said = {"drawn": len(planned), "tried": len(known), **{v: counts[v] for v in (NOTICED, RAN_ON, SURVIVED)}}
        (out / f"{room}.json").write_text(json.dumps(said | {"all": known}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=[HAND, *ROOMS], help=f"{HAND}, or rooms: {', '.join(ROOMS)}")
    parser.add_argument("--out", type=Path, default=ROOT / "results/mutants")
    parser.add_argument("--number", type=int, default=50, help="of mutants that are drawn from each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no mutant is begun")
    options = parser.parse_args()
    if "tradi" in sys.modules:
        raise SystemExit("tradi is imported already: mutants would not be seen")
    torch.set_num_threads(1)
    for name in SLOW:
        import_module(name)
    options.out.mkdir(parents=True, exist_ok=True)
    plan = {
        room: list(by_hand() if room == HAND else drawn(room, options.number, options.seed)) for room in options.rooms
    }
    try_all(plan, options.out, options.jobs, time.monotonic() + 60 * options.minutes)


if __name__ == "__main__":
    main()
