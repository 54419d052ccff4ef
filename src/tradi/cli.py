"""The command line, thin: arguments in, tables out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tradi import __version__
from tradi.extras import require

if TYPE_CHECKING:
    from tradi.data.catalogue import Entry
    from tradi.demo import Part


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `tradi`."""
    parser = argparse.ArgumentParser(prog="tradi", description="Trustworthy uncertainty from one training run.")
    parser.add_argument("--version", action="version", version=f"tradi {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="train on embedded data, compare with the single network, draw figures")
    demo.add_argument("--out", type=Path, default=Path("tradi-demo"), help="folder for the figures (%(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="of everything random (%(default)s)")
    demo.set_defaults(command=_demo)
    data = commands.add_parser("data", help="where data sets are published, whether they are here, how to get them")
    data.add_argument("action", choices=("list", "check", "fetch"), help="what to do")
    data.add_argument("names", nargs="*", metavar="NAME", help="data sets (all)")
    data.add_argument("--data", type=Path, help="folder of all data sets ($TRADI_DATA, or the user's cache folder)")
    data.set_defaults(command=_data)
    options = parser.parse_args(arguments)
    try:
        options.command(options)
    except ImportError as error:  # an extra that is not installed: its message is all a user needs
        parser.exit(1, f"tradi: {error}\n")


def _demo(options: argparse.Namespace) -> None:
    for module, extra in (("rich", "demo"), ("matplotlib", "demo"), ("torchmetrics", "demo"), ("sklearn", "demo")):
        require(module, extra)
    from tradi.demo import run

    for part in run(options.out, options.seed):
        _show(part, options.out)


def _show(part: Part, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    methods = list(part.table)
    table = Table("", *methods, title=part.title, title_justify="left")
    measures = dict.fromkeys(measure for row in part.table.values() for measure in row)
    for measure in measures:
        values = (part.table[method].get(measure) for method in methods)
        table.add_row(measure, *("-" if value is None else f"{value:.3f}" for value in values))
    console = Console()
    console.print(table)
    console.print(f"TRADI's noise: {part.scale}", highlight=False)
    for name in part.figures:
        console.print(f"  figure: {out / name}.png", highlight=False, soft_wrap=True)
    console.print()


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

    table = Table("name", "what", "here", "checksums", title=f"Data sets below {root}", title_justify="left")
    for entry in entries:
        checksums = "as published" if all(part.verified for part in entry.parts) else "of our copy"
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
