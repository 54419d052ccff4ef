"""`tradi demo`: train on embedded data, compare with the single network, draw figures."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tradi.extras import require

if TYPE_CHECKING:
    from tradi.demo import Part
    from tradi.demo import Table as Numbers


def run(options: argparse.Namespace) -> None:
    """Run the demo and print its tables."""
    for module in ("rich", "matplotlib", "torchmetrics", "sklearn"):
        require(module, "demo")
    from tradi import demo

    for part, table in demo.run(options.out, options.seeds):
        _show(part, table, options.out)


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
