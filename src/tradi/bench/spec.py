"""A benchmark is data: what to load, what to train, which methods to compare, and what its tables show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from tradi.bench.declaration import Declaration
from tradi.bench.methods import Method
from tradi.bench.problem import Problem
from tradi.bench.recipe import Recipe
from tradi.bench.rounds import Asking, Rounds
from tradi.bench.tables import Published, Table

OTHER_RUNS = "-other-runs"  # what the name of a variant is followed by where its further networks are evaluated
QUICK_SAMPLES, QUICK_IMAGES = 48, 16  # of a quick run; the latter where variants are heavy


@dataclass(frozen=True)
class Variant:
    """One problem of a benchmark: a data set, or a recipe.

    Args:
        name: in tables and file names.
        load: reads the data, given the data root, the published split and the seed.
        model: builds a fresh network for the data, given a dropout rate (None: the benchmark's own).
        recipe: trains it.
        splits: number of published splits.
        optional: it runs only when it is asked for by name.
        heavy: a training takes many minutes: all cores work on it, and what is trained is kept (see `training`).
        methods: in place of the benchmark's.
        miniature: what a quick run takes in its place, where data or network are too large for one.
        other_runs: names of methods of one training that can be evaluated on the other networks of the Deep Ensemble
            too. Their results are those of a variant `<name>-other-runs`, which runs only when it is asked for by name
            and whose split is the number of the network.
        before: an earlier training on another problem: every run begins with its weights where names and shapes are the
            same, unless its recipe is from scratch. It runs once for every seed and is kept beside the results.
    """

    name: str
    load: Callable[[Path, int, int], Problem]
    model: Callable[[Any, float | None], nn.Module]  # the problem is one that `load` gives
    recipe: Recipe
    splits: int = 1
    optional: bool = False
    heavy: bool = False
    methods: dict[str, Method] | None = None
    miniature: Variant | None = None
    other_runs: tuple[str, ...] = ()
    before: Variant | None = None
    rounds: Rounds | None = None

    def __post_init__(self) -> None:
        if self.other_runs and self.splits > 1:
            raise ValueError(f"{self.name} has {self.splits} splits, and other_runs= is for variants with one")

    def problem(self, data: Path, split: int, seed: int, quick: bool) -> Problem:
        """What is to be solved; in a quick run a small part of it."""
        if not quick:
            return self.load(data, split, seed)
        return self.quick().load(data, split, seed).first(QUICK_IMAGES if self.heavy else QUICK_SAMPLES)

    def quick(self) -> Variant:
        """The same, as small as can be."""
        small = self.miniature or self
        before = None if self.before is None else self.before.quick()
        rounds = None if small.rounds is None else small.rounds.quick()
        return replace(small, recipe=small.recipe.quick(), other_runs=self.other_runs, before=before, rounds=rounds)


@dataclass(frozen=True)
class Benchmark:
    """Problems times methods times seeds.

    Args:
        name: on the command line.
        title: in the report.
        variants: the problems.
        methods: by name, in the order of the tables.
        tables: what they show.
        seeds: independent repetitions of everything random.
        published: figures to stand beside ours in tables by method.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    methods: dict[str, Method]
    tables: tuple[Table, ...]
    seeds: tuple[int, ...] = (0,)
    published: Published = field(default_factory=dict)

    def __post_init__(self) -> None:
        for variant in self.variants:
            unknown = [name for name in variant.other_runs if name not in self.methods_of(variant)]
            if unknown:
                raise ValueError(f"other_runs of {variant.name} names methods that it does not have: {unknown}")
            asking = [isinstance(method, Asking) for method in self.methods_of(variant).values()]
            if asking != [variant.rounds is not None] * len(asking):
                raise ValueError(f"methods of {variant.name} must be Asking where it has rounds, and only there")
            if variant.other_runs and self.networks(variant) < 2:
                raise ValueError(
                    f"other_runs of {variant.name} needs a method of several trainings, such as Deep(runs=3)"
                )

    def methods_of(self, variant: Variant) -> dict[str, Method]:
        """The methods that a variant is solved by."""
        return self.methods if variant.methods is None else variant.methods

    def networks(self, variant: Variant) -> int:
        """Trainings of one case of a variant: as many as the method with the most runs needs."""
        return max(method.runs for method in self.methods_of(variant).values())

    def declaration(self) -> Declaration:
        """What a report must know of it."""
        variants = [variant.name for variant in self.variants]
        variants += [variant.name + OTHER_RUNS for variant in self.variants if variant.other_runs]
        methods = dict.fromkeys(name for variant in self.variants for name in self.methods_of(variant))
        return Declaration(self.name, self.title, tuple(variants), tuple(methods), self.tables, self.published)
