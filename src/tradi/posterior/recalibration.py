"""One number, estimated on validation data, that makes any ensemble as sure as it should be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from tradi.ensemble.batches import Pair
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior.linear_regression import highest
from tradi.posterior.scale_search import sample_losses
from tradi.prediction.gaussian import GaussianMixture
from tradi.prediction.likelihood import Likelihood
from tradi.prediction.number_likelihoods import Gaussian, SquaredError

PRIOR_ROWS = 20  # rows that speak for the noise as training left it, beside the validation rows
STEPS = 16  # of the search for a temperature, from a seventh to seven: to half a per cent


def noise_factor(prediction: GaussianMixture, validation: list[Pair]) -> float:
    r"""The factor on noise variances that validation data asks for, for numbers.

    $$ c = \frac{\sum_i z_i^2 + 20}{n + 20}, \quad z_i = (y_i - \bar\mu_i) / \bar\sigma_i $$
    """
    mean = prediction.mean
    y = torch.cat([torch.as_tensor(target).reshape(-1) for _, target in validation]).to(mean).reshape(mean.shape)
    z = (y - mean) * prediction.variance.rsqrt()
    return (z.square().sum().item() + PRIOR_ROWS) / (z.numel() + PRIOR_ROWS)


def recalibrated(ensemble: Ensemble, likelihood: Likelihood, validation: Iterable[Any]) -> Likelihood:
    """The likelihood with the temperature that validation data asks for: of labels the one of the lowest NLL.

    Args:
        ensemble: whose predictions it is for.
        likelihood: what its outputs mean.
        validation: (inputs, target) batches that were not trained on.
    """
    pairs = list(validation)
    if isinstance(likelihood, Gaussian | SquaredError):
        return likelihood.tempered(noise_factor(ensemble.predict(pairs, likelihood=likelihood), pairs))

    def fit(log_temperature: float) -> float:
        return -sample_losses(ensemble, likelihood.tempered(math.exp(log_temperature)), pairs).nanmean().item()

    return likelihood.tempered(math.exp(highest(fit, -2.0, 2.0, STEPS)))
