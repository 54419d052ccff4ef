"""The command line, thin: arguments in, tables out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tradi import __version__
from tradi.cli import bench, data, demo, report


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

    demo_parser = commands.add_parser(
        "demo", help="train on embedded data, compare with the single network, draw figures"
    )
    demo_parser.add_argument(
        "--out", type=Path, default=Path("tradi-demo"), help="folder for the figures (%(default)s)"
    )
    demo_parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="repetitions of everything random (0)")
    demo_parser.set_defaults(command=demo.run)

    bench_parser = commands.add_parser("bench", help="run one of the paper's experiments")
    bench_parser.add_argument("name", nargs="?", help="see --list")
    bench_parser.add_argument("--list", action="store_true", help="what there is to run")
    bench_parser.add_argument("--methods", nargs="+", help="some of the methods")
    bench_parser.add_argument("--variants", nargs="+", help="some of the data sets or recipes")
    bench_parser.add_argument("--seeds", nargs="+", type=int)
    bench_parser.add_argument("--splits", nargs="+", type=int, help="numbers of published splits")
    bench_parser.add_argument(
        "--quick", action="store_true", help="seconds instead of hours; the numbers then say nothing"
    )
    bench_parser.add_argument("--data", type=Path, help="root of the data (or TRADI_DATA, or a cache folder)")
    bench_parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the results (%(default)s)")
    bench_parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    bench_parser.set_defaults(command=bench.run)

    report_parser = commands.add_parser("report", help="tables and figures from a folder of results")
    report_parser.add_argument("--tables", type=Path, metavar="FILE", help="write the tables alone, as Markdown")
    report_parser.add_argument("results", type=Path, help="the --out of tradi bench")
    report_parser.add_argument("--out", type=Path, help="folder for the report (that of the results)")
    report_parser.add_argument(
        "--data", type=Path, help="root of the data: shows its images beside pictures of predictions"
    )
    report_parser.set_defaults(command=report.run)

    data_parser = commands.add_parser(
        "data", help="where data sets are published, whether they are here, how to get them"
    )
    data_parser.add_argument("action", choices=("list", "check", "fetch"), help="what to do")
    data_parser.add_argument("names", nargs="*", metavar="NAME", help="data sets (all)")
    data_parser.add_argument(
        "--data", type=Path, help="folder of all data sets ($TRADI_DATA, or the user's cache folder)"
    )
    data_parser.set_defaults(command=data.run)
    return parser
