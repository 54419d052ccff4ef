"""Maximum class probability (MCP): the single network, whose confidence is its largest softmax output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior.covariance import Independent
from tradi.posterior.posterior import Posterior
from tradi.prediction.likelihoods import Likelihood


class SingleNetwork(Posterior):
    """The trained network itself, as a posterior without noise: all its members are identical.

    Args:
        model: the trained network; it is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(copied(model), [], Independent())

    def sample(
        self,
        members: int = 1,
        seed: int = 0,
        *,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
    ) -> Ensemble:
        """The network as an ensemble, by default of one member; more members are copies. See `Posterior.sample`.

        Args:
            members: their number.
            seed: changes nothing.
            refresh: training batches for BatchNorm's statistics.
            likelihood: what outputs mean, if it cannot be inferred.

        Returns:
            the ensemble.
        """
        return super().sample(members, seed, refresh=refresh, likelihood=likelihood)
