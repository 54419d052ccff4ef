"""Mutation testing: change one thing in a module and see whether the tests of that module notice.

`make mutants` draws changes at random from the modules below (with a seed), adds those listed by hand, runs the
mirrored test files on each, and writes what came out as JSON. docs/quality.md says what the survivors mean.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
SLOW = ("numpy", "scipy.stats", "sklearn.metrics", "filterpy.kalman", "torch.func")  # to import
HAND = "by-hand"
SECONDS = 300  # after which a mutant counts as noticed: it runs for ever

# How many mutants are drawn from a room, and from which modules; their tests are the mirrored ones, or those named.
ROOMS = {
    "filter": (24, ("equations", "gains", "kalman")),
    "prediction": (
        22,
        ("bernoulli", "class_likelihoods", "classes", "gaussian", "likelihood", "likelihoods", "number_likelihoods"),
    ),
    "metrics": (
        34,
        (
            *("calibration", "checks", "classification", "curves", "distances", "ood", "regression", "scores"),
            *("segmentation", "streaming"),
        ),
    ),
    "posterior": (
        20,
        ("activations", "features", "fisher", "layers", "linear_regression", "randomness", "rows"),
    ),
}
FAR_APART = "filter/test_kalman_long.py::test_looks_are_as_far_apart_as_both_the_option_and_the_resolution_say"
TESTS = {
    "filter/equations": ("filter/test_equations.py", "filter/test_kalman.py"),
    "filter/gains": ("filter/test_gains.py", "filter/test_properties.py"),
    "filter/kalman": ("filter/test_kalman.py", FAR_APART),
    "prediction/gaussian": ("prediction/test_gaussian.py", "prediction/test_likelihoods.py"),
    "prediction/bernoulli": ("prediction/test_likelihoods.py",),
    "prediction/class_likelihoods": ("prediction/test_likelihoods.py", "prediction/test_classes.py"),
    "prediction/likelihood": ("prediction/test_likelihoods.py",),
    "prediction/number_likelihoods": ("prediction/test_likelihoods.py", "prediction/test_gaussian.py"),
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
    ("methods/tradi", "_state_dtype(weight.parameter), copy=True)", "_state_dtype(weight.parameter))",
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
    """A change and what became of it.

    Args:
        module: as a path below src/tradi, without suffix.
        line: of the original.
        before, after: the statement or expression as it was and as it is.
        noticed: whether a test failed.
    """

    module: str
    line: int
    before: str
    after: str
    noticed: bool | None = None


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


def mutants(module: str) -> list[tuple[Mutant, str]]:
    """Every mutant of a module, with its source."""
    source = (ROOT / f"src/tradi/{module}.py").read_text()
    tree = ast.parse(source)
    found = []
    for node in places(tree):
        for variant in variants(node):
            kept = dict(vars(node)), node.__class__
            before = ast.unparse(node)
            line = getattr(node, "lineno", 0)
            _become(node, variant)
            changed = ast.unparse(ast.fix_missing_locations(copy.deepcopy(tree)))
            after = ast.unparse(node)
            vars(node).clear()
            vars(node).update(kept[0])
            node.__class__ = kept[1]
            found.append((Mutant(module, line, before, after), changed))
    return found


def by_hand() -> Iterator[tuple[Mutant, str, tuple[str, ...]]]:
    for module, before, after, tests in BY_HAND:
        source = (ROOT / f"src/tradi/{module}.py").read_text()
        if source.count(before) != 1:
            raise SystemExit(f"{module} no longer has {before!r} once: list another change")
        line = source[: source.index(before)].count("\n") + 1
        yield Mutant(module, line, before, after), source.replace(before, after), tests


def tests_of(module: str) -> tuple[str, ...]:
    room, _, name = module.partition("/")
    return TESTS.get(module, (f"{room}/test_{name}.py",))


@cache
def check_whole(module: str, tests: tuple[str, ...]) -> None:
    """Raise unless the tests pass as long as nothing is changed."""
    source = (ROOT / f"src/tradi/{module}.py").read_text()
    if is_noticed(module, source, tests):
        raise SystemExit(f"{', '.join(tests)} fail with {module} as it is")


def is_noticed(module: str, source: str, tests: tuple[str, ...]) -> bool:
    """Run the tests in a process of its own, which has what takes long to import already."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / f"src/tradi/{module}.py").write_text(source)
        child = os.fork()
        if child == 0:
            _run(Path(folder), tests)
        _, status = os.waitpid(child, 0)
    return status != 0


def _run(folder: Path, tests: tuple[str, ...]) -> None:
    signal.alarm(SECONDS)
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


def drawn(room: str, seed: int) -> Iterator[tuple[Mutant, str, tuple[str, ...]]]:
    count, names = ROOMS[room]
    found = [one for name in names for one in mutants(f"{room}/{name}")]
    for mutant, source in random.Random(seed).sample(found, count):
        yield mutant, source, tests_of(mutant.module)


def run(room: str, seed: int, out: Path) -> None:
    """Try the mutants of a room, and write the file again after each."""
    done: list[Mutant] = []
    for mutant, source, tests in by_hand() if room == HAND else drawn(room, seed):
        check_whole(mutant.module, tests)
        found = replace(mutant, noticed=is_noticed(mutant.module, source, tests))
        done.append(found)
        print(
            f"{'noticed ' if found.noticed else 'SURVIVED'} {found.module}:{found.line} {found.before} -> {found.after}"
        )
        sys.stdout.flush()
        noticed = sum(bool(one.noticed) for one in done)
        about = {"seed": seed, "mutants": len(done), "noticed": noticed, "all": [asdict(one) for one in done]}
        (out / f"{room}.json").write_text(json.dumps(about, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", default=[HAND, *ROOMS], help=f"{HAND}, or rooms: {', '.join(ROOMS)}")
    parser.add_argument("--out", type=Path, default=ROOT / "results/mutants")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if "tradi" in sys.modules:
        raise SystemExit("tradi is imported already: mutants would not be seen")
    torch.set_num_threads(1)
    for name in SLOW:
        import_module(name)
    options.out.mkdir(parents=True, exist_ok=True)
    for room in options.rooms:
        run(room, options.seed, options.out)


if __name__ == "__main__":
    main()
