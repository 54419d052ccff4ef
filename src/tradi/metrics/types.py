"""What a metric needs from a prediction; `tradi.ClassPrediction` and `tradi.GaussianMixture` provide it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Classes(Protocol):
    """An ensemble's prediction of a class; every attribute is (batch, ...)."""

    @property
    def confidence(self) -> Tensor: ...
    @property
    def one_minus_confidence(self) -> Tensor: ...
    @property
    def entropy(self) -> Tensor: ...
    @property
    def expected_entropy(self) -> Tensor: ...
    @property
    def mutual_information(self) -> Tensor: ...


class Mixture(Protocol):
    """An ensemble's prediction of a number: equally weighted Gaussians, (members, batch, ...)."""

    @property
    def means(self) -> Tensor: ...
    @property
    def variances(self) -> Tensor: ...
    @property
    def mean(self) -> Tensor: ...
    @property
    def variance(self) -> Tensor: ...
    @property
    def epistemic(self) -> Tensor: ...
    def log_prob(self, y: Tensor, /) -> Tensor: ...
