"""`tradi bench`: run one of the paper's experiments."""

from __future__ import annotations

import argparse
import shlex

from tradi.extras import require


def run(options: argparse.Namespace) -> None:
    """List the benchmarks, or run one of them."""
    require("torchmetrics", "bench")
    console = require("rich.console", "bench").Console()
    from tradi.bench import BENCHMARKS
    from tradi.bench.cases import Options
    from tradi.bench.files import QUICK
    from tradi.bench.runner import show

    if options.list or options.name is None:
        for benchmark in BENCHMARKS.values():
            console.print(f"[bold]{benchmark.name}[/bold]: {benchmark.title}", highlight=False)
            usual = {variant.name for variant in benchmark.variants if not variant.optional}
            every = benchmark.declaration().variants
            variants = (name if name in usual else f"{name} (only on request)" for name in every)
            console.print(f"  variants: {', '.join(variants)}", highlight=False)
            console.print(f"  methods: {', '.join(benchmark.methods)}", highlight=False)
            for variant in benchmark.variants:
                if variant.methods is not None:
                    console.print(f"  methods of {variant.name}: {', '.join(variant.methods)}", highlight=False)
        return
    if options.name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {options.name!r}: choose from {', '.join(BENCHMARKS)}")
    if options.quick and (options.seeds or options.splits):
        raise ValueError("--quick uses the first seed and split: leave out --seeds and --splits")
    if options.jobs is not None and options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
    if options.address is not None and options.engine != "ray":
        raise ValueError("--address is that of a Ray cluster: add --engine ray")
    from tradi.data.root import data_root

    asked = Options(
        data=data_root(options.data),
        out=options.out / QUICK if options.quick else options.out,
        methods=options.methods and tuple(options.methods),
        variants=options.variants and tuple(options.variants),
        seeds=options.seeds and tuple(dict.fromkeys(options.seeds)),
        splits=options.splits and tuple(dict.fromkeys(options.splits)),
        quick=options.quick,
        jobs=options.jobs,
        engine=options.engine,
        address=options.address,
        command=shlex.join(["tradi", *options.words]),
    )
    failures = show(BENCHMARKS[options.name], asked, console)
    if failures:
        raise ValueError(f"{len(failures)} failed, see above; repeat the command to retry")
