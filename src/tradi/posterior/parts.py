"""What a posterior is made of beside its network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tradi.posterior.conditioning import Conditioning
from tradi.posterior.covariance import Covariance, Independent
from tradi.posterior.distribution import State, WeightDistribution, check_scale
from tradi.posterior.layers import Layer
from tradi.posterior.scale_search import ScaleSearch
from tradi.prediction.likelihoods import Likelihood


@dataclass(frozen=True, eq=False)
class Parts:
    """The arguments of a `Posterior`, where they are explained.

    Raises:
        ValueError: if the scale is negative, not finite or beyond float32.
    """

    layers: list[Layer]
    covariance: Covariance | None
    scale: float = 1.0
    scale_search: ScaleSearch | None = None
    likelihood: Likelihood | None = None
    refresh: Iterable[Any] | None = None
    conditioning: Conditioning | None = None

    def __post_init__(self) -> None:
        check_scale(self.scale)

    @property
    def weights(self) -> WeightDistribution:
        """What members are drawn from before the data is seen."""
        return WeightDistribution(self.layers, self.covariance or Independent())

    def draw(self, weights: WeightDistribution, member: int, seed: int = 0) -> State:
        """What one member holds in place of the model's own, by name.

        Args:
            weights: those above, made once for all members.
            member: its number.
            seed: of the random numbers.
        """
        if self.conditioning is None:
            return weights.drawn(member, seed, self.scale)
        return self.conditioning.weights(lambda scale: weights.drawn(member, seed, scale), self.scale, seed, member)
