"""The random function of a layer, a sum of cosines: as it is written, and as a table where there are many weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

ROUNDING = 2.0**-24  # half a unit in the last place of a float32
ROW = 64  # entries of a table that share a cosine and a sine of every feature


@dataclass(frozen=True)
class Wave:
    r"""A sum of cosines.

    $$ f(\omega) = \sum_j m_j \cos(\theta_j \omega + \phi_j) $$

    Args:
        theta: frequencies, (features,).
        phi: phases, (features,), or (features, values) where every value has its own.
        m: amplitudes, (features,).
    """

    theta: Tensor
    phi: Tensor
    m: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        theta, phi, m = (x.to(values) for x in (self.theta, self.phi, self.m))
        angles = torch.addcmul(phi if phi.ndim == 2 else phi[:, None], theta[:, None], values)
        return m @ angles.cos_()

    @cached_property
    def spacing(self) -> float:
        r"""Distance h of a table's entries, a power of 2, at which the table is as exact as float32.

        Within h / 2 of an entry the remainder of a Taylor polynomial of degree 2 is at most

        $$ \frac{(h/2)^3}{6} \sum_j |m_j| |\theta_j|^3 \le 2^{-24} \sum_j |m_j| $$

        and the right-hand side is what rounding each cosine once may cost.
        """
        m = self.m.double().abs()
        third = (m @ self.theta.double().abs().pow(3)).item()
        largest = (48 * ROUNDING * m.sum().item() / max(third, 1e-300)) ** (1 / 3)
        return 2.0 ** math.floor(math.log2(max(largest, 1e-300)))

    def table(self, lowest: float, highest: float, device: torch.device) -> Table:
        """A table to read off float32 values between `lowest` and `highest`."""
        h = self.spacing
        first, last = round(lowest / h), round(highest / h)
        phi, m, turn = self.phi.double(), self.m.double(), self.theta.double() * h
        # By cos(a + b) = cos a cos b - sin a sin b, with a the angle at every ROW-th entry, a table is a small product.
        a = torch.arange(first, last + 1, ROW, dtype=torch.float64)[:, None] * turn + phi
        b = torch.arange(ROW, dtype=torch.float64)[:, None] * turn
        within = torch.cat([b.cos(), b.sin()], 1).T
        cosines = torch.cat([a.cos(), -a.sin()], 1)
        sines = torch.cat([a.sin(), a.cos()], 1)
        terms = (cosines * m.repeat(2), sines * (-turn * m).repeat(2), cosines * (-turn.square() * m / 2).repeat(2))
        value, slope, curve = ((term @ within).reshape(-1).float().to(device) for term in terms)
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
