"""How loud should the noise be? A search on validation data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tradi.ensemble.batches import Pair
from tradi.ensemble.ensemble import Ensemble
from tradi.prediction.likelihood import Likelihood, per_value
from tradi.storage.typed import built

COARSE = 4.0  # factor between the scales tried first
FINE = 2  # halvings, in the logarithm, of the interval in which the answer lies
FEW = 20  # samples below which noise must be shown to help
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
        head: factor on the noise of a conditioned head, where there is one.
        temperature: that outputs are divided by, where it was asked for.
        samples: of validation data; 0 where the training data had to decide.
    """

    scale: float
    nll: dict[float, float]
    tolerance: float
    members: int
    passes: int
    seconds: float
    head: float | None = None
    temperature: float | None = None
    samples: int = 0

    @property
    def where(self) -> str:
        """What the scale was chosen on."""
        return f"chosen on {self.samples:,} validation samples" if self.samples else "chosen on the training data alone"

    def packed(self) -> dict[str, Any]:
        """As JSON, whose keys are text."""
        return asdict(self) | {
            "nll": [[scale, loss if math.isfinite(loss) else None] for scale, loss in self.nll.items()]
        }

    @staticmethod
    def unpacked(packed: dict[str, Any]) -> ScaleSearch:
        """The search that `packed` was made of.

        Raises:
            ValueError: if it is not one.
        """
        where = "scale_search"
        packed = built(dict[str, Any], packed, where)
        pairs = built(list[tuple[float, float | None]], packed.get("nll"), f"{where}.nll")
        nll = {float(scale): math.inf if loss is None else loss for scale, loss in pairs}
        search: ScaleSearch = built(ScaleSearch, packed | {"nll": {}}, where)
        return replace(search, nll=nll)

    def __str__(self) -> str:
        tried = {scale: loss for scale, loss in self.nll.items() if math.isfinite(loss)}
        parts = []
        if tried:
            best = min(tried, key=tried.__getitem__)
            parts.append(f"best {tried[best]:.4f} at {best:g}")
        if 0.0 in tried:
            parts.append(f"no noise {tried[0.0]:.4f}")
        if self.head is not None:
            parts.append(f"noise of the head times {self.head:g}")
        if self.temperature is not None:
            parts.append(f"temperature {self.temperature:.3g}")
        parts.append(f"{self.members} members, {self.passes} passes in {self.seconds:.1f} s")
        nll = f" with validation NLL {tried[self.scale]:.4f}" if self.scale in tried else ""
        return f"scale {self.scale:g}{nll} ({'; '.join(parts)})"


