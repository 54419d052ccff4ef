"""The filter's mathematics: gains, equations, options, state and one in-place update. No modules, no hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

# Elements a pass works on: the five arrays of a chunk stay in a core's cache between the operations on it.
CHUNK = 1 << 16

# Observations that a growing memory makes do with, at the least: past this many steps some are passed over, so that a
# gain never falls to where float32 loses the correction to the mean (and tracking a long run costs next to nothing).
RESOLUTION = 250

Rate = float | Tensor
# Adds c * a b to the second moment: elementwise for variances, as an outer product for a full covariance.
Accumulate = Callable[[Tensor, Tensor, Tensor, float], None]


class Gain(Protocol):
    """The weight Q of an observation: a function of the step t = 1, 2, ... alone, never of data."""

    def __call__(self, since: int, step: int) -> float:
        """Gain at `step` of a filter that last looked at step `since`: 1 - the product of the 1 - Q between."""
        ...

    def stride(self, step: int) -> int:
        """How many steps may lie between observations around `step` without loss."""
        ...


@dataclass(frozen=True)
class FadingMemory:
    r"""Remember the last 1/g of the run so far, however long the run is.

    $$ Q(t) = 1 - \left(\frac{t-1}{t}\right)^g \approx \frac{g}{t} $$

    It is the Kalman gain for the noise ratio q(t)/r = (1 + x)^g + (1 - x)^g - 2 with x = 1/(t - 1), and Q(1) = 1
    forgets the start. The estimate is the average of the trajectory with weights t^g - (t-1)^g; g = 1 is the
    plain average of the whole run.
    """

    g: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.g < math.inf:
            raise ValueError(f"g must be at least 1 (which remembers the whole run), got {self.g}")

    def __call__(self, since: int, step: int) -> float:
        return -math.expm1(self.g * math.log1p((since - step) / step)) if since else 1.0

    def stride(self, step: int) -> int:
        return 1 << max((step // RESOLUTION).bit_length() - 1, 0)  # powers of 2, so that strides line up


@dataclass(frozen=True)
class StationaryNoise:
    r"""The textbook scalar filter with constant noise variances, started at P = 0 (Algorithm 1 of the appendix).

    $$ P^- = P + q, \quad Q = \frac{P^-}{P^- + r}, \quad P = (1 - Q) P^- $$

    P / r after a step equals Q, so the recursion is Q' = (Q + rho) / (Q + rho + 1) with rho = q / r. It is linear
    fractional, and with cosh a = 1 + rho / 2 the product of all 1 - Q up to step t is
    cosh(a / 2) / cosh((t + 1/2) a): there is nothing to store.

    Args:
        process: q, the variance of the state noise.
        observation: r, the variance of the observation noise.
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


class Equations(Protocol):
    """What is predicted and what is observed: the model behind the gains."""

    needs_gradient: bool

    def start(self, weight: Tensor, fan_in: int) -> tuple[Tensor, Tensor]:
        """Mean and variance before the first update; the weight is the one that the first update will see."""
        ...

    def step(self, at: Step, add: Accumulate) -> None:
        """One prediction and correction of `at.mean` and `at.second`, in place."""
        ...


@dataclass
class Step:
    """What one update works on. `second` holds variances like `mean`, or the covariance matrix of a flat `mean`."""

    mean: Tensor
    second: Tensor
    weight: Tensor
    gradient: Tensor
    lr: Rate
    q_mean: float
    q_variance: float


@dataclass(frozen=True)
class Trajectory:
    r"""A random walk observed through the weights: the mean and variance of the recent trajectory. The default.

    $$ d = \omega - \mu, \quad \mu \leftarrow \mu + Q_\mu d, \quad
       \sigma^2 \leftarrow (1 - Q_\sigma)\,\sigma^2 + Q_\sigma (1 - Q_\mu)\, d^2 $$

    (1 - Q) d^2 is what the innovation d says of the observation noise, since E d^2 = P^- + r = r / (1 - Q).
    With equal gains these are exactly the weighted mean and variance of all weights seen.
    """

    needs_gradient = False

    def start(self, weight: Tensor, fan_in: int) -> tuple[Tensor, Tensor]:
        del fan_in
        return weight.clone(), torch.zeros_like(weight)

    def step(self, at: Step, add: Accumulate) -> None:
        innovation = at.weight - at.mean
        at.mean.add_(innovation, alpha=at.q_mean)
        at.second.mul_(1 - at.q_variance)
        add(at.second, innovation, innovation, at.q_variance * (1 - at.q_mean))


@dataclass(frozen=True)
class AlgorithmOne:
    r"""Algorithm 1 of the paper's appendix, to the letter.

    $$ \mu^- = \mu - \eta g, \quad \mu \leftarrow (1 - Q_\mu)\mu^- + Q_\mu \omega, \quad
       \sigma^{2-} = \sigma^2 + \eta^2 (g - \mu)^2, \quad
       \sigma^2 \leftarrow (1 - Q_\sigma)\sigma^{2-} + Q_\sigma(\omega^2 - \mu^2) $$

    The variance can go negative; sampling clamps it, the state keeps it.
    """

    needs_gradient = True

    def start(self, weight: Tensor, fan_in: int) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(weight), torch.full_like(weight, 2 / fan_in)

    def step(self, at: Step, add: Accumulate) -> None:
        at.mean.sub_(at.gradient * at.lr).lerp_(at.weight, at.q_mean)
        growth = (at.gradient - at.mean) * at.lr
        add(at.second, growth, growth, 1.0)
        at.second.mul_(1 - at.q_variance)
        add(at.second, at.weight, at.weight, at.q_variance)
        add(at.second, at.mean, at.mean, -at.q_variance)


