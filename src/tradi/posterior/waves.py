"""The random function of a layer, a sum of cosines: as it is written, and as a table where there are many weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ROUNDING = 2.0**-24  # half a unit in the last place of a float32
Numbers = NDArray[np.floating[Any]]  # a few, in numpy, which takes a fraction of torch's time for an operation on them
ROW = 64  # entries of a table that share a cosine and a sine of every feature


@dataclass(frozen=True)
class Wave:
    r"""A sum of cosines.

    $$ f(\omega) = \sum_j m_j \cos(\theta_j \omega + \phi_j) $$

    Args:
        theta: frequencies, (features,).
        phi: phases, (features,).
        m: amplitudes, (features,).
    """

    theta: Numbers
    phi: Numbers
    m: Numbers

    def __call__(self, values: Tensor, phi: Tensor | None = None) -> Tensor:
        """Its value everywhere; where every value has phases of its own, these are `phi`, (features, values)."""
        theta = torch.from_numpy(self.theta).to(values)
        phi = torch.from_numpy(self.phi).to(values)[:, None] if phi is None else phi.to(values).contiguous()
        cosines = torch.addcmul(phi, theta[:, None], values).cos_()
        # A matrix product would round by how many values there are, and a value's noise is its own wherever it is held.
        total = torch.zeros_like(values)
        for m, cosine in zip(self.m.tolist(), cosines, strict=True):
            total.add_(cosine, alpha=m)
        return total

    @cached_property
    def spacing(self) -> float:
        r"""Distance h of a table's entries, a power of 2, at which the table is as exact as float32.

        Within h / 2 of an entry the remainder of a Taylor polynomial of degree 2 is at most

        $$ \frac{(h/2)^3}{6} \sum_j |m_j| |\theta_j|^3 \le 2^{-24} \sum_j |m_j| $$

        and the right-hand side is what rounding each cosine once may cost.
        """
        theta, m = self.theta.tolist(), [abs(m) for m in self.m.tolist()]
        third = sum(m * abs(theta) ** 3 for m, theta in zip(m, theta, strict=True))
        largest = (48 * ROUNDING * sum(m) / max(third, 1e-300)) ** (1 / 3)
        return 2.0 ** math.floor(math.log2(max(largest, 1e-300)))

    def table(self, lowest: float, highest: float, device: torch.device) -> Table:
        """A table to read off float32 values between `lowest` and `highest`."""
        h = self.spacing
        first, last = round(lowest / h), round(highest / h)
        phi, m, theta = (x.astype(np.float64) for x in (self.phi, self.m, self.theta))
        turn = theta * h
        # With e^i(a + b) = e^ia e^ib, a the angle at every ROW-th entry, a table is the real part of a small product.
        a = np.arange(first, last + 1, ROW)[:, None] * turn + phi
        b = np.arange(ROW) * turn[:, None]
        terms = np.stack([m + 0j, 1j * turn * m, -turn * turn * m / 2])[:, None] * np.exp(1j * a)
        entries = (terms @ np.exp(1j * b)).real.astype(np.float32).reshape(3, -1)
        value, slope, curve = torch.from_numpy(entries).to(device)
        return Table(h, first, value, slope, curve)


@dataclass(frozen=True)
class Table:
    """A function on a grid: value, h f' and h^2 f'' / 2 at every entry (first + i) h.

    With h a power of 2, the entry of a value and the distance from it are exact in float32: what is left is the
    remainder that `Wave.spacing` bounds, and the rounding of the three terms.
    """

    h: float
    first: int
    value: Tensor
    slope: Tensor
    curve: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        offset = values * (1 / self.h)
        nearest = offset.round()
        offset.sub_(nearest)
        entry = nearest.sub_(self.first).int()
        value, slope, curve = (t.index_select(0, entry) for t in (self.value, self.slope, self.curve))
        return value.addcmul_(slope.addcmul_(curve, offset), offset)
