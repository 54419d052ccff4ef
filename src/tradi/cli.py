"""The command line, thin: arguments in, tables out."""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tradi import __version__
from tradi.extras import require

if TYPE_CHECKING:
    from tradi.data.catalogue import Entry
    from tradi.demo import Part
    from tradi.demo import Table as Numbers


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `tradi`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    options.words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        options.command(options)
    except (ImportError, OSError, ValueError) as error:  # a missing extra or file, a wrong name: no traceback needed
        parser.exit(1, f"tradi: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "tradi: stopped\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tradi", description="Trustworthy uncertainty from one training run.")
    parser.add_argument("--version", action="version", version=f"tradi {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train on embedded data, compare with the single network, draw figures")
    demo.add_argument("--out", type=Path, default=Path("tradi-demo"), help="folder for the figures (%(default)s)")
    demo.add_argument("--seeds", type=int, nargs="+", default=[0], help="repetitions of everything random (0)")
    demo.set_defaults(command=_demo)

    bench = commands.add_parser("bench", help="run one of the paper's experiments")
    bench.add_argument("name", nargs="?", help="see --list")
    bench.add_argument("--list", action="store_true", help="what there is to run")
    bench.add_argument("--methods", nargs="+", help="some of the methods")
    bench.add_argument("--variants", nargs="+", help="some of the data sets or recipes")
    bench.add_argument("--seeds", nargs="+", type=int)
    bench.add_argument("--splits", nargs="+", type=int, help="numbers of published splits")
    bench.add_argument("--quick", action="store_true", help="seconds instead of hours; the numbers then say nothing")
    bench.add_argument("--data", type=Path, help="root of the data (or TRADI_DATA, or a cache folder)")
    bench.add_argument("--out", type=Path, default=Path("results"), help="folder of the results (%(default)s)")
    bench.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    bench.set_defaults(command=_bench)

    report = commands.add_parser("report", help="tables and figures from a folder of results")
    report.add_argument("results", type=Path, help="the --out of tradi bench")
    report.add_argument("--out", type=Path, help="folder for the report (that of the results)")
    report.add_argument("--data", type=Path, help="root of the data: shows its images beside pictures of predictions")
    report.set_defaults(command=_report)

    data = commands.add_parser("data", help="where data sets are published, whether they are here, how to get them")
    data.add_argument("action", choices=("list", "check", "fetch"), help="what to do")
    data.add_argument("names", nargs="*", metavar="NAME", help="data sets (all)")
    data.add_argument("--data", type=Path, help="folder of all data sets ($TRADI_DATA, or the user's cache folder)")
    data.set_defaults(command=_data)
    return parser


def _demo(options: argparse.Namespace) -> None:
    for module in ("rich", "matplotlib", "torchmetrics", "sklearn"):
        require(module, "demo")
    from tradi.demo import run

    for part, table in run(options.out, options.seeds):
        _show(part, table, options.out)


def _bench(options: argparse.Namespace) -> None:
    require("torchmetrics", "bench")
    console = require("rich.console", "bench").Console()
    from tradi.bench import BENCHMARKS, runner

    if options.list or options.name is None:
        for benchmark in BENCHMARKS.values():
            console.print(f"[bold]{benchmark.name}[/bold]: {benchmark.title}", highlight=False)
            variants = (f"{v.name} (if asked for)" if v.optional else v.name for v in benchmark.variants)
            console.print(f"  variants: {', '.join(variants)}", highlight=False)
            console.print(f"  methods: {', '.join(benchmark.methods)}", highlight=False)
            for variant in benchmark.variants:
                if variant.methods is not None:
                    console.print(f"  methods of {variant.name}: {', '.join(variant.methods)}", highlight=False)
        return
    if options.name not in BENCHMARKS:
        raise ValueError(f"unknown benchmark {options.name!r}: choose from {', '.join(BENCHMARKS)}")
    if options.quick and (options.seeds or options.splits):
        raise ValueError("--quick takes the first seed and split: leave out --seeds and --splits")
    if options.jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {options.jobs}")
    from tradi.data.root import data_root

    asked = runner.Options(
        data=data_root(options.data),
        out=options.out / "quick" if options.quick else options.out,  # never to be taken for results
        methods=options.methods and tuple(options.methods),
        variants=options.variants and tuple(options.variants),
        seeds=options.seeds and tuple(dict.fromkeys(options.seeds)),
        splits=options.splits and tuple(dict.fromkeys(options.splits)),
        quick=options.quick,
        jobs=options.jobs,
        command=shlex.join(["tradi", *options.words]),
    )
    failures = runner.show(BENCHMARKS[options.name], asked, console)
    if failures:
        raise ValueError(f"{len(failures)} failed, see above; run again to try again")


def _report(options: argparse.Namespace) -> None:
    require("matplotlib", "bench")
    from tradi.report.page import write_report

    if options.data is not None and not options.data.is_dir():
        raise FileNotFoundError(f"{options.data} is not a folder of data")
    for path in write_report(options.results, options.out or options.results, options.data):
        print(path)


def _show(part: Part, numbers: Numbers, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *numbers, title=part.title, title_justify="left")
    for measure in dict.fromkeys(measure for row in numbers.values() for measure in row):
        table.add_row(measure, *(_mean_sd(row.get(measure, [])) for row in numbers.values()))
    console = Console()
    console.print(table)
    console.print(f"TRADI's noise: {part.scale}", highlight=False)
    for name in part.figures:
        console.print(f"  figure: {out / name}.png", highlight=False, soft_wrap=True)
    console.print()


def _mean_sd(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def _data(options: argparse.Namespace) -> None:
    from tradi.data import data_root
    from tradi.data.catalogue import CATALOGUE

    unknown = [name for name in options.names if name not in CATALOGUE]
    if unknown:
        raise SystemExit(f"tradi: no data set is called {', '.join(unknown)}: there are {', '.join(CATALOGUE)}")
    entries = [CATALOGUE[name] for name in options.names or CATALOGUE]
    root = data_root(options.data)
    if options.action == "list":
        _list_data(entries, root)
    else:
        _check_data(entries, root, fetching=options.action == "fetch")


def _list_data(entries: Sequence[Entry], root: Path) -> None:
    require("rich", "progress")
    from rich.console import Console
    from rich.table import Table

    from tradi.data.catalogue import here

    title = f"Data sets below {root}; `tradi data check` says whether they are whole"
    table = Table("name", "what", "here", "checksums", title=title, title_justify="left")
    for entry in entries:
        published = all(part.verified for part in entry.parts)
        counted = all(part.checksum is None for part in entry.parts)
        checksums = "as published" if published else "none known" if counted else "of our copy"
        table.add_row(entry.name, entry.about, f"{here(entry, root)} of {len(entry.parts)} parts", checksums)
    console = Console()
    console.print(table)
    for entry in entries:
        console.print(f"{entry.name}: {entry.page}", highlight=False, soft_wrap=True)
        for download in entry.downloads:
            console.print(f"  {download.url} -> {download.path}", highlight=False, soft_wrap=True)


def _check_data(entries: Sequence[Entry], root: Path, fetching: bool) -> None:
    from tradi.data.catalogue import check
    from tradi.data.fetch import fetch

    wrong = 0
    for entry in entries:
        for finding in fetch(entry, root) if fetching else (check(part, root) for part in entry.parts):
            print(f"{finding.state:10} {finding.path}: {finding.detail}")
            wrong += finding.state != "ok"
    if wrong:
        raise SystemExit(1)
