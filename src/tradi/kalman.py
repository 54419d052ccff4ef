"""The filter's mathematics: equations, options, state and one in-place update. No modules, no hooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tradi.gains import FadingMemory, Gain, StationaryNoise

# Weights a thread works on at once: what is made on the way stays in its core's cache.
CHUNK = 1 << 18
VECTOR = 64  # what a processor works on at once, at the most, in weights
DEVICE_CHUNK = 1 << 24  # on a GPU: enough to keep it busy, and temporary memory stays small

Rate = float | Tensor
Tensors = tuple[Tensor, ...]
# Adds c * a b to the second moments: elementwise for variances, as an outer product for a full covariance.
Accumulate = Callable[[Tensors, Tensors, Tensors, float], None]


class Gains(NamedTuple):
    """How much a look counts: Q of the mean's filter, Q of the variance's, and the unit that variances then are in."""

    mean: float
    variance: float
    unit: float


class Equations(Protocol):
    """What is predicted and what is observed: the model behind the gains."""

    needs_gradient: bool

    def unit(self, before: float, q_mean: float, q_variance: float) -> float:
        """What a state's second moments are to be multiplied by after a step, if it was `before`; at first it is 0."""
        ...

    def start(self, weight: Tensor, fan_in: int) -> tuple[Tensor, Tensor]:
        """Mean and variance before the first update; the weight is the one that the first update will see."""
        ...

    def step(self, at: Step, add: Accumulate) -> None:
        """One prediction and correction of `at.mean` and `at.second`, in place."""
        ...


@dataclass
class Step:
    """What one update works on: pieces of weights that share a step, so that small ones share the operations too.

    `second` holds variances like `mean`, or the covariance matrices of flat means; `gradient` is empty where the
    equations need none; `lr` is a number for every piece, or for every weight of it.
    """

    mean: Tensors
    second: Tensors
    weight: Tensors
    gradient: Tensors
    lr: tuple[Rate, ...]
    q: Gains


@dataclass(frozen=True)
class Trajectory:
    r"""A random walk observed through the weights: the mean and variance of the recent trajectory. The default.

    $$ d = \omega - \mu, \quad \mu \leftarrow \mu + Q_\mu d, \quad
       \sigma^2 \leftarrow (1 - Q_\sigma)\,\sigma^2 + Q_\sigma (1 - Q_\mu)\, d^2 $$

    (1 - Q) d^2 is what the innovation d says of the observation noise, since E d^2 = P^- + r = r / (1 - Q).
    With equal gains these are exactly the weighted mean and variance of all weights seen.

    The state holds v = sigma^2 / u, with the number u that sigma^2 would be if every d^2 had been 1. Then both
    corrections have one form, and one kernel makes them in one pass over the weights:

    $$ u \leftarrow (1 - Q_\sigma)\,u + Q_\sigma (1 - Q_\mu), \quad Q_v = Q_\sigma (1 - Q_\mu) / u, \quad
       v \leftarrow (1 - Q_v)\,v + Q_v d^2 $$
    """

    needs_gradient = False

    def unit(self, before: float, q_mean: float, q_variance: float) -> float:
        return (1 - q_variance) * before + q_variance * (1 - q_mean)

    def start(self, weight: Tensor, fan_in: int) -> tuple[Tensor, Tensor]:
        del fan_in
        return weight.clone(), torch.zeros_like(weight)

    def step(self, at: Step, add: Accumulate) -> None:
        gain = at.q.variance * (1 - at.q.mean) / at.q.unit if at.q.unit else 1.0
        if _is_for_the_kernel(at, gain):
            _in_one_pass(at, gain)
            return
        innovation = torch._foreach_sub(at.weight, at.mean)
        torch._foreach_add_(at.mean, innovation, alpha=at.q.mean)
        torch._foreach_mul_(at.second, 1 - gain)
        add(at.second, innovation, innovation, gain)