class Cost:
    """Counts what a search takes, and says when its budget is used up.

    Args:
        limit: passes over the validation data, at the most; None for as many as it takes.

    Raises:
        ValueError: if the limit is below 1.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"passes must be at least 1, got {limit}")
        self.passes = 0
        self._limit, self._started = limit, time.perf_counter()

    def allows(self, passes: int) -> bool:
        """Whether so many more passes are within the budget."""
        return self._limit is None or self.passes + passes <= self._limit

    @property
    def seconds(self) -> float:
        """Wall-clock time since it began."""
        return time.perf_counter() - self._started


def choose(
    judge: Callable[[float], Tensor], tolerance: float, members: int, cost: Cost, limit: float = math.inf
) -> ScaleSearch:
    """Search the scales and choose the largest that is accepted.

    Args:
        judge: validation NLL of every sample at a scale.
        tolerance: as in `largest_accepted`.
        members: networks that each scale is judged by, for the record.
        cost: that the judge counts on.
        limit: as in `largest_accepted`.

    Raises:
        ValueError: if no scale has a finite NLL.
    """
    losses = search(judge, tolerance, lambda: cost.allows(members), limit)
    nll = {scale: mean_loss(loss) for scale, loss in losses.items()}
    if min(nll.values()) == math.inf:
        raise ValueError(
            "validation NLL is not finite at any scale: look for NaN in the validation inputs and targets, and in what "
            "the network makes of them"
        )
    scale = largest_accepted(losses, tolerance, limit)
    if scale == LARGEST:
        warnings.warn(
            f"no noise up to {scale:g} times what was tracked does harm: was hardly any weight tracked?", stacklevel=7
        )
    if scale == 0 < tolerance:
        warnings.warn(
            "scale 0: no noise is shown to cost less than the tolerance on this validation data; more samples may "
            "allow some, or a larger tolerance, by choose_scale(..., tolerance=)",
            stacklevel=7,
        )
    return ScaleSearch(scale, nll, tolerance, members, cost.passes, cost.seconds)


def sample_losses(ensemble: Ensemble, likelihood: Likelihood, validation: list[Pair]) -> Tensor:
    """NLL of every validation sample under an ensemble; NaN where none of its targets counts."""
    size = len(ensemble)
    # log mean_j p_j(y) needs one sum over members for every target, not their outputs.
    totals: dict[int, Tensor] = {}
    samples = []
    for i, batch, output, target in ensemble.iterate(validation):
        value = per_value(likelihood, output, target)
        totals[batch] = torch.logaddexp(totals[batch], value) if i else value
        if i == size - 1:  # of many pixels no more is kept than of the batches that members take turns over
            total = totals.pop(batch)
            samples.append(total.reshape(len(total), -1).nanmean(1))
    return math.log(size) - torch.cat(samples).double().cpu()


def search(
    evaluate: Callable[[float], Tensor],
    tolerance: float,
    more: Callable[[], bool] = lambda: True,
    limit: float = math.inf,
) -> dict[float, Tensor]:
    """Losses of the scales that pin down the largest accepted one: coarse steps to bracket it, then halvings.

    Args:
        evaluate: losses of the samples at a scale.
        tolerance: as in `largest_accepted`.
        more: whether the budget allows another scale.
        limit: as in `largest_accepted`.
    """
    losses = {0.0: evaluate(0.0), 1.0: evaluate(1.0)}
    high = low = 1.0
    while largest_accepted(losses, tolerance, limit) == high < LARGEST and more():
        high *= COARSE
        losses[high] = evaluate(high)
    while low > SMALLEST and largest_accepted(losses, tolerance, limit) == 0 and more():
        low /= COARSE
        losses[low] = evaluate(low)
    for _ in range(FINE):
        tried, answer = sorted(losses), largest_accepted(losses, tolerance, limit)
        louder = [scale for scale in tried if scale > answer]
        if answer and louder and more():  # the answer lies between what is accepted and the next scale up
            middle = math.sqrt(answer * louder[0])
            losses[middle] = evaluate(middle)
    return losses


def largest_accepted(losses: dict[float, Tensor], tolerance: float, limit: float = math.inf) -> float:
    r"""The largest scale that is shown to cost at most `tolerance` more than every smaller one.

    $$ \bar d + e + \tfrac{20}{n} (e + \text{tolerance}) \le \text{tolerance}, \quad
       d_i = l_i - l_i^{\text{smaller}}, \quad e = s_d / \sqrt n $$

    Few samples cannot show that noise is harmless: then the answer stays near 0, however low the NLL of a scale may
    happen to be on them. Below 20 of them, noise has to be shown to help.

    Args:
        losses: of the samples, by scale.
        tolerance: in nats.
        limit: of the mean NLL's excess over that of scale 0.
    """
    scales = sorted(losses)

    def harmless(scale: float) -> bool:
        beside = all(
            _price(losses[scale], losses[smaller], tolerance) <= tolerance for smaller in scales if smaller < scale
        )
        return beside and (scale == 0 or mean_loss(losses[scale]) <= mean_loss(losses[0.0]) + limit)

    return max(filter(harmless, scales))


def _price(loss: Tensor, other: Tensor, tolerance: float) -> float:
    """What one loss costs more than another, with its standard error, over the samples that have a target."""
    if mean_loss(loss) == math.inf:
        return math.inf
    excess = (loss - other)[~loss.isnan()]
    mean, size = excess.mean().item(), len(excess)
    if mean == -math.inf:
        return mean
    if size == 1:
        return math.inf
    error = excess.std().item() / math.sqrt(size)
    return mean + error + FEW / size * (error + tolerance)


def mean_loss(losses: Tensor) -> float:
    """Over the samples that have a target; infinite where it is not a number."""
    mean = losses.nanmean().item()
    return mean if math.isfinite(mean) else math.inf
