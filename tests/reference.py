"""The filters as the paper's pages print them: one weight at a time, Python floats, loops. Slow, and easy to check.

Written from the paper (Algorithm 1 and section 1.1 of its appendix) and the authors' released constants, and
independently of `tradi`: nothing here imports it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

STATE_NOISE = {"mean": 1e-4, "variance": 5e-5}
OBSERVATION_NOISE = 10.0
MEMORY = 10.0


@dataclass
class Gain:
    """P- = P + q; Q = P- / (P- + r); P = (1 - Q) P-, from P = 0."""

    q: float
    r: float = OBSERVATION_NOISE
    P: float = 0.0

    def next(self) -> float:
        prior = self.P + self.q
        Q = prior / (prior + self.r)
        self.P = (1 - Q) * prior
        return Q


class Faithful:
    """One layer under the preset `paper` or `released`: means, and the covariance of every pair of weights.

    The variances are the diagonal, which no other entry enters. The growth of a covariance is Algorithm 1's,
    eta^2 (g_k - mu_k)(g_k' - mu_k'): section 1.1 prints eta^2 g_k g_k' - eta^2 mu_k mu_k', which on the diagonal
    contradicts Algorithm 1.
    """

    def __init__(self, preset: str, start: list[float]) -> None:
        assert preset in ("paper", "released")
        self.preset = preset
        self.mean = [0.0] * len(start)
        self.covariance = [[start[k] if k == j else 0.0 for j in range(len(start))] for k in range(len(start))]
        self.mean_gain, self.variance_gain = Gain(STATE_NOISE["mean"]), Gain(STATE_NOISE["variance"])

    def step(self, weights: list[float], gradients: list[float], rates: list[float], pairs: bool = False) -> None:
        Q_mean, Q_variance = self.mean_gain.next(), self.variance_gain.next()
        K = len(weights)
        for k in range(K):
            prior = self.mean[k] - rates[k] * gradients[k]
            self.mean[k] = (1 - Q_mean) * prior + Q_mean * weights[k]
        for k in range(K):
            for j in range(K) if pairs else (k,):
                if self.preset == "paper":
                    growth = rates[k] * (gradients[k] - self.mean[k]) * rates[j] * (gradients[j] - self.mean[j])
                    seen = weights[k] * weights[j] - self.mean[k] * self.mean[j]
                else:
                    growth = rates[k] * gradients[k] * rates[j] * gradients[j]
                    seen = (weights[k] - self.mean[k]) * (weights[j] - self.mean[j])
                self.covariance[k][j] = (1 - Q_variance) * (self.covariance[k][j] + growth) + Q_variance * seen

    @property
    def variance(self) -> list[float]:
        return [self.covariance[k][k] for k in range(len(self.mean))]


@dataclass
class Trajectory:
    """The default, from its definition: moments of all weights seen, step t counting t^g - (t-1)^g."""

    g: float = MEMORY
    seen: list[list[float]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def step(self, weights: list[float], gradients: list[float], rates: list[float], pairs: bool = False) -> None:
        self.look(len(self.seen) + 1, weights)

    def look(self, t: int, weights: list[float]) -> None:
        self.seen.append(weights)
        self.steps.append(t)

    @property
    def shares(self) -> list[float]:
        before = [0, *self.steps[:-1]]
        return [(t**self.g - s**self.g) / self.steps[-1] ** self.g for s, t in zip(before, self.steps, strict=True)]

    @property
    def mean(self) -> list[float]:
        shares = self.shares
        return [math.fsum(c * w[k] for c, w in zip(shares, self.seen, strict=True)) for k in range(len(self.seen[0]))]

    @property
    def covariance(self) -> list[list[float]]:
        return [[self._covariance(k, j) for j in range(len(self.seen[0]))] for k in range(len(self.seen[0]))]

    @property
    def variance(self) -> list[float]:
        return [self._covariance(k, k) for k in range(len(self.seen[0]))]

    def _covariance(self, k: int, j: int) -> float:
        shares = self.shares
        mean_k = math.fsum(c * w[k] for c, w in zip(shares, self.seen, strict=True))
        mean_j = math.fsum(c * w[j] for c, w in zip(shares, self.seen, strict=True))
        return math.fsum(c * (w[k] - mean_k) * (w[j] - mean_j) for c, w in zip(shares, self.seen, strict=True))


def start(preset: str, shape: tuple[int, ...], fan_in: int) -> list[float]:
    """Variances before the first step: He's 2 / fan_in, or the released sqrt(2 / first dimension)."""
    variance = 2 / fan_in if preset == "paper" else math.sqrt(2 / shape[0])
    return [variance] * math.prod(shape)


def filter_of(preset: str, shapes: list[tuple[int, ...]], fan_in: int) -> Faithful | Trajectory:
    """The reference filter of weights that share one fan-in: a parameter alone, or all of a layer together."""
    if preset == "default":
        return Trajectory()
    return Faithful(preset, [variance for shape in shapes for variance in start(preset, shape, fan_in)])
