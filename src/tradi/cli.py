"""The command line, thin: arguments in, tables out."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tradi import __version__
from tradi.extras import require

if TYPE_CHECKING:
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
