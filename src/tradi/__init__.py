"""Trustworthy uncertainty for a neural network, from one ordinary training run."""

from importlib import import_module
from types import ModuleType

from tradi import likelihoods
from tradi.acquisition.pool import acquire
from tradi.costs import Estimate, estimate
from tradi.ensemble.ensemble import Ensemble, load_ensemble
from tradi.ensemble.gathered import gathered
from tradi.filter.equations import AlgorithmOne, ReleasedCode, Trajectory
from tradi.filter.gains import FadingMemory, StationaryNoise
from tradi.filter.kalman import Kalman
from tradi.hub import load_pretrained, save_pretrained
from tradi.inspection import Diagnostics, diagnostics
from tradi.methods.tradi import TRADI
from tradi.posterior.activations import Activations
from tradi.posterior.covariance import Covariance, FourierFeatures, FullCovariance, Independent
from tradi.posterior.posterior import Posterior, load_posterior
from tradi.posterior.scale_search import ScaleSearch
from tradi.prediction.bernoulli import BernoulliPrediction
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture

__version__ = "0.1.0"

__all__ = [
    "TRADI",
    "Activations",
    "AlgorithmOne",
    "BernoulliPrediction",
    "ClassPrediction",
    "Covariance",
    "Diagnostics",
    "Ensemble",
    "Estimate",
    "FadingMemory",
    "FourierFeatures",
    "FullCovariance",
    "GaussianMixture",
    "Independent",
    "Kalman",
    "Posterior",
    "ReleasedCode",
    "ScaleSearch",
    "StationaryNoise",
    "Trajectory",
    "acquire",
    "diagnostics",
    "estimate",
    "gathered",
    "likelihoods",
    "load_ensemble",
    "load_posterior",
    "load_pretrained",
    "save_pretrained",
]

# Imported when first asked for.
_ROOMS = ("acquisition", "bench", "data", "detection", "methods", "metrics", "models", "report")


def __getattr__(name: str) -> ModuleType:
    if name in _ROOMS:
        return import_module(f"tradi.{name}")
    raise AttributeError(f"module 'tradi' has no attribute {name!r}")
