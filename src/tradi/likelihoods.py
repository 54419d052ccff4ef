"""The tasks: one likelihood each, to pass as `likelihood=` where it cannot be inferred."""

from tradi.prediction.likelihoods import Bernoulli, Classification, Gaussian, Likelihood, SquaredError, Tokens

__all__ = ["Bernoulli", "Classification", "Gaussian", "Likelihood", "SquaredError", "Tokens"]
