"""Progress bars in a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

T = TypeVar("T")

_showing: ContextVar[bool] = ContextVar("_showing", default=False)
_host: ContextVar[Progress | None] = ContextVar("_host", default=None)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate over `items` with a progress bar on standard error.

    There is no bar inside another bar, outside a terminal, or without `tradi[progress]`.

    Args:
        items: what to iterate over.
        description: text beside the bar.
        total: number of items, if known.
    """
    host = _host.get()
    if _showing.get() or not (host or sys.stderr.isatty()):
        yield from items
        return
    _showing.set(True)
    try:
        yield from _in_host(host, items, description, total) if host else _by_itself(items, description, total)
    finally:
        _showing.set(False)


def time_left() -> ProgressColumn:
    """A column with the time left, if the remaining items take as long on average as the finished ones.

    Rich's own estimate uses the pauses between items, but items from several processes finish in bunches.
    """
    from rich.progress import ProgressColumn, Task
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        def __init__(self) -> None:
            super().__init__()
            self._whole: dict[int, tuple[float, float]] = {}  # by task: items done, and the total seconds they predict

        def render(self, task: Task) -> Text:
            if not task.completed or task.total is None or task.elapsed is None:
                return Text("-:--:--", style="progress.remaining")
            done, whole = self._whole.get(task.id, (0.0, 0.0))
            if task.completed != done:
                whole = task.elapsed * task.total / task.completed
                self._whole[task.id] = task.completed, whole
            left = timedelta(seconds=round(max(whole - task.elapsed, 0)))
            return Text(str(left), style="progress.remaining")

    return TimeLeft()


@contextmanager
def hosted_by(progress: Progress) -> Iterator[None]:
    """Show bars that start inside as temporary lines of `progress`: a terminal has room for one set of bars."""
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