@dataclass(frozen=True)
class AlgorithmOne:
    r"""Algorithm 1 of the paper's appendix, to the letter.

    $$ \mu^- = \mu - \eta g, \quad \mu \leftarrow (1 - Q_\mu)\mu^- + Q_\mu \omega, \quad
       \sigma^{2-} = \sigma^2 + \eta^2 (g - \mu)^2, \quad
       \sigma^2 \leftarrow (1 - Q_\sigma)\sigma^{2-} + Q_\sigma(\omega^2 - \mu^2) $$

    The variance can go negative; sampling clamps it, the state keeps it.
    """

    needs_gradient = True

    def unit(self, before: float, q_mean: float, q_variance: float) -> float:
        del before, q_mean, q_variance
        return 1.0

    def start(self, weight: Tensor, fan_in: int) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(weight), torch.full_like(weight, 2 / fan_in)

    def step(self, at: Step, add: Accumulate) -> None:
        torch._foreach_sub_(at.mean, _scaled(at.gradient, at.lr))
        torch._foreach_lerp_(at.mean, at.weight, at.q.mean)
        growth = _scaled(torch._foreach_sub(at.gradient, at.mean), at.lr)
        add(at.second, growth, growth, 1.0)
        torch._foreach_mul_(at.second, 1 - at.q.variance)
        add(at.second, at.weight, at.weight, at.q.variance)
        add(at.second, at.mean, at.mean, -at.q.variance)


@dataclass(frozen=True)
class ReleasedCode:
    r"""What the authors' released script computes: the paper's mean, another start and variance.

    $$ \sigma^2 \leftarrow (1 - Q_\sigma)(\sigma^2 + (\eta g)^2) + Q_\sigma (\omega - \mu)^2 $$
    """

    needs_gradient = True

    def unit(self, before: float, q_mean: float, q_variance: float) -> float:
        del before, q_mean, q_variance
        return 1.0

    def start(self, weight: Tensor, fan_in: int) -> tuple[Tensor, Tensor]:
        del fan_in
        rows = len(weight) if weight.ndim else 1
        return torch.zeros_like(weight), torch.full_like(weight, math.sqrt(2 / rows))

    def step(self, at: Step, add: Accumulate) -> None:
        move = _scaled(at.gradient, at.lr)
        torch._foreach_sub_(at.mean, move)
        torch._foreach_lerp_(at.mean, at.weight, at.q.mean)
        add(at.second, move, move, 1.0)
        torch._foreach_mul_(at.second, 1 - at.q.variance)
        residual = torch._foreach_sub(at.weight, at.mean)
        add(at.second, residual, residual, at.q.variance)


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

    def gains(self, since: int, step: int, unit: float) -> Gains | None:
        """The gains at a step of a filter that last looked at step `since`; None where it passes the step over."""
        if not self.observes(step):
            return None
        q_mean, q_variance = self.mean_gain(since, step), self.variance_gain(since, step)
        return Gains(q_mean, q_variance, self.equations.unit(unit, q_mean, q_variance))


@dataclass
class State:
    """The distribution of one block of weights: two floats a weight (or a mean and a matrix) and three numbers.

    Args:
        mean: mu, flat.
        second: the variances, flat, or the covariance matrix, in units of `unit`.
        step: steps seen.
        observed: the last step at which the filter looked.
        unit: see `Equations.unit`.
    """

    mean: Tensor
    second: Tensor
    step: int = 0
    observed: int = 0
    unit: float = 0.0

    @property
    def variance(self) -> Tensor:
        """A copy of the variances, or of the covariance matrix."""
        return self.second * self.unit

    def advance(self, gains: Callable[[int, int, float], Gains | None]) -> Gains | None:
        """Count a step; the gains to observe it with, or None where the filter passes it over."""
        self.step += 1
        found = gains(self.observed, self.step, self.unit)
        if found is not None:
            self.observed, self.unit = self.step, found.unit
        return found

    def update(self, kalman: Kalman, weight: Tensor, gradient: Tensor, lr: Rate) -> None:
        """Track one optimizer step that ended at `weight`; `gradient` is read only where the equations need it."""
        gains = self.advance(kalman.gains)
        if gains is not None:
            needed = gradient if kalman.equations.needs_gradient else None
            observe(kalman.equations, [Seen(self.mean, self.second, weight, needed, lr)], gains)


class Seen(NamedTuple):
    """The state of one block beside what an optimizer step left, all flat; `gradient` only where equations need it."""

    mean: Tensor
    second: Tensor
    weight: Tensor
    gradient: Tensor | None
    lr: Rate


