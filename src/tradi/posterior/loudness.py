"""How far may members of a regression be drawn before they are conditioned? A search on validation data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tradi.ensemble.batches import Pair
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior.conditioning import Regression
from tradi.prediction.likelihood import Likelihood

COARSE = 4.0  # factor between scales
FIRST = (0.0, 2.0, 0.5, 8.0)
SMALLEST, LARGEST = 2.0**-5, 2.0**11
PRIOR_ROWS = 20  # rows that speak for the noise as training left it, beside the validation rows
CERTAINTY = 0.5  # standard errors by which a louder scale must be better


@dataclass(frozen=True, eq=False)
class Judged:
    """What validation data says of one way to condition at one scale.

    Args:
        conditioning: with the noise factor that was found.
        scale: of the draws.
        losses: of the validation samples, in nats.
    """

    conditioning: Regression
    scale: float
    losses: Tensor

    @property
    def nll(self) -> float:
        mean = self.losses.nanmean().item()
        return mean if math.isfinite(mean) else math.inf


def judged(
    conditioning: Regression, scale: float, likelihood: Likelihood, ensemble: Ensemble, validation: list[Pair]
) -> Judged:
    r"""Losses on validation data, after one factor on the noise variances has been estimated on it.

    $$ c = \frac{\sum_i z_i^2 + 20}{n + 20}, \quad z_i = (y_i - \bar\mu_i) / \bar\sigma_i $$

    Args:
        conditioning: that members were drawn by.
        scale: at which they were.
        likelihood: with the noise that the training rows left.
        ensemble: of them.
        validation: (inputs, target) pairs.
    """
    outputs = ensemble.outputs(validation)
    prediction = likelihood.predict(outputs)
    y = torch.cat([target.reshape(-1) for _, target in validation]).to(prediction.mean).reshape(prediction.mean.shape)
    z = (y - prediction.mean) * prediction.variance.rsqrt()
    factor = (z.square().sum().item() + PRIOR_ROWS) / (z.numel() + PRIOR_ROWS)
    losses = -likelihood.tempered(factor).predict(outputs).log_prob(y)
    assert conditioning.noise is not None
    return Judged(conditioning.with_noise(factor * conditioning.noise), scale, losses.reshape(len(losses), -1).mean(1))


def quietest_good(judged: Sequence[Judged]) -> Judged:
    r"""The lowest validation NLL, with a handicap for noise: louder draws must be better by more than luck.

    $$ \min_s \; \bar l_s + c\, s_d / \sqrt n, \quad d_i = l_{s,i} - l_{0,i} $$

    with $l_0$ the losses of the quietest. A single sample cannot speak for any noise.
    """
    quiet = min(judged, key=lambda one: (one.scale, one.nll))

    def price(one: Judged) -> float:
        if one.nll == math.inf or one is quiet:
            return one.nll
        excess = one.losses - quiet.losses
        excess = excess[~excess.isnan()]
        if len(excess) < 2:
            return math.inf
        return one.nll + CERTAINTY * excess.std().item() / math.sqrt(len(excess))

    return min(judged, key=price)


def search_loudness(
    judge: Callable[[Regression, float], Judged], conditionings: Sequence[Regression], passes: Callable[[], bool]
) -> tuple[Judged, list[Judged]]:
    """Judge scales for every way to condition, in steps towards the lowest NLL; the best, and all that were tried.

    Args:
        judge: at a scale.
        conditionings: ways to condition.
        passes: whether the budget allows another.
    """
    everything: list[Judged] = []
    for conditioning in conditionings:
        tried: dict[float, Judged] = {}
        for scale in FIRST:
            if not tried or passes():
                tried[scale] = judge(conditioning, scale)
        while passes():
            best = min(tried, key=lambda scale: tried[scale].nll)
            if best == max(tried) and best < LARGEST:
                further = best * COARSE
            elif 0 < best == min(scale for scale in tried if scale) and best > SMALLEST:
                further = best / COARSE
            else:
                break
            tried[further] = judge(conditioning, further)
        everything += tried.values()
    return quietest_good(everything), everything
