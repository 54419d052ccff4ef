"""Modules that members run in: one for each of the threads that predict at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from tradi.ensemble.copying import sharing
from tradi.ensemble.parameter_swap import ParameterSwap


@dataclass(frozen=True, eq=False)
class Stage:
    """A module that members take turns in.

    Args:
        module: which nobody else runs meanwhile.
        swap: puts a member's tensors into it.
    """

    module: nn.Module
    swap: ParameterSwap


class Stages:
    """As many copies of a module as are in use at once; all have the same parameters, and each its own buffers.

    Args:
        model: what is copied; it never runs itself.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._free: list[Stage] = []
        self._lock = threading.Lock()

    @contextmanager
    def one(self) -> Iterator[Stage]:
        """A stage that nobody else is on."""
        with self._lock:
            stage = self._free.pop() if self._free else self._another()
        try:
            yield stage
        finally:
            self._free.append(stage)

    def _another(self) -> Stage:
        with torch.inference_mode(False):  # it serves in any mode
            module = sharing(self._model)
        return Stage(module, ParameterSwap(module))

    def __reduce__(self) -> tuple[type[Stages], tuple[nn.Module]]:
        return Stages, (self._model,)
