"""The Gaussian over a network's weights that was tracked: its means, its variances, and noise drawn from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from tradi.posterior.covariance import Covariance
from tradi.posterior.layers import Layer

LOUDEST = torch.finfo(torch.float32).max

State = dict[str, Tensor]


class WeightDistribution:
    """Means and variances of weights, layer by layer, and how their noise is correlated.

    Args:
        layers: what was tracked.
        covariance: of the noise within a layer.
    """

    def __init__(self, layers: list[Layer], covariance: Covariance) -> None:
        self.layers, self.covariance = layers, covariance

    @property
    def mean(self) -> State:
        """Tracked means by parameter name."""
        return {name: value for layer in self.layers for name, value in layer.mean.items()}

    @property
    def centre(self) -> State:
        """The weights of a member without noise, by parameter name."""
        return {name: value for layer in self.layers for name, value in _as_weights(layer, layer.mean).items()}

    @property
    def variance(self) -> State:
        """Tracked variances by parameter name, before scale and shrinkage; the paper's may be negative."""
        return {name: value for layer in self.layers for name, value in layer.variance.items()}

    def around_trained(self) -> WeightDistribution:
        """The same noise around the final weights instead of the tracked means."""
        return WeightDistribution([layer.around_weights() for layer in self.layers], self.covariance)

    def noise(self, member: int, seed: int) -> State:
        """The noise of one member by parameter name, before the scale."""
        noise: State = {}
        with self._in_full_precision():
            for layer in self.layers:
                nothing = {name: mean.new_zeros(()).expand_as(mean) for name, mean in layer.mean.items()}
                noise |= self._onto(layer, nothing, 1, member, seed)
        return noise

    def at(self, noise: State, scale: float) -> State:
        """The weights, by parameter name, that this noise leads to."""
        weights: State = {}
        for layer in self.layers:
            sums = {name: torch.add(mean, noise[name], alpha=scale) for name, mean in layer.mean.items()}
            weights |= _as_weights(layer, sums)
        return weights

    def drawn(self, member: int, seed: int, scale: float) -> State:
        """The weights of one member by parameter name."""
        weights: State = {}
        with self._in_full_precision():
            for layer in self.layers:
                weights |= _as_weights(layer, self._onto(layer, layer.mean, scale, member, seed))
        return weights

    @contextmanager
    def _in_full_precision(self) -> Iterator[None]:
        """Whatever autocast a member is first asked for in: it would be another one."""
        with ExitStack() as stack:
            for kind in {mean.device.type for layer in self.layers for mean in layer.mean.values()}:
                if torch.amp.is_autocast_available(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield

    def _onto(self, layer: Layer, start: State, scale: float, member: int, seed: int) -> State:
        """start + scale * noise in one pass: every piece of noise is put in its place as soon as it is drawn."""
        rows = {name: value.reshape(-1) for name, value in start.items()}
        sums = {name: row.new_empty(row.shape) for name, row in rows.items()}
        for name, part, noise in self.covariance.noise(layer, seed, member):
            torch.add(rows[name][part], noise, alpha=scale, out=sums[name][part])
        return {name: sums[name].view(value.shape) for name, value in start.items()}


def check_scale(scale: float) -> None:
    """Raise for a scale that noise in float32 cannot be multiplied by.

    Raises:
        ValueError: if it is negative, not finite or beyond float32.
    """
    if not 0 <= scale <= LOUDEST:
        raise ValueError(f"scale must be finite and not negative, and at most {LOUDEST:.3g}, got {scale}")


def check_finite(trained: State, layers: list[Layer]) -> None:
    """Raise for a network whose training diverged; frozen weights, which were not trained, are not looked at.

    Args:
        trained: the final weights that can be trained, by name.
        layers: what was tracked.

    Raises:
        ValueError: if a tracked mean or variance, or a tracked or trainable weight, is NaN or infinite.
    """
    for layer in layers:
        for name, mean in layer.mean.items():
            if not (mean.isfinite().all() and layer.variance[name].isfinite().all()):
                raise ValueError(
                    f"what was tracked of {name} is not finite: its weights were NaN or infinite at some step; "
                    "train without divergence (a lower learning rate, gradient clipping) and attach again"
                )
    tracked = {name: weight for layer in layers for name, weight in layer.weights.items()}
    for name, weight in (trained | tracked).items():
        if not weight.isfinite().all():
            raise ValueError(f"the weights of {name} are NaN or infinite: training diverged")


def _as_weights(layer: Layer, values: State) -> State:
    """In the weights' own dtype, which what was tracked need not have."""
    return {name: values[name].to(weight.dtype) for name, weight in layer.weights.items()}
