"""Random numbers that depend on where they are used and on nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
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
            generator = np.random.Generator(np.random.Philox(key=philox, counter=block << 128))
            size = min(stop - first, BLOCK)
            numbers = (
                generator.standard_normal(size, dtype=np.float32)
                if kind == "normal"
                else generator.random(size, dtype=np.float32)
            )
            pieces.append(numbers[max(start - first, 0) :])
        return torch.from_numpy(np.concatenate(pieces)) if pieces else torch.empty(0)
