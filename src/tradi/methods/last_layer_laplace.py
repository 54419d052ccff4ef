"""Laplace's approximation of the last layer (Daxberger et al., 2021): the cheapest Bayesian network there is."""

from __future__ import annotations

from torch import nn

from tradi.ensemble.copying import copied
from tradi.posterior.covariance import Independent
from tradi.posterior.posterior import Posterior


class LastLayerLaplace(Posterior):
    """The trained network with a Gaussian over its last linear layer alone; call `fit` before `sample`.

    For labels it is Laplace's approximation, for numbers Bayesian linear regression on the network's features. Nothing
    is tracked, so any trained network will do.

    Args:
        model: the trained network; it is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(copied(model), [], Independent())
