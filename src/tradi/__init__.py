"""One ordinary training run that gives a neural network trustworthy uncertainty."""

from tradi.covariance import Covariance, FourierFeatures, FullCovariance, Independent
from tradi.ensemble import Ensemble
from tradi.equations import AlgorithmOne, ReleasedCode, Trajectory
from tradi.gains import FadingMemory, StationaryNoise
from tradi.kalman import Kalman
from tradi.methods.tradi import TRADI
from tradi.posterior import Posterior, load_posterior
from tradi.prediction import Categorical, GaussianMixture
from tradi.scale import ScaleChoice

__version__ = "0.1.0"

__all__ = [
    "TRADI",
    "AlgorithmOne",
    "Categorical",
    "Covariance",
    "Ensemble",
    "FadingMemory",
    "FourierFeatures",
    "FullCovariance",
    "GaussianMixture",
    "Independent",
    "Kalman",
    "Posterior",
    "ReleasedCode",
    "ScaleChoice",
    "StationaryNoise",
    "Trajectory",
    "load_posterior",
]
