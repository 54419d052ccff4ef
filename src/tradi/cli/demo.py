"""`tradi demo`: train on embedded data, compare with the single network, draw figures and a page of them."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tradi.extras import require

if TYPE_CHECKING:
    from tradi.demo import Part
    from tradi.demo import Table as Numbers


def run(options: argparse.Namespace) -> None:
    """Run the demo, print its tables and where its page is, and open the page where somebody can see it."""
    for module in ("rich", "matplotlib", "torchmetrics", "sklearn"):
        require(module, "demo")
    from tradi import demo

    for part, table in demo.run(options.out, options.seeds):
        _show(part, table)
    page = (options.out / demo.PAGE).resolve()
    print(f"page: {page}")
    if options.open and sys.stdout.isatty() and _has_display():
        webbrowser.open(page.as_uri())


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def _show(part: Part, numbers: Numbers) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *numbers, title=part.title, title_justify="left")
    for measure in dict.fromkeys(measure for row in numbers.values() for measure in row):
        table.add_row(measure, *(_mean_sd(row.get(measure, [])) for row in numbers.values()))
    console = Console()
    console.print(table)
    console.print(part.message, highlight=False)
    console.print(f"TRADI's noise: {part.scale}\n", highlight=False)


def _mean_sd(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean
