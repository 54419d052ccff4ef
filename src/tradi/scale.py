"""How loud should the noise be? A search on validation data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tradi.batches import SameOrder, check_reiterable
from tradi.batchnorm import running_layers
from tradi.ensemble import KEEP_BYTES, Ensemble, State
from tradi.prediction import gaussian_log_prob
from tradi.progress import track
from tradi.weights import copied

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
    def unpacked(packed: dict[str, Any]) -> ScaleChoice:
        """The choice that `packed` was made of."""
        nll = {scale: math.inf if loss is None else loss for scale, loss in packed["nll"]}
        return ScaleChoice(**packed | {"nll": nll})

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
    if not isinstance(target, Tensor):
        raise TypeError(f"targets must be tensors, got {type(target).__name__}: pass log_prob=, or another loader")
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    if not target.is_floating_point() and isinstance(output, Tensor):
        return _of_classes(output, target)
    if target.is_floating_point() and isinstance(output, tuple | list) and len(output) == 2:
        mean, variance = output
        if mean.shape != target.shape or variance.shape != target.shape:
            raise ValueError(
                f"mean {tuple(mean.shape)}, variance {tuple(variance.shape)} and target {tuple(target.shape)} "
                "must have one shape"
            )
        return gaussian_log_prob(target, mean, variance).nan_to_num(nan=-math.inf)
    raise TypeError(
        f"no likelihood is known for an output of type {type(output).__name__} and targets of {target.dtype}: "
        "pass log_prob=, a function of (one member's output, target) giving log-likelihoods"
    )


def _of_classes(logits: Tensor, labels: Tensor) -> Tensor:
    expected = (*logits.shape[:1], *logits.shape[2:])
    if labels.shape != expected:
        raise ValueError(
            f"class targets must have shape {expected} for logits {tuple(logits.shape)}, got {tuple(labels.shape)}"
        )
    if (labels >= logits.shape[1]).any():
        raise ValueError(
            f"class targets must be below {logits.shape[1]}, got {labels.max().item()}: void ones are negative"
        )
    log_probs = logits.float().log_softmax(1).nan_to_num(nan=-math.inf)
    found = log_probs.gather(1, labels.long().clamp_min(0).unsqueeze(1)).squeeze(1)
    return found.masked_fill(labels < 0, math.nan)


def check_search(
    posterior: Posterior, validation: Iterable[Any], refresh: Iterable[Any] | None, members: int, tolerance: float
) -> None:
    """Raise for what no search can work with."""
    if members < 1:
        raise ValueError(f"members must be at least 1, got {members}")
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
    if not posterior.mean:
        raise ValueError("this posterior has no noise to scale: nothing was tracked")
    check_reiterable(validation, "validation")
    if refresh is not None:
        check_reiterable(refresh, "refresh")
    if refresh is None and running_layers(posterior.model):
        raise ValueError("the network has BatchNorm: pass refresh=, training data to recompute its statistics on")


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
    started = time.perf_counter()
    judge = _Judge(posterior, validation, refresh, members, seed, log_prob)
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
    return ScaleChoice(scale, nll, tolerance, members, judge.passes, time.perf_counter() - started)


@dataclass
class _Judge:
    """Validation NLL of every sample: called with a scale, and counting the passes over the data."""

    posterior: Posterior
    validation: Iterable[Any]
    refresh: Iterable[Any] | None
    members: int
    seed: int
    log_prob: LogLikelihood
    passes: int = 0

    def __post_init__(self) -> None:
        self._order = SameOrder("validation")
        self._model = copied(self.posterior.model)
        self._noise: dict[int, State] = {}
        self._keep = self.members * sum(mean.nbytes for mean in self.posterior.mean.values()) <= KEEP_BYTES

    def __call__(self, scale: float) -> Tensor:
        size = self.members if scale else 1
        self.passes += size
        posterior = self.posterior.rescaled(scale)
        ensemble = Ensemble(self._model, lambda i: posterior.at(self._drawn(i)), size, moved=True)
        if self.refresh is not None:
            ensemble.refresh(self.refresh, "refresh")
        # log mean_j p_j(y) needs one sum over members for every target, not their outputs.
        totals: dict[int, Tensor] = {}
        samples = []
        for i, batch, output, target in track(ensemble.walk(self.validation, self._order), f"judging scale {scale:g}"):
            value = per_value(self.log_prob, output, target)
            totals[batch] = torch.logaddexp(totals[batch], value) if i else value
            if i == size - 1:  # of many pixels no more is kept than of the batches that members take turns over
                total = totals.pop(batch)
                samples.append(total.reshape(len(total), -1).nanmean(1))
        return math.log(size) - torch.cat(samples).double().cpu()

    def _drawn(self, member: int) -> State:
        """The noise of a member, which is the same at all scales and is drawn once where all of it fits in memory."""
        noise = self._noise.get(member) or self.posterior.noise(member, self.seed)
        if self._keep:
            self._noise[member] = noise
        return noise


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


def per_value(log_prob: LogLikelihood, output: Any, target: Any) -> Tensor:
    """Log-likelihoods of a batch, one or more a sample."""
    if target is None:
        raise ValueError("validation must give (inputs, target) batches, got inputs alone")
    values = log_prob(output, target)
    if values.ndim == 0:
        raise ValueError("log_prob must give a value for every sample, got a single number")
    return values
