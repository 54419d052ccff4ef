"""How loud should the noise of a classifier be? First that of its head, then that of the layers before it."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from tradi.ensemble.batches import Pair
from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import KEEP_BYTES, Ensemble
from tradi.posterior import scale_search
from tradi.posterior.conditioning import Conditioning, Replay
from tradi.posterior.distribution import State, WeightDistribution
from tradi.posterior.laplace import LaplaceHead, head_rows
from tradi.posterior.layers import Layer
from tradi.posterior.randomness import key
from tradi.posterior.scale_search import Cost, ScaleSearch, sample_losses
from tradi.prediction.likelihood import Likelihood


@dataclass(frozen=True, eq=False)
class LabelSearch:
    """A search for scales on validation data.

    Args:
        weights: to draw from.
        model: the trained network.
        likelihood: what scales are judged by.
        refresh: training data for BatchNorm's statistics, if there are any.
        members: networks that a scale is judged by.
        tolerance: as in `scale_search.largest_accepted`.
        seed: of the search's own random stream: no member that a user samples is judged here.
    """

    weights: WeightDistribution
    model: nn.Module
    likelihood: Likelihood
    refresh: Iterable[Any] | None
    members: int
    tolerance: float
    seed: int

    def choose(
        self, way: Conditioning | None, validation: list[Pair], cost: Cost
    ) -> tuple[Conditioning | None, ScaleSearch]:
        """The conditioning with the factor on its own noise, and the scale of everything else.

        Args:
            way: how members are conditioned, if they are.
            validation: (inputs, target) pairs.
            cost: counts passes, and bounds them.
        """
        stream, head = key("scale search", operator.index(self.seed)), None
        if isinstance(way, LaplaceHead):
            replay = Replay(copied(self.model).eval(), validation, 0)
            way = way.best_spread(head_rows(replay, way.head, self.likelihood), stream)
            head = way.spread
        if not self._free_layers(way):  # the head is all there is
            if not head:
                warnings.warn(
                    "all members are the trained network: no noise of its last layer, which is all there is, lowers "
                    "the validation NLL",
                    stacklevel=5,
                )
            return way, ScaleSearch(0.0, {}, self.tolerance, self.members, 0, cost.seconds, head)
        model, drawn = copied(self.model), _Drawn(self.weights, self.members, stream)

        def judge(scale: float) -> Tensor:
            size = 1 if scale == 0 and not head else self.members  # without noise, all members are alike
            draw = partial(drawn.member, way, scale)
            ensemble = Ensemble(model, draw, size, moved=True, refresh=self.refresh)
            cost.passes += size
            return sample_losses(ensemble, self.likelihood, validation)

        return way, replace(scale_search.choose(judge, self.tolerance, self.members, cost), head=head)

    def _free_layers(self, way: Conditioning | None) -> list[Layer]:
        """The layers whose noise is scaled: all but a head that is conditioned."""
        head = way.head.name if isinstance(way, LaplaceHead) else None
        return [layer for layer in self.weights.layers if layer.name != head]


class _Drawn:
    """Members at any scale, of the same noise, which is drawn once where all of it fits in memory."""

    def __init__(self, weights: WeightDistribution, members: int, stream: int) -> None:
        self._weights, self._stream = weights, stream
        self._keep = members * sum(mean.nbytes for mean in weights.mean.values()) <= KEEP_BYTES
        self._noise: dict[int, State] = {}

    def member(self, way: Conditioning | None, scale: float, i: int) -> State:
        noise = self._noise.get(i) or self._weights.noise(i, self._stream)
        if self._keep:
            self._noise[i] = noise
        if way is None:
            return self._weights.at(noise, scale)
        return way.weights(partial(self._weights.at, noise), scale, self._stream, i)
