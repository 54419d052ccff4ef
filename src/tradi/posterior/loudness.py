"""How far should members of a regression be drawn before they are conditioned? An average over answers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.batches import Pair
from tradi.ensemble.copying import sharing
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior.conditioning import Conditioning, Draw, Fitted, Regression
from tradi.posterior.distribution import State, WeightDistribution
from tradi.posterior.randomness import Stream, key
from tradi.posterior.recalibration import noise_factor
from tradi.posterior.scale_search import Cost, ScaleSearch
from tradi.prediction.likelihood import Likelihood

SCALES = (2.0, 8.0, 32.0, 128.0)  # in tracked deviations; the paper's start, W(0), is some hundred of them
SEARCHED = 8000  # training rows that members are conditioned on while scales are compared; all of them afterwards
TRUST = 0.5  # of what validation rows say: few members judge a scale, and their noise is in it
QUIET_ROWS = 2  # rows that the evidence of all training rows counts for: it prefers quiet draws
WIDER = 3.0  # nats by which validation data must prefer the last layer over all weights
NEGLIGIBLE = 12.0  # nats behind the best at which a scale is left out


@dataclass(frozen=True, eq=False)
class Judged:
    """What validation data says of one way to condition at one scale.

    Args:
        conditioning: with the prior precision and the noise factor that were found.
        scale: of the draws.
        losses: of the validation samples, in nats.
        support: log-likelihood of the scale: of all validation samples, and of the training rows as if they were few.
    """

    conditioning: Regression
    scale: float
    losses: Tensor
    support: float

    @property
    def nll(self) -> float:
        """Mean validation NLL, infinite where it is not a number."""
        mean = self.losses.mean().item()
        return mean if math.isfinite(mean) else math.inf


@dataclass(frozen=True, eq=False)
class Component:
    """A share of the members: their scale and how they are conditioned."""

    share: float
    scale: float
    conditioning: Regression


def judged(
    fitted: Sequence[Fitted], conditioning: Regression, scale: float, ensemble: Ensemble, validation: list[Pair]
) -> Judged:
    """Losses on validation data, after one factor on the noise variances has been estimated on it.

    Args:
        fitted: the members.
        conditioning: that they are drawn by, with the noise that the training rows left.
        scale: at which they were drawn.
        ensemble: of them.
        validation: (inputs, target) pairs.
    """
    evidence = sum(one.log_evidence for one in fitted) / len(fitted)
    if not validation:
        return Judged(conditioning, scale, torch.zeros(0), evidence)
    assert conditioning.noise is not None
    likelihood = conditioning.likelihood.tempered(conditioning.noise)
    outputs = likelihood.output(ensemble.outputs(validation))
    prediction: Any = likelihood.predict(outputs)
    factor = noise_factor(prediction, validation)
    if not math.isfinite(factor):
        return Judged(conditioning, scale, torch.full((1,), math.inf), -math.inf)
    prediction = likelihood.tempered(factor).predict(outputs)
    y = torch.cat([target.reshape(-1) for _, target in validation]).to(prediction.mean).reshape(prediction.mean.shape)
    losses = -prediction.log_prob(y).double().reshape(len(y), -1).sum(1)
    support = QUIET_ROWS * evidence / conditioning.rows - TRUST * losses.sum().item()
    found = conditioning.with_noise(factor * conditioning.noise)
    return Judged(found, scale, losses, support if math.isfinite(support) else -math.inf)


def search(
    judge: Callable[[Regression, float], Judged],
    ways: Sequence[Regression],
    more: Callable[[int], bool],
    scales: Sequence[float] = SCALES,
) -> list[Judged]:
    """Judge the scales for every way to condition, from quiet to loud, until louder ones are out of the question.

    Args:
        judge: at a scale.
        ways: to condition, all weights first.
        more: whether the budget allows so many more; one scale of every way comes first.
        scales: to judge.
    """
    everything: list[Judged] = []
    for left, way in zip(reversed(range(len(ways))), ways, strict=True):
        tried: list[Judged] = []
        for scale in scales:
            lost = tried and tried[-1].support < max(one.support for one in tried) - NEGLIGIBLE
            spent = (everything or tried) and not more(1 + left if tried else 1)
            if lost or spent:
                break
            tried.append(judge(way, scale))
        everything += tried
    return everything


def averaged(everything: Sequence[Judged]) -> tuple[Component, ...]:
    r"""Shares of the members for every scale: its posterior probability, given the validation data.

    $$ w_s \propto \exp\Big(\tfrac12 \sum_i \log p_s(y_i) + \tfrac2n \log Z_s\Big) $$

    Few validation rows spread the members over many scales, many settle it. One way to condition is taken for all of
    them: all weights, unless validation data clearly prefers the last layer alone.

    Raises:
        ValueError: if no scale has a finite likelihood.
    """
    support = {type(one.conditioning): -math.inf for one in everything}
    for one in everything:
        kind = type(one.conditioning)
        support[kind] = torch.tensor([support[kind], one.support]).double().logsumexp(0).item()
    if max(support.values()) == -math.inf:
        raise ValueError(
            "validation NLL is not finite at any scale: look for NaN in the validation inputs and targets, and in what "
            "the network makes of them"
        )
    first = type(everything[0].conditioning)
    best = max(support, key=lambda kind: support[kind] + (WIDER if kind is first else 0))
    own = [one for one in everything if type(one.conditioning) is best]
    shares = torch.tensor([one.support for one in own], dtype=torch.float64).softmax(0).tolist()
    kept = [(share, one) for share, one in zip(shares, own, strict=True) if share > math.exp(-NEGLIGIBLE)]
    total = sum(share for share, _ in kept)
    return tuple(Component(share / total, one.scale, one.conditioning) for share, one in kept)


class Averaged(Conditioning):
    """Members of a regression, shared out over scales.

    Args:
        components: the shares; members of one architecture.
        ways: to condition on the training rows alone, all weights first: what a search begins with.
    """

    refreshes = True

    def __init__(self, components: tuple[Component, ...], ways: tuple[Regression, ...]) -> None:
        self.components, self.ways = components, ways

    def __str__(self) -> str:
        way = self.components[0].conditioning
        return f"{way.what} conditioned on {way.rows:,.0f} training rows"

    def weights(self, draw: Draw, scale: float, seed: int, member: int) -> State:
        del scale
        own = self.component(seed, member)
        return own.conditioning.placed(own.conditioning.fitted(draw(own.scale)), seed, member)

    def component(self, seed: int, member: int) -> Component:
        """The share that a member belongs to: any number of members has about its part of each."""
        start = Stream(seed, 0, "scale").uniform(0, 1).item()
        place = (start + member * (math.sqrt(5) - 1) / 2) % 1 * sum(one.share for one in self.components)
        for one in self.components:
            if place < one.share:
                return one
            place -= one.share
        return self.components[-1]

    def rescaled(self, scale: float) -> Averaged:
        heaviest = max(self.components, key=lambda one: one.share)
        return Averaged((Component(1.0, scale, heaviest.conditioning),), self.ways)

    def module(self, model: nn.Module) -> nn.Module:
        return self.components[0].conditioning.module(model)

    @property
    def network_likelihood(self) -> Likelihood:
        return self.ways[0].likelihood


def choose(
    weights: WeightDistribution,
    model: nn.Module,
    ways: Sequence[Regression],
    validation: list[Pair],
    members: int,
    cost: Cost,
    seed: int,
) -> tuple[Averaged, ScaleSearch]:
    """Average over scales by what validation data says of them; its rows then join the training rows.

    Args:
        weights: to draw from.
        model: the trained network.
        ways: to condition.
        validation: (inputs, target) pairs; where there are none, the evidence of the training rows decides.
        members: networks that a scale is judged by.
        cost: counts passes, and bounds them.
        seed: of the search's own random stream.
    """
    stream = key("scale search", operator.index(seed))
    noise = [weights.noise(i, stream) for i in range(members)]

    def judge(way: Regression, scale: float) -> Judged:
        cost.passes += members
        drawn = [weights.at(one, scale) for one in noise]
        way = way.with_precision_at(drawn[0])
        fitted = [way.fitted(one) for one in drawn]
        way = way.with_noise(sum(one.noise for one in fitted) / members)
        ensemble = Ensemble(way.module(sharing(model)), lambda i: way.placed(fitted[i], stream, i), members)
        return judged(fitted, way, scale, ensemble, validation)

    few = [way.thinned(SEARCHED) for way in ways]
    tried = search(judge, few, lambda scales: cost.allows(scales * members), SCALES if weights.layers else (0.0,))
    shares = averaged(tried)
    best = max(shares, key=lambda one: one.share)
    nll = {one.scale: one.nll for one in tried if type(one.conditioning) is type(best.conditioning)}
    found = ScaleSearch(best.scale, nll, 0.0, members, cost.passes, cost.seconds)
    (whole,) = (way for way in ways if type(way) is type(best.conditioning))
    every = whole.joined_by(validation)

    def joined(one: Component) -> Component:
        return replace(one, conditioning=every.with_prior(one.conditioning.noise, one.conditioning.precisions))

    return Averaged(tuple(map(joined, shares)), tuple(ways)), found
