"""Maximum class probability (MCP): the single network, whose confidence is its largest softmax output."""

from __future__ import annotations

from torch import nn

from tradi.covariance import Independent
from tradi.posterior import Posterior
from tradi.weights import copied


class MaximumProbability(Posterior):
    """The trained network itself, as a posterior without noise: all its members are the same.

    Args:
        model: the trained network; it is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(copied(model), [], Independent())
