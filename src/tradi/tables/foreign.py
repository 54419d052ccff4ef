r"""How foreign a row is to the training data, and from where on it counts as out of distribution (OOD).

$$ s(x) = \max\left(\frac{d(x)}{d_{99}}, \frac{m(x)}{m_{99}}, \frac{o(x)}{o_{99}}\right) $$

with d the members' disagreement (the deviation of their means in units of the target's, or the root of the mutual
information of classes), m the Mahalanobis distance from the training rows, o how far the row's most extreme number lies
outside its column's training range (0 inside), and 99 for the 99th percentile of held-out rows, for o at least 1, the
edge. Disagreement alone sees what matters to the prediction; in classification it is nearly blind far from the data.
Distance sees unusual combinations, and range sees a single column in error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tradi.extras import require
from tradi.tables.columns import Encoded
from tradi.tables.frames import Numbers

SHARE = 0.99  # of good rows that are not flagged
ENOUGH = 50  # held-out rows, for a percentile of their own
SAME = 1e-6  # disagreement up to here is rounding: all members are the same network
RIDGE = 0.01  # of an input's variance, which is about 1
UNSEEN = 2.0  # halves of a range: what counts for a category, or a gap, that no training row has


@dataclass(frozen=True)
class Limits:
    """What held-out rows say of the scores.

    Args:
        disagreement, distance, outside: 99th percentiles of the parts of the score; 0 leaves a part out.
        threshold: scores above it are out of distribution.

    Raises:
        ValueError: if one is negative.
    """

    disagreement: float
    distance: float
    outside: float
    threshold: float

    def __post_init__(self) -> None:
        for name in ("disagreement", "distance", "outside", "threshold"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Cloud:
    """Where the training rows are.

    Args:
        centre: (inputs,).
        whitening: (inputs, inputs); a row's distance is the length of this times its difference from the centre.
    """

    centre: Numbers
    whitening: Numbers

    @staticmethod
    def of(inputs: Numbers) -> Cloud:
        """Mean and covariance of the training rows; a ridge keeps the covariance invertible."""
        centre = inputs.mean(0)
        apart = inputs - centre
        covariance = apart.T @ apart / len(inputs) + RIDGE * np.eye(inputs.shape[1])
        return Cloud(centre, np.linalg.inv(np.linalg.cholesky(covariance)))

    def distance(self, inputs: Numbers) -> Numbers:
        """Mahalanobis distance of every row."""
        return np.asarray(np.linalg.norm((inputs - self.centre) @ self.whitening.T, axis=1))


@dataclass(frozen=True, eq=False)
class Strangeness:
    """The parts of the score, each (rows,)."""

    disagreement: Numbers
    distance: Numbers
    outside: Numbers

    @staticmethod
    def of(rows: Encoded, disagreement: Numbers, cloud: Cloud) -> Strangeness:
        """As the rows, and what the members make of them, have it."""
        new = np.zeros(len(rows.inputs), dtype=bool)
        for unseen in rows.unseen.values():
            new |= unseen
        outside = np.where(new, np.maximum(rows.outside, UNSEEN), rows.outside)
        return Strangeness(disagreement, cloud.distance(rows.inputs), outside)

    def score(self, limits: Limits) -> Numbers:
        """The largest part, each in units of its limit."""
        pairs = (
            (self.disagreement, limits.disagreement),
            (self.distance, limits.distance),
            (self.outside, limits.outside),
        )
        scaled = [part / limit for part, limit in pairs if limit > 0]
        return np.max(scaled, axis=0) if scaled else np.zeros(len(self.distance))


def limits_of(held_out: Strangeness) -> Limits:
    """The limits that held-out rows ask for."""
    parts = (held_out.disagreement, held_out.distance, held_out.outside)
    disagreement, distance, outside = (float(np.quantile(part, SHARE)) for part in parts)
    disagreement = disagreement if disagreement > SAME else 0.0
    limits = Limits(disagreement, distance, max(outside, 1.0), threshold=0.0)
    return replace(limits, threshold=threshold_of(held_out.score(limits)))


def threshold_of(scores: NDArray[np.float64]) -> float:
    r"""The score that about 1% of good rows exceed.

    Of n held-out scores, 50 or more, it is the one of rank ceil(0.99 (n + 1)), which a further one exceeds with a
    probability of 1%, or the largest. Fewer cannot show it: then it is the upper 99% limit for one further score,
    taking logarithms as normal, $\exp(m + t_{n-1, 0.99}\, s \sqrt{1 + 1/n})$ with their mean m and deviation s and
    Student's t.
    """
    n = len(scores)
    largest = float(scores.max())
    if n >= ENOUGH:
        return float(np.sort(scores)[min(math.ceil(SHARE * (n + 1)), n) - 1])
    if largest == 0 or n < 2:
        return 2 * largest
    logs = np.log(np.maximum(scores, largest * 1e-6))
    student = float(require("scipy.stats", "tables").t.ppf(SHARE, n - 1))
    return math.exp(float(logs.mean() + student * logs.std(ddof=1) * math.sqrt(1 + 1 / n)))
