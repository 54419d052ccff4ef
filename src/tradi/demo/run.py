"""Both halves of the demo, for every seed, and what is written of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch

from tradi import __version__
from tradi.data import digits, toy
from tradi.demo.digits import classify
from tradi.demo.part import Part, Row, Table
from tradi.demo.toy import regress
from tradi.report import html
from tradi.report.cells import Cell, Head
from tradi.report.cells import Table as Shown
from tradi.report.charts import Methods
from tradi.report.html import text
from tradi.storage.atomic import write_whole

PAGE = "demo.html"


def run(out: Path, seeds: Sequence[int] = (0,)) -> list[tuple[Part, Table]]:
    """Train, compare the single network with TRADI; write a page and figures of the first seed, and numbers."""
    every = [[regress(toy(points=90, seed=seed), seed), classify(digits(seed=seed), seed)] for seed in seeds]
    parts = every[0]
    tables = [_gathered([one[number].rows for one in every]) for number in range(len(parts))]
    out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for name, figure in part.figures.items():
            figure.savefig(out / f"{name}.png")
    command = f"tradi demo --seeds {' '.join(map(str, seeds))}"
    record = {
        "command": command,
        "versions": {"tradi": __version__, "torch": torch.__version__},
        "tables": {part.title: table for part, table in zip(parts, tables, strict=True)},
    }
    (out / "demo.json").write_text(json.dumps(record, indent=2) + "\n")
    found = list(zip(parts, tables, strict=True))
    write_whole(out / PAGE, _page(found, command))
    return found


def _gathered(tables: Sequence[dict[str, Row]]) -> Table:
    return {m: {name: [table[m][name] for table in tables] for name in row} for m, row in tables[0].items()}


def _page(found: Sequence[tuple[Part, Table]], command: str) -> str:
    """Each half: what there is to see, the pictures, and the table."""
    methods = Methods(list(dict.fromkeys(name for _, table in found for name in table)))
    sections = "".join(
        f"<section id='part-{number}'><h2>{text(part.title)}</h2><p class=lead>{text(part.message)}</p>"
        f"{part.drawn(methods)}{html.table(_shown(part, table), 'All numbers')}</section>\n"
        for number, (part, table) in enumerate(found)
    )
    contents = [(f"part-{number}", part.title.split(":")[0]) for number, (part, _) in enumerate(found)]
    made = f"<p class=note>Made by <code>{text(command)}</code>, tradi {__version__}, torch {torch.__version__}.</p>"
    return html.page("TRADI: demo", contents, sections + made)


def _shown(part: Part, table: Table) -> Shown:
    measures = dict.fromkeys(measure for row in table.values() for measure in row)
    rows = [(measure, [_cell(row.get(measure, []), measure) for row in table.values()]) for measure in measures]
    return Shown(part.title, [Head(""), *(Head(name) for name in table)], rows, f"TRADI's noise: {part.scale}")


def _cell(values: Sequence[float], measure: str) -> Cell:
    if not values:
        return Cell()
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), deviation, 1 if "%" in measure.split(" interval")[-1] else 3)
