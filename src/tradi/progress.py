"""Progress bars where a person looks on, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_showing: ContextVar[bool] = ContextVar("_showing", default=False)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a bar on standard error; plainly inside another bar, without a terminal or `tradi[progress]`."""
    if _showing.get() or not sys.stderr.isatty():
        yield from items
        return
    try:
        from rich.console import Console
        from rich.progress import track as rich_track
    except ImportError:
        yield from items
        return
    _showing.set(True)
    try:
        yield from rich_track(items, description, total=total, console=Console(stderr=True), transient=True)
    finally:
        _showing.set(False)
