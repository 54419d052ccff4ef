"""A benchmark is data: what to load, what to train, and which methods to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from tradi.bench.methods import Method
from tradi.bench.problem import Problem
from tradi.bench.recipe import Recipe

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

    def problem(self, data: Path, split: int, seed: int, quick: bool) -> Problem:
        """What is to be solved; in a quick run a small part of it."""
        if not quick:
            return self.load(data, split, seed)
        return self.quick().load(data, split, seed).first(QUICK_IMAGES if self.heavy else QUICK_SAMPLES)

    def quick(self) -> Variant:
        """The same, as small as can be."""
        small = self.miniature or self
        return replace(small, recipe=small.recipe.quick())


@dataclass(frozen=True)
class Benchmark:
    """Problems times methods times seeds.

    Args:
        name: on the command line.
        title: in the report.
        variants: the problems.
        methods: by name, in the order of the tables.
        seeds: independent repetitions of everything random.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    methods: dict[str, Method]
    seeds: tuple[int, ...] = (0,)

    def methods_of(self, variant: Variant) -> dict[str, Method]:
        """The methods that a variant is solved by."""
        return self.methods if variant.methods is None else variant.methods
