"""Random numbers that depend on where they are used and on nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

BLOCK = 1 << 16  # normal numbers that belong together; part of what a seed means, so never change it
HALF = BLOCK // 2
CPU = torch.device("cpu")
FULL = 1 << 8  # blocks that are drawn at once where an operation takes as long to start as to run


def at_once(device: torch.device) -> int:
    """Normal numbers that are best drawn together: as many as stay in the processors' caches, more on other devices."""
    return BLOCK * (torch.get_num_threads() if device.type == "cpu" else FULL)


def key(*parts: int | str) -> int:
    """128 bits that stand for the parts and nothing else."""
    return int.from_bytes(blake2b("/".join(map(str, parts)).encode(), digest_size=16).digest(), "little")


@dataclass(frozen=True)
class Stream:
    """An endless sequence of float32 numbers, a function of (seed, member, name) and the index alone.

    A number is a hash of its index and is computed where it is wanted. Chunks and shards see the same numbers, bit for
    bit; another kind of processor may round the last bit otherwise.
    """

    seed: int
    member: int
    name: str

    def normal(self, start: int, stop: int, device: torch.device = CPU) -> Tensor:
        """Standard normal numbers [start, stop): two from every hash (Box and Muller), half a block apart."""
        own, pieces = self._key("normal"), [torch.empty(0, device=device, dtype=torch.float32)]
        last = -(-stop // BLOCK) if start < stop else 0
        step = at_once(device) // BLOCK
        for block in range(start // BLOCK, last, step):
            blocks = min(step, last - block)
            low, high = max(start - block * BLOCK, 0), min(stop - block * BLOCK, blocks * BLOCK)
            if high <= HALF:
                radius, angle = _polar(_hashes(own, block * HALF + low, high - low, device))
                pieces.append(angle.cos_().mul_(radius))
            else:
                radius, angle = (
                    x.view(blocks, HALF) for x in _polar(_hashes(own, block * HALF, blocks * HALF, device))
                )
                both = radius.new_empty(blocks, 2, HALF)
                torch.cos(angle, out=both[:, 0])
                torch.sin(angle, out=both[:, 1])
                pieces.append(both.mul_(radius[:, None]).view(-1)[low:high])
        return pieces[1] if len(pieces) == 2 else torch.cat(pieces)

    def uniform(self, start: int, stop: int, device: torch.device = CPU) -> Tensor:
        """Uniform numbers in [0, 1), [start, stop)."""
        bits = _hashes(self._key("uniform"), start, stop - start, device)
        return _shifted(bits, 40).float().mul_(2**-24)

    def _key(self, kind: str) -> tuple[int, int]:
        bits = key(self.seed, self.member, self.name, kind)
        return bits & MASK, bits >> 64


MASK = (1 << 64) - 1
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _hashes(key: tuple[int, int], start: int, count: int, device: torch.device) -> Tensor:
    """64 random bits for each of `count` counters.

    SplitMix64 (Steele et al. 2014; David Stafford's variant 13 of the mixing function), at a place that one half of the
    key gives. The other half joins in the middle, so that no two streams are parts of one sequence.
    """
    x = torch.arange(count, device=device).mul_(_signed(GOLDEN)).add_(_signed(key[0] + (start + 1) * GOLDEN))
    x.bitwise_xor_(_shifted(x, 30)).mul_(_signed(FIRST)).bitwise_xor_(_signed(key[1]))
    x.bitwise_xor_(_shifted(x, 27)).mul_(_signed(SECOND))
    return x.bitwise_xor_(_shifted(x, 31))


def _polar(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Radius and angle of points that are normally distributed in the plane, from 32 bits each."""
    radius = _shifted(bits, 32).float().add_(0.5).mul_(2**-32).log_().mul_(-2).sqrt_()
    return radius, bits.int().float().mul_(math.pi * 2**-31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shifted to the right, with zeros from the left: torch's integers have a sign, which it would copy."""
    return (bits >> by).bitwise_and_(MASK >> by)


def _signed(number: int) -> int:
    """The same 64 bits as an integer with a sign."""
    return (number + (1 << 63) & MASK) - (1 << 63)
