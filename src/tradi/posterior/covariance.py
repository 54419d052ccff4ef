"""How a layer's noise is drawn from what was tracked: Fourier features, independent, full covariance."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tradi.posterior.exact import product
from tradi.posterior.layers import CHUNK, Layer
from tradi.posterior.randomness import Stream, at_once
from tradi.posterior.waves import Table, Wave
from tradi.storage.typed import built

LARGE = 1 << 13  # weights of a layer, at the least, that are worth a table: for fewer the formula is done sooner
MOST_FEATURES = 1 << 12
DENSE = 5  # weights for every entry of a table, at the least: to make an entry takes five times what it saves

Piece = tuple[str, slice, Tensor]  # name of a parameter, which of its weights in a row, and a number for each of these


class Covariance(ABC):
    """How the noise of a layer's weights is correlated. Layers are independent of each other (paper, section 3.1)."""

    joint = False  # whether a layer's weights are tracked together, as one covariance matrix
    needs_moments = False  # whether noise depends on the second moments of a layer's inputs
    prior_samples: float | None = None  # besides the information about a weight; None where noise makes no use of it

    @abstractmethod
    def noise(self, layer: Layer, seed: int, member: int) -> Iterator[Piece]:
        """Noise of mean 0 for every weight of the layer: a function of the layer, the seed and the member alone.

        It comes in pieces, so that whoever asked can put one in its place while it is in the cache.

        Args:
            layer: what was tracked of it.
            seed: of the ensemble.
            member: its number.

        Yields:
            a weight's name, which part of the weight, and the noise of this part.
        """

    def check(self, sizes: dict[str, int], itemsize: int) -> None:  # noqa: B027 (most have nothing to object)
        """Raise where layers of so many weights, tracked in numbers of `itemsize` bytes, are more than it can hold."""

    def options(self) -> dict[str, float]:
        """The options, as numbers: what a checkpoint needs to build this object again."""
        return asdict(self)  # type: ignore[call-overload]


@dataclass(frozen=True)
class FourierFeatures(Covariance):
    r"""Weights of like value move together: an RBF kernel of the weight values, through random Fourier features.

    $$ \tilde\omega_k = \mu_k + \sigma_k\, z(\omega_k)^\top m, \quad
       z(\omega) = \sqrt{2/N} \cos(\theta \omega + \phi), \quad
       \operatorname{cov} = \sigma_k \sigma_{k'} e^{-(\omega_k - \omega_{k'})^2 / 2\ell^2} $$

    with m ~ N(0, I_N), theta ~ N(0, 1 / ell^2), phi ~ U[0, 2 pi] (paper, section 3.2). All three are drawn afresh
    for every layer and member, which makes the members' covariance the RBF one exactly, whatever N is.

    Args:
        features: N, up to 4,096: a phase for every weight and feature takes memory for both.
        length_scale: ell, in units of the standard deviation of the layer's weights.
        absolute: ell is meant in the weights' own unit instead, as in the paper.
        shrinkage: share, 0 to 1, of each variance that is replaced by the layer's average; 0 is the paper.
        prior_samples: m, in the factor (n + m) / (I + m) on a weight's variance, where the n samples of the validation
            data that `choose_scale` was given hold information I about the weight, n on average: noise goes where
            data has nothing to say. The more samples, the more it is trusted. None leaves it out, as the paper does.
        shared_phases: one phase a feature, as in the paper; else one for every weight and feature, as in the
            released code, where members then move their weights almost independently.
    """

    features: int = 10
    length_scale: float = 0.3
    absolute: bool = False
    shrinkage: float = 1.0
    prior_samples: float | None = 50.0
    shared_phases: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.features, int) or not 1 <= self.features <= MOST_FEATURES:
            raise ValueError(f"features must be a whole number from 1 to {MOST_FEATURES}, got {self.features!r}")
        if not 0 < self.length_scale < math.inf:
            raise ValueError(f"length_scale must be positive and finite, got {self.length_scale}")
        _check_spreading(self.shrinkage, self.prior_samples)

    @classmethod
    def paper(cls) -> FourierFeatures:
        """The paper's covariance: shared phases, N = 10, ell = 1, every weight's own variance.

        Returns:
            the covariance.
        """
        return cls(length_scale=1.0, absolute=True, shrinkage=0.0, prior_samples=None)

    @classmethod
    def released(cls) -> FourierFeatures:
        """The released script's: a phase for every weight and feature.

        Returns:
            the covariance.
        """
        return cls(length_scale=1.0, absolute=True, shrinkage=0.0, prior_samples=None, shared_phases=False)

    def noise(self, layer: Layer, seed: int, member: int) -> Iterator[Piece]:
        wave = self._wave(layer, seed, member)
        one_std = self.shrinkage == 1 and (self.prior_samples is None or not layer.fisher)
        if one_std:  # for all of the layer's weights: a factor of the wave, and nothing is left to do per weight
            wave = replace(wave, m=wave.m.astype(np.float64) * math.sqrt(layer.mean_variance))
        pieces = _shared_phases(wave, layer) if self.shared_phases else _own_phases(wave, layer, seed, member)
        for name, chunk, noise in pieces:
            if not one_std:
                noise.mul_(_std(layer, name, chunk, self.shrinkage, self.prior_samples))
            yield name, chunk, noise

    def _wave(self, layer: Layer, seed: int, member: int) -> Wave:
        N = self.features
        ell = self.length_scale if self.absolute else self.length_scale * layer.unit
        theta = Stream(seed, member, f"{layer.name}/theta").normal(0, N).numpy() / ell
        m = Stream(seed, member, f"{layer.name}/m").normal(0, N).numpy() * math.sqrt(2 / N)
        phi = 2 * math.pi * Stream(seed, member, f"{layer.name}/phi").uniform(0, N).numpy()
        return Wave(theta, phi, m)


