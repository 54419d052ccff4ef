"""The gain Q of each step, and how often the filter must observe the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

# The fewest observations in a growing memory. Past twice as many steps some are skipped, so that the gain never becomes
# so small that float32 loses the correction to the mean (and tracking a long run costs almost nothing).
RESOLUTION = 250


class Gain(Protocol):
    """The weight Q of an observation. It depends on the step t = 1, 2, ... alone, never on data."""

    def __call__(self, since: int, step: int) -> float:
        """Gain at `step`: 1 minus the product of 1 - Q over all steps since the last observation.

        Args:
            since: the step of the last observation; 0 before the first.
            step: the step of this observation.
        """
        ...

    def stride(self, step: int) -> int:
        """How many steps apart observations around `step` may be without loss."""
        ...


@dataclass(frozen=True)
class FadingMemory:
    r"""Remember the last `share` of the run so far, however long the run is.

    $$ Q(t) = 1 - \left(\frac{t-1}{t}\right)^g \approx \frac{g}{t}, \quad g = 1 / \text{share} $$

    It is the Kalman gain for the noise ratio q(t)/r = (1 + x)^g + (1 - x)^g - 2 with x = 1/(t - 1), and Q(1) = 1
    forgets the start. The estimate is the average of the trajectory with weights t^g - (t-1)^g.

    Args:
        share: fraction of the run so far, above 0; 1 is the plain average of the whole run.

    Raises:
        ValueError: if `share` is not above 0 and at most 1.
    """

    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be above 0 and at most 1 (the whole run), got {self.share}")

    def __call__(self, since: int, step: int) -> float:
        return -math.expm1(math.log1p((since - step) / step) / self.share) if since else 1.0

    def stride(self, step: int) -> int:
        return 1 << max((step // RESOLUTION).bit_length() - 1, 0)  # powers of 2, so that strides line up


@dataclass(frozen=True)
class StationaryNoise:
    r"""The textbook scalar filter with constant noise variances, started at P = 0 (Algorithm 1 of the appendix).

    $$ P^- = P + q, \quad Q = \frac{P^-}{P^- + r}, \quad P = (1 - Q) P^- $$

    P / r after a step equals Q, so the recursion is Q' = (Q + rho) / (Q + rho + 1) with rho = q / r. It is linear
    fractional, and with cosh a = 1 + rho / 2 the product of all 1 - Q up to step t is
    cosh(a / 2) / cosh((t + 1/2) a), so nothing is stored.

    Args:
        process: q, the variance of the state noise.
        observation: r, the variance of the observation noise.

    Raises:
        ValueError: if either is not positive and finite.
    """

    process: float
    observation: float

    def __post_init__(self) -> None:
        for name, value in (("process", self.process), ("observation", self.observation)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is a noise variance and must be positive and finite, got {value}")

    def __call__(self, since: int, step: int) -> float:
        a = 2 * math.asinh(math.sqrt(self.process / self.observation) / 2)
        # 1 - cosh u / cosh v = (1 - e^(u-v)) (1 - e^(-u-v)) / (1 + e^(-2v)): cosh overflows, its logarithm cancels.
        moved, forgotten = -math.expm1((since - step) * a), -math.expm1(-(since + step + 1) * a)
        return moved * forgotten / (1 + math.exp(-(2 * step + 1) * a))

    def stride(self, step: int) -> int:
        del step
        return 1
