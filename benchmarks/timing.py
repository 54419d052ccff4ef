"""Ratios that a busy machine does not spoil: alternate measurements, memory by the kernel, bytes by operation."""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Times:
    """Seconds of every repetition, on the wall and of the process's processors."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def __add__(self, other: Times) -> Times:
        return Times(*(_each(lambda a, b: a + b, x, y) for x, y in ((self.wall, other.wall), (self.cpu, other.cpu))))

    def __sub__(self, other: Times) -> Times:
        return self + -1 * other

    def __rmul__(self, factor: float) -> Times:
        return Times([factor * t for t in self.wall], [factor * t for t in self.cpu])

    @property
    def seconds(self) -> float:
        return statistics.median(self.wall)


def alternately(
    repetitions: int, before: Callable[[], object] = lambda: None, **functions: Callable[[], object]
) -> dict[str, Times]:
    """Time all functions in turn, again and again, so that whatever else the machine does meets all of them.

    What is called `before` each of them is not timed: it leaves the caches as they are found in practice.
    """
    for function in functions.values():
        function()  # allocate, page in, warm up
    times = {name: Times() for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            before()
            wall, cpu = time.perf_counter(), time.process_time()
            function()
            times[name].wall.append(time.perf_counter() - wall)
            times[name].cpu.append(time.process_time() - cpu)
    return times


def ratio(a: Times, b: Times) -> dict[str, Any]:
    """The ratio of medians, the middle half of the rounds' own ratios, and the ratio by processor time."""
    rounds = _each(lambda x, y: x / y, a.wall, b.wall)
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return {
        "ratio": _short(a.seconds / b.seconds),
        "spread": [_short(low), _short(high)],
        "ratio_of_cpu_time": _short(statistics.median(a.cpu) / statistics.median(b.cpu)),
        "milliseconds": [_short(1e3 * a.seconds), _short(1e3 * b.seconds)],
        "rounds": len(rounds),
    }


def exponent(sizes: list[int], values: list[float]) -> float:
    """p of the least-squares fit value ~ size^p."""
    x, y = ([math.log(max(v, 1e-9)) for v in column] for column in (sizes, values))
    return _short(statistics.linear_regression(x, y).slope)


def peak_bytes(function: Callable[[], object]) -> int | None:
    """How much more memory the process held at most while the function ran; None where the kernel does not say."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _status("VmRSS")
        function()
        return max(_status("VmHWM") - before, 0)
    except OSError:
        function()
        return None


class Traffic(TorchDispatchMode):
    """Counts operations and the bytes of tensors that they read and write, whether in cache or in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not any(alias.alias_info and not alias.alias_info.is_write for alias in function._schema.arguments):
            self.operations += 1  # and not a mere view
            self.bytes += sum(leaf.nbytes for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
            written = [a for a in function._schema.arguments if a.alias_info]
            places = [arg for arg, a in zip(args, function._schema.arguments, strict=False) if a in written]
            leaves = tree_leaves(places if written else result)
            self.bytes += sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
        return result


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def _each(function: Callable[[float, float], float], a: list[float], b: list[float]) -> list[float]:
    return [function(x, y) for x, y in zip(a, b, strict=True)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
