"""How far should members of a regression be drawn before they are conditioned? An average over answers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.batches import Pair
from tradi.ensemble.copying import sharing, tensors_in
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior.conditioning import Conditioning, Draw, Fitted, Regression
from tradi.posterior.distribution import State, WeightDistribution
from tradi.posterior.randomness import Stream, key
from tradi.posterior.recalibration import noise_factor
from tradi.posterior.runner import Runner
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
        conditionings: of every run, with the prior precision and the noise factor that were found.
        scale: of the draws.
        losses: of the validation samples, in nats.
        support: log-likelihood of the scale: of all validation samples, and of the training rows as if they were few.
    """

    conditionings: tuple[Regression, ...]
    scale: float
    losses: Tensor
    support: float

    @property
    def way(self) -> type[Regression]:
        """How the runs are conditioned."""
        return type(self.conditionings[0])

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


@dataclass(frozen=True, eq=False)
class NumbersRun:
    """One training run of a network that predicts numbers.

    Args:
        runner: of the trained network.
        weights: to draw from.
        ways: to condition, all weights first.
    """

    runner: Runner
    weights: WeightDistribution
    ways: tuple[Regression, ...]

    def way(self, kind: type[Regression]) -> Regression:
        """The way to condition that is of this kind."""
        return next(way for way in self.ways if type(way) is kind)


def judged(
    fitted: Sequence[Fitted],
    conditionings: tuple[Regression, ...],
    scale: float,
    ensemble: Ensemble,
    validation: list[Pair],
) -> Judged:
    """Losses on validation data, after one factor on the noise variances has been estimated on it.

    Args:
        fitted: the members.
        conditionings: that they are drawn by, one for each run, with the noise that the training rows left.
        scale: at which they were drawn.
        ensemble: of them.
        validation: (inputs, target) pairs.
    """
    evidence = sum(one.log_evidence for one in fitted) / len(fitted)
    if not validation:
        return Judged(conditionings, scale, torch.zeros(0), evidence)
    first = conditionings[0]
    likelihood = first.likelihood.tempered(mean_noise(conditionings))
    outputs = likelihood.output(ensemble.outputs(validation))
    prediction: Any = likelihood.predict(outputs)
    factor = noise_factor(prediction, validation)
    if not math.isfinite(factor):
        return Judged(conditionings, scale, torch.full((1,), math.inf), -math.inf)
    losses = _losses(likelihood.tempered(factor), outputs, validation)
    support = QUIET_ROWS * evidence / first.rows - TRUST * losses.sum().item()
    found = tuple(one.with_noise(factor * (one.noise or 1.0)) for one in conditionings)
    return Judged(found, scale, losses, support if math.isfinite(support) else -math.inf)


def mean_noise(conditionings: Sequence[Regression]) -> float:
    """The noise factor that the members of several runs share in prediction."""
    return sum(one.noise or 1.0 for one in conditionings) / len(conditionings)


def _losses(likelihood: Likelihood, outputs: Any, validation: list[Pair]) -> Tensor:
    """NLL of every validation sample under members with these outputs."""
    prediction: Any = likelihood.predict(outputs)
    y = torch.cat([target.reshape(-1) for _, target in validation]).to(prediction.mean).reshape(prediction.mean.shape)
    losses: Tensor = -prediction.log_prob(y).double().reshape(len(y), -1).sum(1)
    return losses