@torch.no_grad()
def observe(equations: Equations, seen: Sequence[Seen], gains: Gains) -> None:
    """Correct states that are due with the same gains, in place, streaming each weight once."""
    for pieces in _passes(seen):
        mean, second, _, _, lr = zip(*pieces, strict=True)
        weight = tuple(_as(piece.weight, piece.mean) for piece in pieces)
        gradient = tuple(_as(piece.gradient, piece.mean) for piece in pieces if piece.gradient is not None)
        step = Step(mean, second, weight, gradient, lr, gains)
        equations.step(step, _add_outer if second[0].ndim == 2 else _add_product)


def _passes(seen: Sequence[Seen]) -> Iterator[list[Seen]]:
    """What is worked on at once: a piece of a large block, or many small blocks of one kind."""
    together: list[Seen] = []
    kind, room = None, 0
    for block in seen:
        own = block.mean.device, block.mean.dtype
        size = CHUNK * torch.get_num_threads() if own[0].type == "cpu" else DEVICE_CHUNK
        if own != kind:
            kind, room = own, 0
        for piece in _pieces(block, size):
            weights = piece.mean.numel()
            if weights > room:
                if together:
                    yield together
                together, room = [], size
            together.append(piece)
            room -= weights
    yield together


def _pieces(block: Seen, size: int) -> Iterator[Seen]:
    """Equal pieces of about this size, cut between vectors: what is left over of one may be rounded otherwise."""
    weights = block.mean.numel()
    count = round(weights / size)
    if count <= 1 or block.second.ndim == 2:
        yield block
        return
    size = math.ceil(weights / count / VECTOR) * VECTOR
    mean, second, weight = (tensor.split(size) for tensor in (block.mean, block.second, block.weight))
    gradient = repeat(None, len(mean)) if block.gradient is None else block.gradient.split(size)
    for piece in zip(mean, second, weight, gradient, repeat(block.lr, len(mean)), strict=True):
        yield Seen(*piece)


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.dtype == like.dtype else tensor.to(like.dtype)  # `to` itself takes its time over nothing


def _is_for_the_kernel(at: Step, q_second: float) -> bool:
    """Whether `_in_one_pass` serves.

    The kernel takes 1 - beta2 for the gain, which leaves a tiny one few digits. On other devices it is untried, and a
    compiler that traces the optimizer's step makes a kernel of its own.
    """
    plain = at.second[0].ndim == 1 and at.mean[0].device.type == "cpu"
    return plain and q_second > 2**-16 and not torch.compiler.is_compiling()


# Beside it roots of variances vanish; and a power of 2, so that a division by it is exact. Half of the exponents that a
# type has are above it, for what is multiplied by it: innovations, of up to 2^50 in float32.
_HUGE = {torch.float32: 2.0**77, torch.float64: 2.0**500}


def _in_one_pass(at: Step, q_second: float) -> None:
    r"""Move means towards the weights, second moments towards the squared innovations: torch's fused Adam kernel.

    $$ d = \omega - \mu, \quad v \leftarrow \beta_2 v + (1 - \beta_2) d^2, \quad
       \mu \leftarrow \mu - \eta\, d / (\sqrt{v / Q_v} + \epsilon) $$

    is Adam's first step with "parameters" mu, "gradients" omega, weight decay -1 and no first moment. With a huge
    epsilon and eta = -Q epsilon it leads to mu + Q d. It reads and writes each array once, in one call for all pieces.
    """
    sizes = [len(piece) for piece in at.mean]
    first = at.mean[0].new_zeros(sum(sizes)).split(sizes)  # the kernel's first moments, d itself: nothing to keep
    huge = _HUGE[at.mean[0].dtype]
    torch._fused_adam_(
        at.mean,
        [piece.data.contiguous() for piece in at.weight],  # `data`: it is declared as written to, and is not
        first,
        at.second,
        [],
        [first[0].new_ones(())] * len(sizes),
        lr=-at.q.mean * huge,
        beta1=0.0,
        beta2=1 - q_second,
        weight_decay=-1.0,
        eps=huge,
        amsgrad=False,
        maximize=False,
    )


def _scaled(tensors: Tensors, rates: tuple[Rate, ...]) -> Tensors:
    return torch._foreach_mul(tensors, rates)  # type: ignore[arg-type]  # all numbers or all tensors


def _add_product(second: Tensors, a: Tensors, b: Tensors, c: float) -> None:
    torch._foreach_addcmul_(second, a, b, value=c)


def _add_outer(second: Tensors, a: Tensors, b: Tensors, c: float) -> None:
    for matrix, x, y in zip(second, a, b, strict=True):
        matrix.addr_(x, y, alpha=c)
