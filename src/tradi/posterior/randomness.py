"""Random numbers that depend on where they are used and on nothing else."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 1 << 16  # numbers drawn from one counter of the generator; part of what a seed means, so never change it


def key(*parts: int | str) -> int:
    """128 bits that stand for the parts and nothing else."""
    return int.from_bytes(blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest(), "little")


@dataclass(frozen=True)
class Stream:
    """An endless sequence of float32 numbers, a function of (seed, member, name) and the index alone.

    Any slice can be drawn by itself, so chunks, shards and devices all see the same numbers.
    """

    seed: int
    member: int
    name: str

    def normal(self, start: int, stop: int) -> Tensor:
        """Standard normal numbers [start, stop)."""
        return self._draw("normal", start, stop)

    def uniform(self, start: int, stop: int) -> Tensor:
        """Uniform numbers in [0, 1), [start, stop)."""
        return self._draw("uniform", start, stop)

    def _draw(self, kind: str, start: int, stop: int) -> Tensor:
        philox = key(self.seed, self.member, self.name, kind)
        pieces = []
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            first = block * BLOCK
            generator = _generator(philox, block << 128)
            size = min(stop - first, BLOCK)
            numbers = (
                generator.standard_normal(size, dtype=np.float32)
                if kind == "normal"
                else generator.random(size, dtype=np.float32)
            )
            pieces.append(numbers[max(start - first, 0) :])
        if len(pieces) == 1:
            return torch.from_numpy(pieces[0])
        return torch.from_numpy(np.concatenate(pieces)) if pieces else torch.empty(0)


_own = threading.local()  # a generator for every thread: to make one takes longer than to draw a few numbers


def _generator(key: int, counter: int) -> np.random.Generator:
    """What `Generator(Philox(key=key, counter=counter))` gives, until the thread asks for the next."""
    if not hasattr(_own, "generator"):  # made when needed: importing numpy.random takes its time
        _own.generator = np.random.Generator(np.random.Philox(0))
    generator: np.random.Generator = _own.generator
    generator.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": _words(counter, 4), "key": _words(key, 2)},
        "buffer": _words(0, 4),
        "buffer_pos": 4,  # all of it is used up
        "has_uint32": 0,
        "uinteger": 0,
    }
    return generator


def _words(number: int, count: int) -> NDArray[np.uint64]:
    return np.frombuffer(number.to_bytes(8 * count, "little"), "<u8")