@dataclass(frozen=True)
class Independent(Covariance):
    """Every weight moves by itself, with its own standard deviation.

    Args:
        shrinkage: share, 0 to 1, of each variance that is replaced by the layer's average.
        prior_samples: as in `FourierFeatures`.
    """

    shrinkage: float = 0.0
    prior_samples: float | None = None

    def __post_init__(self) -> None:
        _check_spreading(self.shrinkage, self.prior_samples)

    def noise(self, layer: Layer, seed: int, member: int) -> Iterator[Piece]:
        for name, weight in layer.weights.items():
            stream, (first, last), size = Stream(seed, member, name), layer.span(name), at_once(weight.device)
            for place in range(first - first % size, last, size):
                start, stop = max(place, first), min(place + size, last)
                part = slice(start - first, stop - first)
                std = _std(layer, name, part, self.shrinkage, self.prior_samples)
                yield name, part, stream.normal(start, stop, std.device).to(std.dtype).mul_(std)


@dataclass(frozen=True)
class FullCovariance(Covariance):
    r"""The whole covariance of each layer, tracked by the filter; for small networks (paper, appendix 1.1).

    $$ \tilde\omega = \mu + \Sigma^{1/2} m, \quad m \sim \mathcal N(0, I_K) $$

    Args:
        max_bytes: refuse layers whose matrices would together take more memory than this.
    """

    max_bytes: int = 1 << 30
    joint = True

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes must be positive, got {self.max_bytes}")

    def check(self, sizes: dict[str, int], itemsize: int) -> None:
        needed = itemsize * sum(size * size for size in sizes.values())
        if needed > self.max_bytes:
            layer, size = max(sizes.items(), key=lambda item: item[1])
            raise ValueError(
                f"FullCovariance needs {needed / 2**30:,.2f} GiB, the most of it for the {size:,} x {size:,} matrix of "
                f"layer {layer!r}, and max_bytes allows {self.max_bytes / 2**30:,.2f} GiB: use FourierFeatures(), "
                "leave layers out with select=, or raise max_bytes"
            )

    def noise(self, layer: Layer, seed: int, member: int) -> Iterator[Piece]:
        for names, root in layer.roots.items():
            m = Stream(seed, member, "+".join(names)).normal(0, len(root), root.device).to(root.dtype)
            pieces = product(root, m).split([layer.weights[name].numel() for name in names])
            for name, piece in zip(names, pieces, strict=True):
                yield name, slice(None), piece