def search(
    judge: Callable[[type[Regression], float], Judged],
    ways: Sequence[type[Regression]],
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


def averaged(everything: Sequence[Judged]) -> list[tuple[float, Judged]]:
    r"""Shares of the members for every scale: its posterior probability, given the validation data.

    $$ w_s \propto \exp\Big(\tfrac12 \sum_i \log p_s(y_i) + \tfrac2n \log Z_s\Big) $$

    Few validation rows spread the members over many scales, many settle it. One way to condition is taken for all of
    them: all weights, unless validation data clearly prefers the last layer alone.

    Raises:
        ValueError: if no scale has a finite likelihood.
    """
    support = {one.way: -math.inf for one in everything}
    for one in everything:
        support[one.way] = torch.tensor([support[one.way], one.support]).double().logsumexp(0).item()
    if max(support.values()) == -math.inf:
        raise ValueError(
            "validation NLL is not finite at any scale: look for NaN in the validation inputs and targets, and in what "
            "the network makes of them"
        )
    first = everything[0].way
    best = max(support, key=lambda kind: support[kind] + (WIDER if kind is first else 0))
    own = [one for one in everything if one.way is best]
    shares = torch.tensor([one.support for one in own], dtype=torch.float64).softmax(0).tolist()
    kept = [(share, one) for share, one in zip(shares, own, strict=True) if share > math.exp(-NEGLIGIBLE)]
    total = sum(share for share, _ in kept)
    return [(share / total, one) for share, one in kept]


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
    runs: Sequence[NumbersRun], validation: list[Pair], members: int, cost: Cost, seed: int
) -> tuple[list[Averaged], ScaleSearch]:
    """Average over scales by what validation data says of them; its rows then join the training rows.

    Args:
        runs: of one architecture, whose members are judged together: they get the same scales, in the same shares.
        validation: (inputs, target) pairs; where there are none, the evidence of the training rows decides.
        members: networks that a scale is judged by, at the least; every run has as many of them.
        cost: counts passes, and bounds them.
        seed: of the search's own random stream.

    Returns:
        how every run is conditioned, and what was found.
    """
    stream = key("scale search", operator.index(seed))
    kinds = [type(way) for way in runs[0].ways if all(type(way) in map(type, run.ways) for run in runs)]
    each = -(-members // len(runs))
    members = each * len(runs)
    noise = [runs[i % len(runs)].weights.noise(i, stream) for i in range(members)]
    few = {kind: [run.way(kind).thinned(SEARCHED) for run in runs] for kind in kinds}

    def judge(kind: type[Regression], scale: float) -> Judged:
        cost.passes += members
        drawn = [runs[i % len(runs)].weights.at(one, scale) for i, one in enumerate(noise)]
        ways = [way.with_precision_at(one) for way, one in zip(few[kind], drawn, strict=False)]
        fitted = [ways[i % len(runs)].fitted(one) for i, one in enumerate(drawn)]
        ways = [way.with_noise(sum(one.noise for one in fitted[i :: len(runs)]) / each) for i, way in enumerate(ways)]
        others = zip(ways[1:], runs[1:], strict=True)
        trained = [{}, *(tensors_in(way.module(sharing(run.runner.model))) for way, run in others)]

        def member(i: int) -> State:
            number = i % len(runs)
            return trained[number] | ways[number].placed(fitted[i], stream, i)

        ensemble = runs[0].runner.ensemble(member, members, architecture=ways[0].module, trained=trained)
        return judged(fitted, tuple(ways), scale, ensemble, validation)

    scales = SCALES if runs[0].weights.layers else (0.0,)
    tried = search(judge, kinds, lambda scales: cost.allows(scales * members), scales)
    shares = averaged(tried)
    _, best = max(shares, key=lambda pair: pair[0])
    nll = {one.scale: one.nll for one in tried if one.way is best.way}
    found = ScaleSearch(best.scale, nll, 0.0, members, cost.passes, cost.seconds)
    return [_joined(run, number, shares, validation) for number, run in enumerate(runs)], found


def _joined(run: NumbersRun, number: int, shares: list[tuple[float, Judged]], validation: list[Pair]) -> Averaged:
    """How a run is conditioned on the training rows and the validation rows together."""
    every = run.way(shares[0][1].way).joined_by(validation)
    ways = [(share, one.scale, one.conditionings[number]) for share, one in shares]
    components = (Component(share, scale, every.with_prior(way.noise, way.precisions)) for share, scale, way in ways)
    return Averaged(tuple(components), run.ways)
