"""One thread trains, another takes snapshots: a snapshot is of the weights between two steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from torch.optim import Optimizer

from tradi._torch import is_on_stack, step_frame

PATIENCE = 60.0  # seconds


@dataclass
class Step:
    """A step of an optimizer that is running, or that an error broke off; `depth` counts those of base classes."""

    thread: int
    frame: FrameType | None
    depth: int = 1


class StepLock:
    """Held through every optimizer step, and while a snapshot is taken. The thread that holds it may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside: dict[Optimizer, Step] = {}

    def begin(self, optimizer: Optimizer) -> bool:
        """Before a step: False if it is a part of another step of this optimizer, its base's.

        A step that an error broke off has no end: the next step of that thread takes its place.
        """
        step = self._inside.get(optimizer)
        if step is None or step.thread != threading.get_ident():
            self._acquire()
        elif is_on_stack(step.frame):
            step.depth += 1
            return False
        self._inside[optimizer] = Step(threading.get_ident(), step_frame())
        return True

    def ends(self, optimizer: Optimizer) -> bool:
        """After a step: False if it is a part of another step. When all is done, `end` follows."""
        step = self._inside.get(optimizer)
        if step is None:  # it began before there was a tracker
            return False
        step.depth -= 1
        return step.depth == 0

    def end(self, optimizer: Optimizer) -> None:
        """Let others in."""
        del self._inside[optimizer]
        self._lock.release()

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """No step begins within.

        Raises:
            RuntimeError: if a step of another thread does not end.
        """
        self._acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=PATIENCE):
            raise RuntimeError(
                f"an optimizer step in another thread did not end within {PATIENCE:g} seconds: it is slow, or an error "
                "broke it off. Call again, or from that thread"
            )
