"""The report of a model of a table: one HTML page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from tradi.tables.drawing import figures
from tradi.tables.findings import Findings
from tradi.tables.foreign import SHARE
from tradi.tables.model import Description

NUMBER = re.compile(r"-?\d+(\.\d+)?(%| std)?")
STYLE = """:root{color-scheme:light dark;--line:#8886;--soft:#8882}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}
h1{line-height:1.2;font-size:1.7rem}h2{font-size:1.2rem;margin-top:2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:.5rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
.wide{overflow-wrap:normal}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.75rem;padding:0}
.tiles div{background:var(--soft);border-radius:.5rem;padding:.6rem .8rem}
.tiles b{display:block;font-size:1.4rem}small{opacity:.8}
.number{text-align:right}
.drawn{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,17rem),1fr));gap:1rem;margin:1.2rem 0}
figure{margin:0;max-width:28rem}figcaption{font-weight:600;font-size:.9rem}
figure svg{width:100%;height:auto;display:block}
pre{white-space:pre-wrap;background:var(--soft);padding:.6rem}"""


def page(findings: Findings) -> str:
    """The page, in whatever of light and dark the reader prefers."""
    about = findings.model.description
    name = escape(about.target.name)
    count = f"{len(findings.truth):,}"
    drawn = "".join(
        f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
        for caption, svg in figures(findings).items()
    )
    tiles = "".join(
        f"<div>{escape(figure.name)}<b>{escape(figure.value)}</b><small>{escape(figure.meaning)}</small></div>"
        for figure in findings.figures
    )
    surprises = findings.surprises
    return (
        "<!doctype html>\n<html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>Predicting {name}</title><style>{STYLE}</style><main><h1>Predicting {name}</h1>"
        f"<p>{escape(_task(about))}</p>{_list(about.notes)}"
        f"<h2>How good it is on {count} {'test' if findings.tested else 'held-out'} rows</h2>"
        f"<p>{escape(_honesty(findings))}</p><div class=tiles>{tiles}</div><div class=drawn>{drawn}</div>"
        f"<h2>Most surprising rows</h2><p>Of these {count} rows; row 1 is the first under the column names.</p>"
        f"{_table(list(surprises[0]), [list(row.values()) for row in surprises])}"
        f"<h2>What was done</h2>{_list(_steps(about))}"
        f"<h2>Columns</h2>{_table(['column', 'what is in it'], _columns(about))}"
        f"<h2>How to make it again</h2><pre>{escape(about.made_by['command'])}</pre>"
        f"{_table(['', ''], [item for item in about.made_by.items() if item[0] != 'command'])}</main></html>\n"
    )


def _task(about: Description) -> str:
    what = "Numbers" if about.target.classes is None else about.target.about
    return f"{what}, from {len(about.columns)} columns of {sum(about.rows.values()):,} rows."


def _honesty(findings: Findings) -> str:
    held = findings.model.description.rows["held out"]
    if findings.tested:
        return (
            "These test rows were kept for this page: nothing was trained on them or chosen by them. "
            f"{held:,} other rows were held out to choose the OOD threshold."
        )
    return (
        f"There are too few rows for a test of their own. Nothing was trained on these {held:,} rows, but the OOD "
        "threshold was chosen by them: the share that is flagged is no test of it."
    )


def _steps(about: Description) -> list[str]:
    rows, limits = about.rows, about.limits
    dropped = f"; {rows['without a target']:,} rows without a target were left out" if rows["without a target"] else ""
    return [
        f"Rows were split at random: {rows['training']:,} to train on (a tenth of them to stop by and to choose the "
        f"scale of the noise), {rows['held out']:,} to choose the OOD threshold by, {rows['test']:,} for this "
        f"page{dropped}.",
        "Missing numbers became the median and a column that says so; text became a column of 0 and 1 for every "
        "category; numbers were standardised with the training rows.",
        f"A network with hidden layers of {', '.join(map(str, about.hidden))} was trained once, its weights were "
        f"tracked (TRADI), and {about.options['members']} members were drawn. Seed {about.options['seed']}.",
        "The OOD score is the largest of three: the members' disagreement, the distance from the training rows, and "
        "how far a single number lies outside its training range, each over its 99th percentile on held-out rows "
        f"({limits.disagreement:.3g}, {limits.distance:.3g}, {limits.outside:.3g}). Above {limits.threshold:.3f} a row "
        f"is flagged: that is to happen to {1 - SHARE:.0%} of the rows that are like the training rows.",
    ]


def _columns(about: Description) -> list[list[str]]:
    used = [[column.name, column.about] for column in about.columns]
    return used + [[name, f"not used: {reason}"] for name, reason in about.not_used.items()]


def _list(items: Iterable[str]) -> str:
    found = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f"<ul>{found}</ul>" if found else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    listed = list(rows)
    # Numbers stand below each other; what is text begins at the left.
    kinds = [" class=number" if all(map(NUMBER.fullmatch, column)) else "" for column in zip(*listed, strict=True)]
    top = "".join(f"<th{kind}>{escape(cell)}</th>" for cell, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in listed
    )
    return f"<div class=wide><table><thead><tr>{top}</tr></thead>{body}</table></div>"