def _shared_phases(wave: Wave, layer: Layer) -> Iterator[Piece]:
    """The wave at every weight: one function for the whole layer, read off a table where that is faster."""
    function: Wave | Table = wave
    if _worth_a_table(wave, layer):
        function = wave.table(*layer.extent, next(iter(layer.weights.values())).device)
    for name, chunk, values in _chunks(layer):
        yield name, chunk, function(values)


def _own_phases(wave: Wave, layer: Layer, seed: int, member: int) -> Iterator[Piece]:
    """The wave at every weight, with phases that are drawn for this weight alone."""
    features = len(wave.theta)
    for name, chunk, values in _chunks(layer):
        start = layer.span(name)[0] + chunk.start
        first, last = start * features, (start + len(values)) * features
        drawn = Stream(seed, member, f"{name}/phi").uniform(first, last, values.device)
        yield name, chunk, wave(values, drawn.mul_(2 * math.pi).view(-1, features).T)


def _chunks(layer: Layer) -> Iterator[Piece]:
    """The layer's weights, in numbers of the precision they were tracked in."""
    size = CHUNK * torch.get_num_threads()
    for name, weight in layer.weights.items():
        row = weight.reshape(-1)
        for start in range(0, len(row), size):
            chunk = slice(start, start + size)
            yield name, chunk, row[chunk].to(layer.variance[name].dtype)


def _worth_a_table(wave: Wave, layer: Layer) -> bool:
    """Whether there are so many weights, all tracked in float32, that filling in a table first is faster."""
    if layer.size < LARGE or any(variance.dtype != torch.float32 for variance in layer.variance.values()):
        return False
    low, high = layer.extent
    return layer.size > DENSE * (high - low) / wave.spacing and wave.spacing >= torch.finfo(torch.float32).tiny


def _check_spreading(shrinkage: float, prior_samples: float | None) -> None:
    if not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage must be between 0 and 1, got {shrinkage}")
    if prior_samples is not None and not 0 < prior_samples < math.inf:
        raise ValueError(f"prior_samples must be positive and finite, or None for no information, got {prior_samples}")


def _std(layer: Layer, name: str, part: slice, shrinkage: float, prior_samples: float | None) -> Tensor:
    """How far weights of a parameter move: the tracked deviation, shrunk, and more of it where data is silent.

    In a row, or one number for all of them.
    """
    variance = layer.variance[name].reshape(-1)[part]
    if shrinkage == 1:
        variance = variance.new_tensor(layer.mean_variance)
    else:  # clamped here and not in the filter's state: the paper's variances may pass below 0 and come back
        variance = variance.clamp_min(0)
        if shrinkage:  # else the average, which has to be read from the device, is not needed
            variance = variance.mul_(1 - shrinkage).add_(shrinkage * layer.mean_variance)
    if prior_samples is not None and layer.fisher:
        known = layer.fisher[name].reshape(-1)[part].to(variance.dtype) + prior_samples
        variance = torch.div(variance * (layer.samples + prior_samples), known, out=known)
    return variance.sqrt_()


def covariance_from_options(name: str, options: dict[str, float]) -> Covariance:
    """The covariance object that `options()` described.

    Raises:
        ValueError: if this version of tradi does not know it, or it has other options.
    """
    kinds = {kind.__name__: kind for kind in Covariance.__subclasses__()}
    if name not in kinds:
        raise ValueError(f"unknown covariance {name!r}: this version of tradi knows {sorted(kinds)}")
    covariance: Covariance = built(kinds[name], options, f"covariance {name}")
    return covariance
