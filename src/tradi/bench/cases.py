"""What is to be run: everything that a user asks for, less what is there already."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from tradi.bench.files import folder_name
from tradi.bench.methods import Method
from tradi.bench.problem import Problem
from tradi.bench.results import Key
from tradi.bench.spec import OTHER_RUNS, Benchmark, Variant

RUN = 1000  # what seeds of one method's runs differ by
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
        jobs: cases at a time; None for one, and on a Ray cluster for as many as it has processors.
        engine: what runs them, processes of this machine ("local") or a Ray cluster ("ray").
        address: of the cluster; None for what Ray finds, or a new one on this machine.
        processors: that heavy cases share; None for those of this machine.
        command: how this was called, for the record.
    """

    data: Path
    out: Path
    methods: tuple[str, ...] | None = None
    variants: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    splits: tuple[int, ...] | None = None
    quick: bool = False
    jobs: int | None = None
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    processors: int | None = None
    command: str = ""


@dataclass(frozen=True)
class Case:
    """One problem, split and seed, and the methods that are still missing: they share the training runs.

    `network` is the number of the run that methods of one training are evaluated on (see `Variant.other_runs`).
    """

    benchmark: str
    variant: Variant
    methods: dict[str, Method]
    seed: int
    split: int
    network: int = 0

    def __str__(self) -> str:
        key = self.key("")
        return f"{key.benchmark}/{key.variant} split {key.split} seed {key.seed}"

    def missing(self, out: Path) -> list[str]:
        """The methods that have no result yet."""
        return [name for name in self.methods if not self.key(name).is_done(out)]

    def key(self, method: str) -> Key:
        if self.network:
            return Key(self.benchmark, self.variant.name + OTHER_RUNS, method, self.seed, self.network)
        return Key(self.benchmark, self.variant.name, method, self.seed, self.split)

    def problem(self, options: Options) -> Problem:
        return self.variant.problem(options.data, self.split, self.seed, options.quick)

    def threads(self, options: Options) -> int:
        """Threads of torch: one, for small networks gain nothing from more, but heavy cases share all cores."""
        heavy = self.variant.heavy and not options.quick
        processors = options.processors or os.cpu_count() or 1
        return max(1, processors // (options.jobs or 1)) if heavy else 1

    def checkpoint(self, out: Path, dropout: float | None, number: int) -> Path | None:
        """Where a heavy training run is kept, beside the results: it may be deleted once they are there."""
        own = "" if dropout is None else f"-dropout-{dropout:g}"
        name = f"seed-{self.seed}-split-{self.split}{own}-run-{number}.pt"
        return (
            out / ".runs" / folder_name(self.benchmark) / folder_name(self.variant.name) / name
            if self.variant.heavy
            else None
        )


def cases(benchmark: Benchmark, options: Options) -> list[Case]:
    """What is left to do: everything asked for, less what is in the folder already."""
    default = tuple(variant.name for variant in benchmark.variants if not variant.optional)
    variants = _chosen(_by_name(benchmark), options.variants or default, "variant")
    found = []
    for name, (variant, numbers) in variants.items():
        others, methods = name != variant.name, benchmark.methods_of(variant)
        if others:
            methods = {one: methods[one] for one in variant.other_runs}
        methods = _chosen(methods, options.methods, "method")
        for split in numbers[:1] if options.quick else options.splits or numbers:
            if split not in numbers:
                raise ValueError(f"{name} has splits {numbers[0]} to {numbers[-1]}, got {split}")
            for seed in benchmark.seeds[:1] if options.quick else options.seeds or benchmark.seeds:
                if not 0 <= seed < RUN:
                    raise ValueError(f"seeds are 0 to {RUN - 1}, got {seed}")
                place = {"split": 0, "network": split} if others else {"split": split}
                case = Case(benchmark.name, variant, methods, seed, **place)
                missing = {one: methods[one] for one in case.missing(options.out)}
                if missing:
                    found.append(replace(case, methods=missing))
    return found


def _by_name(benchmark: Benchmark) -> dict[str, tuple[Variant, range]]:
    """Every variant with its splits, and after them those of other networks, whose numbers stand for splits."""
    own = {variant.name: (variant, range(variant.splits)) for variant in benchmark.variants}
    others = {
        variant.name + OTHER_RUNS: (variant, range(1, benchmark.networks(variant)))
        for variant in benchmark.variants
        if variant.other_runs
    }
    return own | others


def _chosen(everything: dict[str, T], names: Sequence[str] | None, kind: str) -> dict[str, T]:
    for name in names or ():
        if name not in everything:
            raise ValueError(f"unknown {kind} {name!r}: choose from {', '.join(everything)}")
    return {name: value for name, value in everything.items() if names is None or name in names}
