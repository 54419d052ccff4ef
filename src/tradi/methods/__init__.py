"""Every way to an ensemble, siblings: one file per method.

All end in `sample(members, seed) -> Ensemble`, those that follow training (TRADI, SWAG) after `posterior()`.
"""

from tradi.methods.deep_ensemble import DeepEnsemble
from tradi.methods.gaussian_perturbation import GaussianPerturbation
from tradi.methods.last_layer_laplace import LastLayerLaplace
from tradi.methods.mc_dropout import MCDropout
from tradi.methods.single_network import SingleNetwork
from tradi.methods.swag import SWAG
from tradi.methods.tradi import TRADI

__all__ = ["SWAG", "TRADI", "DeepEnsemble", "GaussianPerturbation", "LastLayerLaplace", "MCDropout", "SingleNetwork"]
