"""`tradi data`: list, check and fetch data sets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tradi.extras import require

if TYPE_CHECKING:
    from tradi.data.catalogue import Entry


def run(options: argparse.Namespace) -> None:
    """List, check or fetch data sets."""
    from tradi.data import data_root
    from tradi.data.catalogue import CATALOGUE

    unknown = [name for name in options.names if name not in CATALOGUE]
    if unknown:
        raise SystemExit(f"tradi: unknown data set {', '.join(unknown)}: choose from {', '.join(CATALOGUE)}")
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

    title = f"Data sets below {root}; `tradi data check` says whether they are complete"
    table = Table("name", "what", "found", "checksums", title=title, title_justify="left")
    for entry in entries:
        published = all(part.verified for part in entry.parts)
        counted = all(part.checksum is None for part in entry.parts)
        checksums = "as published" if published else "none known" if counted else "from our copy"
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