@dataclass(frozen=True)
class ReleasedCode:
    r"""What the authors' released script computes: the paper's mean, another start and variance.

    $$ \sigma^2 \leftarrow (1 - Q_\sigma)(\sigma^2 + (\eta g)^2) + Q_\sigma (\omega - \mu)^2 $$
    """

    needs_gradient = True

    def start(self, weight: Tensor, fan_in: int) -> tuple[Tensor, Tensor]:
        del fan_in
        rows = len(weight) if weight.ndim else 1
        return torch.zeros_like(weight), torch.full_like(weight, math.sqrt(2 / rows))

    def step(self, at: Step, add: Accumulate) -> None:
        move = at.gradient * at.lr
        at.mean.sub_(move).lerp_(at.weight, at.q_mean)
        add(at.second, move, move, 1.0)
        at.second.mul_(1 - at.q_variance)
        residual = at.weight - at.mean
        add(at.second, residual, residual, at.q_variance)


@dataclass(frozen=True)
class Kalman:
    """How weights are tracked. The default works on any run, from a hundred steps to millions, without tuning.

    Args:
        equations: the state and observation model: `Trajectory()`, `AlgorithmOne()` or `ReleasedCode()`.
        mean_gain: gain of the mean's filter.
        variance_gain: gain of the variance's filter.
        every: look at the weights every so many steps; gains are compounded, so the memory in steps stays.
        normalisation: track the weights of normalisation layers too (where `select` does not say otherwise).
    """

    equations: Equations = field(default_factory=Trajectory)
    mean_gain: Gain = field(default_factory=FadingMemory)
    variance_gain: Gain = field(default_factory=FadingMemory)
    every: int = 1
    normalisation: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be a whole number of steps, at least 1, got {self.every!r}")
        for name in ("mean_gain", "variance_gain"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a gain, such as FadingMemory(3), got {getattr(self, name)!r}")
        if self.every > 1 and self.equations.needs_gradient:
            raise ValueError(
                f"every = {self.every} would miss gradients that {type(self.equations).__name__} adds up: "
                "use every = 1, or the default equations"
            )

    @classmethod
    def paper(cls) -> Kalman:
        """Algorithm 1 to the letter, on all weights; its noise variances are the released ones."""
        return cls(AlgorithmOne(), StationaryNoise(1e-4, 10.0), StationaryNoise(5e-5, 10.0), normalisation=True)

    @classmethod
    def released(cls) -> Kalman:
        """The released script's filter."""
        return cls(ReleasedCode(), StationaryNoise(1e-4, 10.0), StationaryNoise(5e-5, 10.0))

    def observes(self, step: int) -> bool:
        """Whether the filter looks at the weights at this step; equations that add up gradients must see them all."""
        if step == 1 or self.equations.needs_gradient:
            return True
        stride = min(self.mean_gain.stride(step), self.variance_gain.stride(step))
        return step % max(self.every, stride) == 0


@dataclass
class State:
    """The distribution of one block of weights: two floats a weight (or a mean and a matrix) and two counters.

    Args:
        mean: mu, flat.
        second: the variances, flat, or the covariance matrix.
        step: steps seen.
        observed: the last step at which the filter looked.
    """

    mean: Tensor
    second: Tensor
    step: int = 0
    observed: int = 0

    @torch.no_grad()
    def update(self, kalman: Kalman, weight: Tensor, gradient: Tensor, lr: Rate) -> None:
        """Track one optimizer step that ended at `weight`; `gradient` is read only where the equations need it."""
        self.step += 1
        if not kalman.observes(self.step):
            return
        q_mean = kalman.mean_gain(self.observed, self.step)
        q_variance = kalman.variance_gain(self.observed, self.step)
        self.observed = self.step
        if self.second.ndim == 2:
            step = Step(self.mean, self.second, weight, gradient, lr, q_mean, q_variance)
            kalman.equations.step(step, _add_outer)
            return
        for mean, second, w, g in _chunks(self.mean, self.second, weight, gradient):
            w = w.to(mean.dtype)
            g = g.to(mean.dtype) if kalman.equations.needs_gradient else w
            kalman.equations.step(Step(mean, second, w, g, lr, q_mean, q_variance), _add_product)


def _chunks(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    if len(tensors[0]) <= CHUNK:
        return (tensors,)
    return zip(*(tensor.split(CHUNK) for tensor in tensors), strict=True)


def _add_product(second: Tensor, a: Tensor, b: Tensor, c: float) -> None:
    second.addcmul_(a, b, value=c)


def _add_outer(second: Tensor, a: Tensor, b: Tensor, c: float) -> None:
    second.addr_(a, b, alpha=c)
