"""A benchmark is data: what to load, what to train, and which methods to compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from tradi.bench.methods import Method
from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe


@dataclass(frozen=True)
class Variant:
    """One problem of a benchmark: a data set, or a recipe.

    Args:
        name: in tables and file names.
        load: reads the data, given the data root, the published split and the seed.
        model: builds a fresh network for the data, given a dropout rate (None: the benchmark's own).
        recipe: trains it.
        splits: number of published splits.
    """

    name: str
    load: Callable[[Path, int, int], Data]
    model: Callable[[Data, float | None], nn.Module]
    recipe: Recipe
    splits: int = 1


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
