"""How loud should the noise be? A search on validation data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tradi.ensemble.batches import SameOrder
from tradi.ensemble.ensemble import Ensemble
from tradi.prediction.likelihoods import Likelihood, per_value
from tradi.progress import track

COARSE = 4.0  # factor between the scales tried first
FINE = 3  # halvings, in the logarithm, of the interval in which the answer lies
LARGEST, SMALLEST = 4.0**6, 4.0**-3


@dataclass(frozen=True)
class ScaleSearch:
    """What a search for the noise scale found, and what it cost.

    Args:
        scale: the chosen one.
        nll: mean validation NLL of every scale tried; 0 is the mean network alone.
        tolerance: excess over the NLL of smaller scales, in nats a sample, that validation data had to rule out.
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

    def packed(self) -> dict[str, Any]:
        """As JSON, whose keys are text."""
        return asdict(self) | {
            "nll": [[scale, loss if math.isfinite(loss) else None] for scale, loss in self.nll.items()]
        }

    @staticmethod
    def unpacked(packed: dict[str, Any]) -> ScaleSearch:
        """The search that `packed` was made of."""
        nll = {scale: math.inf if loss is None else loss for scale, loss in packed["nll"]}
        return ScaleSearch(**packed | {"nll": nll})

    def __str__(self) -> str:
        best = min(self.nll, key=lambda scale: self.nll[scale])
        return (
            f"scale {self.scale:g} with validation NLL {self.nll[self.scale]:.4f} "
            f"(best {self.nll[best]:.4f} at {best:g}, mean network {self.nll[0.0]:.4f}; "
            f"tolerance {self.tolerance:g} nats, {self.members} members, "
            f"{self.passes} passes in {self.seconds:.1f} s)"
        )


class Judge:
    """Validation NLL of every sample at a scale; it counts the passes over the data.

    Args:
        ensemble_at: the ensemble of so many members at a scale, ready to predict.
        likelihood: what scales are judged by.
        validation: (inputs, target) batches.
        members: networks that a scale is judged by.
    """

    def __init__(
        self,
        ensemble_at: Callable[[float, int], Ensemble],
        likelihood: Likelihood,
        validation: Iterable[Any],
        members: int,
    ) -> None:
        self.passes = 0
        self._ensemble_at = ensemble_at
        self._likelihood = likelihood
        self._validation = validation
        self._members = members
        self._order = SameOrder("validation")

    def __call__(self, scale: float) -> Tensor:
        size = self._members if scale else 1
        self.passes += size
        # log mean_j p_j(y) needs one sum over members for every target, not their outputs.
        totals: dict[int, Tensor] = {}
        samples = []
        outputs = self._ensemble_at(scale, size).iterate(self._validation, self._order)
        for i, batch, output, target in track(outputs, f"judging scale {scale:g}"):
            value = per_value(self._likelihood, output, target)
            totals[batch] = torch.logaddexp(totals[batch], value) if i else value
            if i == size - 1:  # of many pixels no more is kept than of the batches that members take turns over
                total = totals.pop(batch)
                samples.append(total.reshape(len(total), -1).nanmean(1))
        return math.log(size) - torch.cat(samples).double().cpu()


def find_scale(judge: Judge, tolerance: float, members: int) -> ScaleSearch:
    """Search the scales and choose one.

    Raises:
        ValueError: if no scale has a finite NLL.
    """
    started = time.perf_counter()
    losses = search(judge, tolerance)
    nll = {scale: _mean(loss) for scale, loss in losses.items()}
    if min(nll.values()) == math.inf:
        raise ValueError(
            "validation NLL is not finite at any scale: look for NaN in the validation inputs and targets, and in what "
            "the network makes of them"
        )
    scale = largest_accepted(losses, tolerance)
    if scale == LARGEST:
        warnings.warn(f"no noise up to {scale:g} times the tracked hurts: was hardly anything tracked?", stacklevel=3)
    if scale == 0 < tolerance:
        warnings.warn(
            "scale 0, members all alike: no noise is shown to cost less than the tolerance on this validation data; "
            "more samples or a larger tolerance= may allow some",
            stacklevel=3,
        )
    return ScaleSearch(scale, nll, tolerance, members, judge.passes, time.perf_counter() - started)


def search(evaluate: Callable[[float], Tensor], tolerance: float) -> dict[float, Tensor]:
    """Losses of the scales that pin down the largest accepted one: coarse steps to bracket it, then halvings.

    Args:
        evaluate: losses of the samples at a scale.
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
    for _ in range(FINE):
        best, answer = _best(losses), largest_accepted(losses, tolerance)
        # The answer lies between what is accepted and the next scale up; the best, on which it depends, to either side.
        middles = [_middle(losses, answer, 1), _middle(losses, best, 1), _middle(losses, best, -1)]
        for middle in {m for m in middles if m is not None}:
            losses[middle] = evaluate(middle)
    return losses


def largest_accepted(losses: dict[float, Tensor], tolerance: float) -> float:
    r"""The largest scale that is shown to cost at most `tolerance` more than every smaller one.

    $$ \bar d + s_d / \sqrt n \le \text{tolerance}, \quad d_i = l_i - l_i^{\text{smaller}} $$

    Few samples cannot show that noise is harmless: then the answer stays near 0, however low the NLL of a scale may
    happen to be on them.
    """
    scales = sorted(losses)

    def harmless(scale: float) -> bool:
        return all(_price(losses[scale], losses[smaller]) <= tolerance for smaller in scales if smaller < scale)

    return max(filter(harmless, scales))


def _price(loss: Tensor, other: Tensor) -> float:
    """What one loss costs more than another, with its standard error, over the samples that have a target."""
    if _mean(loss) == math.inf:
        return math.inf
    excess = (loss - other)[~loss.isnan()]
    mean = excess.mean().item()
    return mean if mean == -math.inf else mean + excess.std(correction=0).item() / math.sqrt(len(excess))


def _best(losses: dict[float, Tensor]) -> float:
    return min(losses, key=lambda scale: _mean(losses[scale]))


def _mean(losses: Tensor) -> float:
    mean = losses.nanmean().item()
    return mean if math.isfinite(mean) else math.inf


def _middle(losses: dict[float, Tensor], scale: float, direction: int) -> float | None:
    """Geometric middle of a scale and its neighbour among those tried, if neither is 0 nor missing."""
    tried = sorted(losses)
    other = tried.index(scale) + direction
    return math.sqrt(scale * tried[other]) if scale > 0 and 0 < other < len(tried) else None
