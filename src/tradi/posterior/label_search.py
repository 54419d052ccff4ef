"""How loud should the noise of a classifier be? First that of its head, then that of the layers before it."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from tradi.ensemble.batches import Pair
from tradi.ensemble.ensemble import KEEP_BYTES
from tradi.posterior import scale_search
from tradi.posterior.conditioning import Conditioning
from tradi.posterior.distribution import State, WeightDistribution
from tradi.posterior.laplace import LaplaceHead, best_spread, head_rows
from tradi.posterior.layers import Layer
from tradi.posterior.randomness import key
from tradi.posterior.runner import Runner, in_place_of_first
from tradi.posterior.scale_search import Cost, ScaleSearch, mean_loss, sample_losses
from tradi.prediction.class_likelihoods import Bernoulli, Classification, Tokens
from tradi.prediction.likelihood import Likelihood


@dataclass(frozen=True, eq=False)
class SearchedRun:
    """One training run.

    Args:
        runner: of the trained network.
        weights: to draw from.
        way: how members are conditioned, if they are.
    """

    runner: Runner
    weights: WeightDistribution
    way: Conditioning | None

    @property
    def free_layers(self) -> list[Layer]:
        """The layers whose noise is scaled: all but a head that is conditioned."""
        head = self.way.head.name if isinstance(self.way, LaplaceHead) else None
        return [layer for layer in self.weights.layers if layer.name != head]


SURE = 0.05  # nats: of a network with a lower NLL, noise may cost no more than 2% at the usual tolerance
SURE_TOGETHER = 0.2  # of several runs half a per cent: beside the plain Deep Ensemble, noise is hardly needed


class LabelScale(NamedTuple):
    """What a search found.

    Args:
        ways: every run's conditioning, with the factor on its own noise.
        search: the scale of everything else.
        trained: whether members are drawn around the trained weights, which validation data prefers to tracked means.
    """

    ways: list[Conditioning | None]
    search: ScaleSearch
    trained: bool = False


@dataclass(frozen=True, eq=False)
class LabelSearch:
    """A search for scales on validation data: one answer for all runs, whose members are judged together.

    Args:
        runs: of one architecture.
        likelihood: what scales are judged by.
        refresh: training data for BatchNorm's statistics, if there are any.
        members: networks that a scale is judged by, at the least; every run has as many of them.
        tolerance: as in `scale_search.largest_accepted`.
        seed: of the search's own random stream: no member that a user samples is judged here.
    """

    runs: Sequence[SearchedRun]
    likelihood: Likelihood
    refresh: Iterable[Any] | None
    members: int
    tolerance: float
    seed: int

    def choose(self, validation: list[Pair], cost: Cost) -> LabelScale:
        """Every run's conditioning with the factor on its own noise, and the scale of everything else.

        Args:
            validation: (inputs, target) pairs.
            cost: counts passes, and bounds them.
        """
        stream = key("scale search", operator.index(self.seed))
        runs, head, gain = self._with_heads(validation, stream)
        ways = [run.way for run in runs]
        if not any(run.free_layers for run in runs):  # the head is all there is
            if not head:
                whose = (
                    "the trained network: no noise of its" if len(runs) == 1 else "trained networks: no noise of their"
                )
                warnings.warn(
                    f"all members are {whose} last layer, which is all there is, lowers the validation NLL",
                    stacklevel=6,
                )
            return LabelScale(ways, ScaleSearch(0.0, {}, self.tolerance, self.members, 0, cost.seconds, head))
        members = -(-self.members // len(runs)) * len(runs)
        runs, plain, trained = self._centred(runs, validation, cost)
        drawn = [_Drawn(run, stream) for run in runs]

        def judge(scale: float) -> Tensor:
            # Without noise, all members of a run are alike.
            size = len(runs) if scale == 0 and not head else members
            cost.passes += size
            return self._losses(lambda i: drawn[i % len(runs)].member(scale, i), size, validation)

        found = scale_search.choose(judge, self.tolerance, members, cost, self._limit(mean_loss(plain)) + gain)
        return LabelScale(ways, replace(found, head=head), trained)

    def _limit(self, nll: float) -> float:
        """What noise may cost networks that have this NLL without it: what is sure has less to lose."""
        if not isinstance(self.likelihood, Classification | Bernoulli | Tokens):  # others need not have a natural zero
            return math.inf
        return self.tolerance * min(nll / (SURE if len(self.runs) == 1 else SURE_TOGETHER), 1.0)

    def _losses(self, drawn: Callable[[int], State], size: int, validation: list[Pair], moved: bool = True) -> Tensor:
        """NLL of every validation sample under members of the runs in turn, given what each of them draws."""
        own = in_place_of_first([run.runner for run in self.runs])

        def member(i: int) -> State:
            return own[i % len(own)] | drawn(i)

        ensemble = self.runs[0].runner.ensemble(member, size, trained=own, moved=moved, refresh=self.refresh)
        return sample_losses(ensemble, self.likelihood, validation)

    def _centred(
        self, runs: list[SearchedRun], validation: list[Pair], cost: Cost
    ) -> tuple[list[SearchedRun], Tensor, bool]:
        """The runs around what validation data prefers: tracked means, or else the trained weights themselves.

        Returns:
            the runs, their losses without any noise, and whether they are the trained networks.
        """
        cost.passes += 2 * len(runs)
        final = self._losses(lambda _: {}, len(runs), validation, moved=False)
        mean = self._losses(lambda i: runs[i].weights.centre, len(runs), validation)
        if not mean_loss(final) < mean_loss(mean):
            return runs, mean, False
        return [replace(run, weights=run.weights.around_trained()) for run in runs], final, True

    def _with_heads(self, validation: list[Pair], stream: int) -> tuple[list[SearchedRun], float | None, float]:
        """The runs with the best factor on the noise of their heads, this factor, and by how much it lowers the NLL.

        Without such heads there is no factor, None, and nothing is gained.
        """
        heads, rows = [], []
        for run in self.runs:
            if isinstance(run.way, LaplaceHead):
                heads.append(run.way)
                replay = run.runner.replay(validation, 0)
                rows.append(head_rows(replay, run.way.head, self.likelihood, name="validation"))
        if not heads:
            return [*self.runs], None, 0.0
        spread, gain = best_spread(heads, rows, stream)
        found = [
            replace(run, way=run.way.with_spread(spread)) if isinstance(run.way, LaplaceHead) else run
            for run in self.runs
        ]
        return found, spread, gain


class _Drawn:
    """Members of a run at any scale, of the same noise, which is drawn once as far as it fits in memory."""

    def __init__(self, run: SearchedRun, stream: int) -> None:
        self._run, self._stream = run, stream
        self._fit = KEEP_BYTES // max(sum(mean.nbytes for mean in run.weights.mean.values()), 1)
        self._noise: dict[int, State] = {}

    def member(self, scale: float, i: int) -> State:
        weights, way = self._run.weights, self._run.way
        noise = self._noise.get(i) or weights.noise(i, self._stream)
        if len(self._noise) < self._fit:
            self._noise[i] = noise
        if way is None:
            return weights.at(noise, scale)
        return way.weights(partial(weights.at, noise), scale, self._stream, i)
