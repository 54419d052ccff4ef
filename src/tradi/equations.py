"""What a filter believes of weights: the default equations, the paper's and the released ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

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
        [piece.contiguous() for piece in at.weight],
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
