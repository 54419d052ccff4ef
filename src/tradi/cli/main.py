"""The entry point of the command line, and its arguments."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tradi import __version__
from tradi.cli import bench, data, demo, fit, predict, report


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `tradi` with these arguments, by default those of the process; expected errors exit without a traceback."""
    parser = _parser()
    options = parser.parse_args(arguments)
    options.words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        options.command(options)
    except (ImportError, OSError, ValueError) as error:  # a missing extra or file, a wrong name: no traceback needed
        parser.exit(options.status, f"tradi: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "tradi: stopped\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tradi", description="Trustworthy uncertainty from one training run.")
    parser.add_argument("--version", action="version", version=f"tradi {__version__}")
    parser.set_defaults(status=1)  # of expected errors
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_tables(commands)

    demo_parser = commands.add_parser(
        "demo", help="train on embedded data, compare with the single network, make a page of it"
    )
    demo_parser.add_argument(
        "--out", type=Path, default=Path("tradi-demo"), help="folder for page and figures (%(default)s)"
    )
    demo_parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds to run and average over (0)")
    demo_parser.add_argument(
        "--no-open", dest="open", action="store_false", help="do not open the page in a browser, even on a desktop"
    )
    demo_parser.set_defaults(command=demo.run)

    bench_parser = commands.add_parser("bench", help="run one of the paper's experiments")
    bench_parser.add_argument("name", nargs="?", help="the benchmark to run; see --list")
    bench_parser.add_argument("--list", action="store_true", help="list the benchmarks")
    bench_parser.add_argument("--methods", nargs="+", help="methods to run (all)")
    bench_parser.add_argument("--variants", nargs="+", help="data sets or recipes to run (all but the optional ones)")
    bench_parser.add_argument("--seeds", nargs="+", type=int, help="seeds to run (the benchmark's own)")
    bench_parser.add_argument("--splits", nargs="+", type=int, help="numbers of the published splits to run (all)")
    bench_parser.add_argument(
        "--quick", action="store_true", help="run in seconds instead of hours; the numbers are meaningless"
    )
    bench_parser.add_argument(
        "--data", type=Path, help="folder of all data sets ($TRADI_DATA, or the user's cache folder)"
    )
    bench_parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the results (%(default)s)")
    bench_parser.add_argument("--jobs", type=int, help="cases at a time (1; with ray, one for each processor)")
    bench_parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="what runs them: processes of this machine, or a Ray cluster (%(default)s)",
    )
    bench_parser.add_argument("--address", help="of the Ray cluster (what Ray finds, or a new one on this machine)")
    bench_parser.set_defaults(command=bench.run)

    report_parser = commands.add_parser("report", help="one page of tables and figures from a folder of results")
    report_parser.add_argument(
        "--tables", type=Path, metavar="FILE", help="write only the tables, as Markdown, to this file"
    )
    report_parser.add_argument("results", type=Path, help="the --out folder of tradi bench")
    report_parser.add_argument("--out", type=Path, help="folder for the report (the results folder)")
    report_parser.add_argument(
        "--data", type=Path, help="folder of all data sets: show their images beside the predictions"
    )
    report_parser.set_defaults(command=report.run)

    data_parser = commands.add_parser("data", help="list data sets and where they are published, check or fetch them")
    data_parser.add_argument("action", choices=("list", "check", "fetch"), help="what to do")
    data_parser.add_argument("names", nargs="*", metavar="NAME", help="data sets (all)")
    data_parser.add_argument(
        "--data", type=Path, help="folder of all data sets ($TRADI_DATA, or the user's cache folder)"
    )
    data_parser.set_defaults(command=data.run)
    return parser


def _add_tables(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    fitting = commands.add_parser("fit", help="train on a CSV or Parquet file, with error bars and an OOD score")
    fitting.add_argument("table", type=Path, help="a .csv or .parquet file")
    fitting.add_argument("--target", required=True, metavar="COLUMN", help="the column to predict")
    fitting.add_argument("--out", type=Path, required=True, help="folder for the model and its report")
    fitting.add_argument(
        "--task",
        choices=("auto", "regression", "classes"),
        default="auto",
        help="auto: classes for text and for up to 10 different whole numbers, else regression",
    )
    fitting.add_argument(
        "--exclude", action="append", default=[], metavar="COLUMN", help="a column to leave out; may be repeated"
    )
    fitting.add_argument("--seed", type=int, default=0, help="of everything random (%(default)s)")
    fitting.add_argument("--members", type=int, default=20, help="networks in the ensemble (%(default)s)")
    fitting.add_argument("--steps", type=int, help="optimizer steps, about (by the number of rows)")
    fitting.set_defaults(command=fit.run, status=2)

    predicting = commands.add_parser("predict", help="predict for the rows of a file by what `tradi fit` made")
    predicting.add_argument("model", type=Path, help="the --out folder of tradi fit")
    predicting.add_argument("table", type=Path, help="a .csv or .parquet file")
    predicting.add_argument("--out", type=Path, required=True, help="a .csv or .parquet file for the predictions")
    predicting.set_defaults(command=predict.run, status=2)
