"""Maximum class probability (MCP): the single network, whose confidence is its largest softmax output."""

from __future__ import annotations

from torch import nn

from tradi.covariance import Independent
from tradi.ensemble import Ensemble
from tradi.posterior import Posterior
from tradi.weights import copied


class MaximumProbability(Posterior):
    """The trained network itself, as a posterior without noise: all its members are the same.

    Args:
        model: the trained network; it is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(copied(model), [], Independent())

    def sample(self, members: int = 1, seed: int = 0) -> Ensemble:
        """The network, as an ensemble of one unless more copies of it are asked for."""
        return super().sample(members, seed)
