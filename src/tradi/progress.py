"""Progress bars where a person looks on, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

T = TypeVar("T")

_showing: ContextVar[bool] = ContextVar("_showing", default=False)
_host: ContextVar[Progress | None] = ContextVar("_host", default=None)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a bar on standard error; plainly inside another bar, without a terminal or `tradi[progress]`."""
    host = _host.get()
    if _showing.get() or not (host or sys.stderr.isatty()):
        yield from items
        return
    _showing.set(True)
    try:
        yield from _in_host(host, items, description, total) if host else _by_itself(items, description, total)
    finally:
        _showing.set(False)


@contextmanager
def hosted_by(progress: Progress) -> Iterator[None]:
    """Let bars inside be lines of these bars, for as long as they take: a terminal has room for one set of bars."""
    before = _host.set(progress)
    try:
        yield
    finally:
        _host.reset(before)


def _in_host(host: Progress, items: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    line = host.add_task(f"  {description}", total=total)
    try:
        for item in items:
            yield item
            host.advance(line)
    finally:
        host.remove_task(line)


def _by_itself(items: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    try:
        from rich.console import Console
        from rich.progress import track as rich_track
    except ImportError:
        yield from items
        return
    yield from rich_track(items, description, total=total, console=Console(stderr=True), transient=True)
