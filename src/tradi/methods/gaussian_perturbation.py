"""Gaussian perturbation: the trained weights plus white noise, the paper's second baseline (section 4.4)."""

from __future__ import annotations

import math

import torch
from torch import nn

from tradi.ensemble.copying import copied
from tradi.posterior.covariance import Independent
from tradi.posterior.layers import by_layer
from tradi.posterior.posterior import Posterior
from tradi.tracking.selection import Select, as_predicate, check_trackable, named_weights


class GaussianPerturbation(Posterior):
    r"""The trained network plus white noise on its weights: $\tilde\omega = \omega + \mathcal N(0, s^2)$ (section 4.4).

    `choose_scale(validation, tolerance=0)` finds the factor on s that is best on validation data. The method is
    brittle: twice the best s can ruin a network.

    Args:
        model: the trained network; it is copied.
        std: s, the standard deviation of the noise.
        select: which weights to perturb; by default all trainable ones.

    Raises:
        ValueError: if `std` is not positive and finite, or `select` leaves no trainable weight.
    """

    def __init__(self, model: nn.Module, std: float = 0.01, select: Select = "*") -> None:
        if not 0 < std < math.inf:
            raise ValueError(f"std must be positive and finite, got {std}")
        own, selected = copied(model), as_predicate(select)
        weights = [
            weight for weight in named_weights(own).values() if weight.parameter.requires_grad and selected(weight)
        ]
        if not weights:
            raise ValueError("select= leaves no trainable weight to perturb: select at least one")
        for weight in weights:
            check_trackable(weight)
        final = {weight.name: weight.parameter.detach() for weight in weights}
        mean = {name: w.to(torch.promote_types(w.dtype, torch.float32), copy=True) for name, w in final.items()}
        variance = {name: torch.full_like(value, std**2) for name, value in mean.items()}
        super().__init__(own, by_layer(final, mean, variance), Independent())
