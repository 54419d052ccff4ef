"""Pieces of a page: escaped text, tables that can be sorted, and the page around them in one file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files

from tradi.report.cells import Cell, Head, Table
from tradi.report.style import DARK, PALETTE

OURS = " class=ours"
FIGURE_SPACE = "\u2007"  # as wide as a digit


def text(words: object) -> str:
    """Words as they may stand in a page or an attribute."""
    return html.escape(str(words))


def table(made: Table, caption: str = "") -> str:
    """A table in a frame of its own that scrolls, its note below it. Its first column stays.

    Args:
        made: the table.
        caption: above it; the table's title if there is none.
    """
    caption = caption or made.title
    heads = "".join(_head(head, first=place == 0) for place, head in enumerate(made.heads))
    columns = [[cells[place] for _, cells in made.rows] for place in range(len(made.heads) - 1)]
    printed = [_column(column, head) for column, head in zip(columns, made.heads[1:], strict=True)]
    body = "".join(
        f"<tr{OURS if name == 'TRADI' else ''}><th scope=row data-v='{text(name)}'>{text(name)}</th>"
        f"{''.join(column[row] for column in printed)}</tr>\n"
        for row, (name, _) in enumerate(made.rows)
    )
    note = f"<p class=note>{text(made.note)}</p>" if made.note else ""
    return (
        f"<div class=scroll tabindex=0 role=region aria-label='{text(caption)}'>"
        f"<table class=sortable><caption>{text(caption)}</caption>"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>{note}\n"
    )


def _head(head: Head, *, first: bool) -> str:
    if first:
        return "<th scope=col class=first><span class=unseen>name</span></th>"
    kind = " class=paper" if head.of_paper else ""
    # The first press puts the best on top.
    order = "descending" if head.higher else "ascending"
    arrow = "" if head.higher is None else f"<span class=way aria-hidden=true>{'↑' if head.higher else '↓'}</span>"
    better = "" if head.higher is None else f" title='{'higher' if head.higher else 'lower'} is better'"
    label = text(head.title.removeprefix("paper: ") if head.of_paper else head.title)
    paper = "<small>paper</small> " if head.of_paper else ""
    return (
        f"<th scope=col{kind} data-first={order}{better}>"
        f"<button type=button>{paper}{label}{arrow}<span class=sort aria-hidden=true></span></button></th>"
    )


def _column(cells: Sequence[Cell], head: Head) -> list[str]:
    """Cells of one column, flush right, all as wide behind the point: so points stand below each other."""
    most = max(cell.digits for cell in cells)
    means = [_padded(cell.value, cell.digits, most).replace("-", "−") for cell in cells]
    around = [_padded(cell.deviation, cell.digits, most) for cell in cells]
    spread = max(map(len, around), default=0)
    printed = []
    for cell, value, deviation in zip(cells, means, around, strict=True):
        kind = " ".join(name for name, holds in (("best", cell.best), ("paper", head.of_paper)) if holds)
        key = "" if cell.value is None else f" data-v='{cell.value:.6g}'"
        inner = value
        if value and spread:
            # Where there is no deviation, one that is not seen takes as much room.
            seen = "sd" if deviation else "'sd none'"
            inner += f"<span class={seen}> ± {(deviation or max(around, key=len)).rjust(spread, FIGURE_SPACE)}</span>"
        if cell.runs:
            inner += f"<abbr title='{text(cell.runs)} runs'>*</abbr>"
        printed.append(f"<td{f' class={kind!r}' if kind else ''}{key}>{inner}</td>")
    return printed


def _padded(value: float | None, digits: int, most: int) -> str:
    """A number of so many digits, with room for as many as the column has at the most."""
    missing = most - digits + (digits == 0 < most)
    return "" if value is None else f"{value:.{digits}f}{FIGURE_SPACE * missing}"


def tabs(label: str, panels: dict[str, str]) -> str:
    """Panels of which one is seen at a time, chosen by its name; without scripts all are, one below the other."""
    if len(panels) < 2:
        return "".join(panels.values())
    inner = "".join(f"<div class=panel data-tab='{text(name)}'>{panel}</div>" for name, panel in panels.items())
    return f"<div class=tabs data-label='{text(label)}'>{inner}</div>\n"


def folded(title: str, inner: str) -> str:
    """What is seen when it is asked for."""
    return f"<details><summary>{text(title)}</summary>{inner}</details>\n"


def page(title: str, contents: Sequence[tuple[str, str]], main: str) -> str:
    """A page that needs nothing beside itself.

    Args:
        title: of the page.
        contents: the id and the title of each section.
        main: the sections.
    """
    folder = files("tradi.report")
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    links = "".join(f"<li><a href='#{text(place)}'>{text(name)}</a></li>" for place, name in contents)
    nav = f"<nav aria-label=Contents><details open><summary>Contents</summary><ol>{links}</ol></details></nav>"
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{text(title)}</title><style>{_colours()}{style}</style></head>\n<body>"
        "<a class=skip href='#main'>Skip to the content</a>"
        f"<header><p class=name>{text(title)}</p><button type=button id=theme>Dark</button></header>\n"
        f"<div class=frame>{nav}<main id=main>{main}</main></div>\n<script>{script}</script></body></html>\n"
    )


def _colours() -> str:
    """The palette as variables, for light and for dark pages, and what uses them."""
    light, dark = (";".join(f"--p{i}:{colour}" for i, colour in enumerate(colours)) for colours in (PALETTE, DARK))
    slots = "".join(f".c{place}{{--c:var(--p{place})}}" for place in range(len(PALETTE)))
    return (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}{slots}"
    )
