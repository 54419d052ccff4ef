r"""Numbers on a scale that a few far values do not spoil.

$$ b(u) = u \text{ for } |u| \le 3, \quad \operatorname{sign}(u)\,(3 + 3 \log(|u| / 3)) \text{ beyond}, \qquad
u = \frac{x - \text{median}}{\text{spread}} $$

The spread of a column with a long tail, in which some row lies over six normal deviations away, is such a deviation,
from the interquartile range: neither a typing error nor a skewed column then pushes all other rows together. That of
any other column is the distance of its farthest row, so only rows far outside are drawn in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

LINEAR = 3.0  # spreads from the median
LONG = 6.0  # normal deviations from the median, for a tail
FAR = 1e12  # spreads; a network is shown no number beyond
NORMAL = 1.349  # the interquartile range of a normal distribution, in deviations
REACH = 4.0  # times the distance of the 2.5th or 97.5th percentile from the median


def middle_and_spread(values: Matrix) -> tuple[Matrix, Matrix]:
    """The median and the spread of every column; a constant column has a spread of 1.

    Args:
        values: (rows, columns).
    """
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    normal = high / NORMAL - low / NORMAL
    normal = np.where(normal > 0, normal, values.std(0))  # half of the values may be equal
    farthest = np.abs(values - middle).max(0)
    spread = np.where(farthest > LONG * normal, normal, farthest)
    return middle, np.where((values == values[0]).all(0) | (spread == 0), 1.0, spread)


def bent(values: Matrix, middle: Any, spread: Any) -> Matrix:
    """Numbers in spreads from the median, drawn in beyond three."""
    with np.errstate(over="ignore"):
        apart = np.clip((values - middle) / spread, -FAR, FAR)
    beyond = LINEAR * (1 + np.log(np.maximum(np.abs(apart), LINEAR) / LINEAR))
    return np.where(np.abs(apart) <= LINEAR, apart, np.sign(apart) * beyond)


@dataclass(frozen=True, eq=False)
class Standard:
    """Columns with mean 0 and deviation 1, whose long tails are drawn in.

    Args:
        middle: median of every column.
        spread: of every column, 1 where a column is constant.
        mean: of every column, once its tails are drawn in.
        std: likewise, 1 where a column is constant.
    """

    middle: Matrix
    spread: Matrix
    mean: Matrix
    std: Matrix

    @staticmethod
    def of(values: Matrix) -> Standard:
        """As the columns of these rows need it."""
        middle, spread = middle_and_spread(values)
        near = bent(values, middle, spread)
        std = near.std(0)
        # The values are compared, since the computed deviation of a constant column may be 1e-16 instead of 0.
        return Standard(middle, spread, near.mean(0), np.where((near == near[0]).all(0) | (std == 0), 1.0, std))

    def to(self, values: Matrix) -> Matrix:
        """The standardised rows."""
        return (bent(values, self.middle, self.spread) - self.mean) / self.std


def within_reach(values: Matrix) -> tuple[Matrix, int]:
    """Numbers, those that are very far away taken as nearer, and how many these are.

    The limits are four times as far from the median as the 2.5th and the 97.5th percentile. There are none if one of
    these is the median.
    """
    low, middle, high = np.quantile(values, (0.025, 0.5, 0.975))
    if not low < middle < high:
        return values, 0
    near = np.clip(values, middle - REACH * (middle - low), middle + REACH * (high - middle))
    return near, int((near != values).sum())


def about_far(count: int) -> str:
    """What to say of target values that were taken as nearer."""
    return (
        f"{count:,} of the target's values lie over {REACH:g} times as far from the median as 95% of them, and were "
        "taken as no farther: check them for typing errors, or predict the logarithm"
    )
