"""The filter: its options, its state, and one in-place update of all weights. No modules, no hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from tradi._torch import foreach_addcmul_
from tradi.filter.equations import AlgorithmOne, Equations, Gains, Rate, ReleasedCode, Step, Tensors, Trajectory
from tradi.filter.gains import FadingMemory, Gain, StationaryNoise

# Weights per thread and pass: intermediate results stay in the core's cache.
CHUNK = 1 << 17
VECTOR = 64  # weights; no processor's vectors are longer
DEVICE_CHUNK = 1 << 24  # on a GPU: enough to keep it busy with little temporary memory


@dataclass(frozen=True)
class Kalman:
    """How weights are tracked. The default works on any run, from a hundred steps to millions, without tuning.

    Args:
        equations: the state and observation model: `Trajectory()`, `AlgorithmOne()` or `ReleasedCode()`.
        mean_gain: gain of the mean's filter.
        variance_gain: gain of the variance's filter.
        every: number of steps between observations; gains are compounded, so the memory in steps stays the same.

    Raises:
        ValueError: if `every` is below 1, or above 1 with equations that need every gradient.
        TypeError: if a gain is not callable.
    """

    equations: Equations = field(default_factory=Trajectory)
    mean_gain: Gain = field(default_factory=FadingMemory)
    variance_gain: Gain = field(default_factory=FadingMemory)
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be a whole number of steps, at least 1, got {self.every!r}")
        for name in ("mean_gain", "variance_gain"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a gain, such as FadingMemory(1 / 3), got {getattr(self, name)!r}")
        if self.every > 1 and self.equations.needs_gradient:
            raise ValueError(
                f"every = {self.every} would miss gradients that {type(self.equations).__name__} accumulates: "
                "use every = 1, or the default equations"
            )

    @classmethod
    def paper(cls) -> Kalman:
        """Algorithm 1 of the appendix to the letter, with the noise variances of the released script.

        Returns:
            the filter.
        """
        return cls(AlgorithmOne(), StationaryNoise(1e-4, 10.0), StationaryNoise(5e-5, 10.0))

    @classmethod
    def released(cls) -> Kalman:
        """The filter of the authors' released script.

        Returns:
            the filter.
        """
        return cls(ReleasedCode(), StationaryNoise(1e-4, 10.0), StationaryNoise(5e-5, 10.0))

    def observes(self, step: int) -> bool:
        """Whether the filter observes the weights at this step; equations that need gradients observe every step."""
        if step == 1 or self.equations.needs_gradient:
            return True
        stride = min(self.mean_gain.stride(step), self.variance_gain.stride(step))
        return step % max(self.every, stride) == 0

    def gains(self, since: int, step: int) -> Gains | None:
        """The gains at `step` if the last observation was at step `since`; None if the filter skips the step."""
        if not self.observes(step):
            return None
        return Gains(self.mean_gain(since, step), self.variance_gain(since, step))


@dataclass
class State:
    """The distribution of one block of weights: two floats per weight (or a mean and a matrix) and two counts.

    Args:
        mean: mu, flat.
        second: the variances, flat, or the covariance matrix.
        step: number of steps so far.
        observed: the step of the last observation.
    """

    mean: Tensor
    second: Tensor
    step: int = 0
    observed: int = 0

    def advance(self, gains: Callable[[int, int], Gains | None]) -> Gains | None:
        """Count a step and return the gains to observe it with, or None if the filter skips it."""
        self.step += 1
        return gains(self.observed, self.step)

    def update(self, kalman: Kalman, weight: Tensor, gradient: Tensor, lr: Rate) -> None:
        """Track one optimizer step that ended at `weight`; `gradient` is read only if the equations need it."""
        gains = self.advance(kalman.gains)
        if gains is not None:
            needed = gradient if kalman.equations.needs_gradient else None
            self.observed = self.step
            observe(kalman.equations, [Observation(self.mean, self.second, weight, needed, lr)], gains)


class Observation(NamedTuple):
    """The state of one block, and its weights and gradients after an optimizer step, all flat.

    `gradient` is None unless the equations need it.
    """

    mean: Tensor
    second: Tensor
    weight: Tensor
    gradient: Tensor | None
    lr: Rate


@torch.no_grad()
def observe(equations: Equations, seen: Sequence[Observation], gains: Gains) -> None:
    """Update states that share the same gains in place, streaming each weight from memory once."""
    for pieces in _passes(seen):
        mean, second, _, _, lr = zip(*pieces, strict=True)
        weight = tuple(_as(piece.weight, piece.mean) for piece in pieces)
        gradient = tuple(_as(piece.gradient, piece.mean) for piece in pieces if piece.gradient is not None)
        step = Step(mean, second, weight, gradient, lr, gains)
        equations.step(step, _add_outer if second[0].ndim == 2 else _add_product)


def _passes(seen: Sequence[Observation]) -> Iterator[list[Observation]]:
    """The work of each pass: a piece of a large block, or many small blocks of the same device and dtype."""
    together: list[Observation] = []
    kind, room = None, 0
    for block in seen:
        own = block.mean.device, block.mean.dtype
        size = CHUNK * torch.get_num_threads() if own[0].type == "cpu" else DEVICE_CHUNK
        if own != kind:
            kind, room = own, 0
        for piece in _pieces(block, size):
            weights = piece.mean.numel()
            if weights > room:
                if together:
                    yield together
                together, room = [], size
            together.append(piece)
            room -= weights
    yield together


def _pieces(block: Observation, size: int) -> Iterator[Observation]:
    """Equal pieces of about this size, cut at multiples of VECTOR: remainders of a vector may round differently."""
    weights = block.mean.numel()
    count = round(weights / size)
    if count <= 1 or block.second.ndim == 2:
        yield block
        return
    size = math.ceil(weights / count / VECTOR) * VECTOR
    mean, second, weight = (tensor.split(size) for tensor in (block.mean, block.second, block.weight))
    gradient = repeat(None, len(mean)) if block.gradient is None else block.gradient.split(size)
    for piece in zip(mean, second, weight, gradient, repeat(block.lr, len(mean)), strict=True):
        yield Observation(*piece)


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.dtype == like.dtype else tensor.to(like.dtype)  # `to` is slow even if it changes nothing


def _add_product(second: Tensors, a: Tensors, b: Tensors, c: float) -> None:
    foreach_addcmul_(second, a, b, value=c)


def _add_outer(second: Tensors, a: Tensors, b: Tensors, c: float) -> None:
    for matrix, x, y in zip(second, a, b, strict=True):
        matrix.addr_(x, y, alpha=c)
