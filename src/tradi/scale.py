"""How loud should the noise be? A search on validation data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tradi.batches import check_reiterable
from tradi.batchnorm import running_layers
from tradi.progress import track

if TYPE_CHECKING:
    from tradi.posterior import Posterior

LogLikelihood = Callable[[Any, Tensor], Tensor]

COARSE = 4.0  # factor between the scales tried first
FINE = 3  # halvings, in the logarithm, of the interval in which the answer lies
LARGEST, SMALLEST = 4.0**6, 4.0**-3


@dataclass(frozen=True)
class ScaleChoice:
    """What a search for the noise scale found, and what it cost.

    Args:
        scale: the chosen one.
        nll: mean validation NLL of every scale tried; 0 is the mean network alone.
        tolerance: accepted excess over the best NLL, in nats a sample.
        members: networks that each scale was judged by.
        passes: passes over the validation data (each with one over the refresh data, where there is any).
        seconds: wall-clock time of the search.
    """

    scale: float
    nll: dict[float, float]
    tolerance: float
    members: int
    passes: int
    seconds: float

    def __str__(self) -> str:
        best = min(self.nll, key=lambda scale: self.nll[scale])
        return (
            f"scale {self.scale:g} with validation NLL {self.nll[self.scale]:.4f} "
            f"(best {self.nll[best]:.4f} at {best:g}, mean network {self.nll[0.0]:.4f}; "
            f"tolerance {self.tolerance:g} nats, {self.members} members, "
            f"{self.passes} passes in {self.seconds:.1f} s)"
        )


def log_likelihood(output: Any, target: Tensor) -> Tensor:
    """Log-likelihood of targets under one network's output: class logits, or a (mean, variance) pair.

    Class axis is 1; negative classes, such as the usual -100 of void pixels, give NaN, which is left out.
    """
    if not target.is_floating_point() and isinstance(output, Tensor):
        logits = output.float().log_softmax(1).nan_to_num(nan=-math.inf)
        found = logits.gather(1, target.long().clamp_min(0).unsqueeze(1)).squeeze(1)
        return found.masked_fill(target < 0, math.nan)
    if target.is_floating_point() and isinstance(output, tuple | list) and len(output) == 2:
        mean, variance = output
        if mean.shape != target.shape or variance.shape != target.shape:
            raise ValueError(
                f"mean {tuple(mean.shape)}, variance {tuple(variance.shape)} and target {tuple(target.shape)} "
                "must have one shape"
            )
        z = (target - mean) * variance.rsqrt()
        return (-0.5 * (z.square() + variance.log() + math.log(2 * math.pi))).nan_to_num(nan=-math.inf)
    raise TypeError(
        f"no likelihood is known for an output of type {type(output).__name__} and targets of {target.dtype}: "
        "pass log_prob=, a function of (one member's output, target) giving log-likelihoods"
    )


def choose_scale(
    posterior: Posterior,
    validation: Iterable[Any],
    refresh: Iterable[Any] | None,
    members: int,
    tolerance: float,
    seed: int,
    log_prob: LogLikelihood,
) -> ScaleChoice:
    """See `Posterior.choose_scale`."""
    if members < 1:
        raise ValueError(f"members must be at least 1, got {members}")
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
    if not posterior.mean:
        raise ValueError("this posterior has no noise to scale: nothing was tracked")
    check_reiterable(validation, "validation")
    if refresh is None and running_layers(posterior.model):
        raise ValueError("the network has BatchNorm: pass refresh=, training data to recompute its statistics on")
    started = time.perf_counter()
    passes = 0

    def evaluate(scale: float) -> float:
        nonlocal passes
        size = members if scale else 1
        passes += size
        ensemble = posterior.rescaled(scale).sample(size, seed)
        if refresh is not None:
            ensemble.refresh(refresh)
        # log mean_j p_j(y) needs a running sum over members only: nothing of their outputs is kept.
        total = torch.tensor(-math.inf)
        for i in range(size):
            pairs = ensemble.outputs(i, validation, "validation")
            total = torch.logaddexp(total, torch.cat([_per_value(log_prob, *pair) for pair in pairs]))
        nll = math.log(size) - total.reshape(len(total), -1).nanmean(1).mean().item()
        return nll if math.isfinite(nll) else math.inf

    nll = search(evaluate, tolerance)
    if min(nll.values()) == math.inf:
        raise ValueError("validation NLL is not finite at any scale: the mean network does not fit this data")
    return ScaleChoice(largest_accepted(nll, tolerance), nll, tolerance, members, passes, time.perf_counter() - started)


def search(evaluate: Callable[[float], float], tolerance: float) -> dict[float, float]:
    """Losses of the scales that pin down the largest accepted one: coarse steps to bracket it, then halvings.

    Args:
        evaluate: loss at a scale.
        tolerance: as in `largest_accepted`.
    """
    losses = {0.0: evaluate(0.0), 1.0: evaluate(1.0)}
    high = low = 1.0
    while largest_accepted(losses, tolerance) == high < LARGEST:
        high *= COARSE
        losses[high] = evaluate(high)
    while low > SMALLEST and (largest_accepted(losses, tolerance) == 0 or _best(losses) == low):
        low /= COARSE
        losses[low] = evaluate(low)
    for _ in track(range(FINE), "choosing the scale", FINE):
        best, answer = _best(losses), largest_accepted(losses, tolerance)
        # The answer lies between what is accepted and the next scale up; the best, on which it depends, to either side.
        middles = [_middle(losses, answer, 1), _middle(losses, best, 1), _middle(losses, best, -1)]
        for middle in {m for m in middles if m is not None}:
            losses[middle] = evaluate(middle)
    return losses


def largest_accepted(losses: dict[float, float], tolerance: float) -> float:
    """The largest scale whose loss exceeds the best one by at most `tolerance`."""
    limit = min(losses.values()) + tolerance
    return max(scale for scale, loss in losses.items() if loss <= limit)


def _best(losses: dict[float, float]) -> float:
    return min(losses, key=lambda scale: losses[scale])


def _middle(losses: dict[float, float], scale: float, direction: int) -> float | None:
    """Geometric middle of a scale and its neighbour among those tried, if neither is 0 nor missing."""
    tried = sorted(losses)
    other = tried.index(scale) + direction
    return math.sqrt(scale * tried[other]) if scale > 0 and 0 < other < len(tried) else None


def _per_value(log_prob: LogLikelihood, output: Any, target: Any) -> Tensor:
    if target is None:
        raise ValueError("validation must give (inputs, target) batches, got inputs alone")
    return log_prob(output, target)
