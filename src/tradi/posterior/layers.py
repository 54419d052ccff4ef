"""What was tracked, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from tradi.posterior.exact import eigh, product, total
from tradi.posterior.rows import Form
from tradi.sharding import Place, extremes, sum_over_shards

CHUNK = 1 << 16  # weights that a thread works on at once: they stay in its core's cache meanwhile


@dataclass(frozen=True, eq=False)
class Moments:
    r"""Second moments of a linear layer's inputs, $\overline{a a^\top}$, with a 1 for its bias.

    Args:
        weight: name of the parameter that they belong to.
        bias: name of the bias, if it is tracked.
        form: how the weight is laid out.
        second: (groups, inputs, inputs), or the diagonal alone, (groups, inputs).
    """

    weight: str
    bias: str | None
    form: Form
    second: Tensor
    _roots: dict[float, Tensor] = field(default_factory=dict, repr=False)  # every member needs the same one

    def joined(self, earlier: Moments | None) -> Moments:
        """The average with those of an earlier training, if they are of the same inputs."""
        if earlier is None or earlier.form != self.form or earlier.second.shape != self.second.shape:
            return self
        return replace(self, second=(self.second + earlier.second.to(self.second)) / 2, _roots={})

    @cached_property
    def _eigen(self) -> tuple[Tensor, Tensor | None]:
        """Eigenvalues, in units of their average, and vectors, of every group."""
        if self.second.ndim == 2:
            return self.second / self.second.mean(1, keepdim=True).clamp_min(1e-30), None
        values, vectors = eigh(self.second)
        return values.clamp_min(0) / values.mean(1, keepdim=True).clamp_min(1e-30), vectors

    def inverse_root(self, floor: float) -> Tensor:
        r"""$(A / \delta \bar a + 1)^{-1/2}$, in the form of `second`."""
        if floor not in self._roots:
            values, vectors = self._eigen
            roots = (values / floor + 1).rsqrt()
            root = roots if vectors is None else (vectors * roots[:, None]) @ vectors.mT
            self._roots[floor] = root.to(self.second.dtype)
        return self._roots[floor]


@dataclass
class Layer:
    """What was tracked of one layer: the weights that belong to one module.

    Args:
        name: of the module.
        weights: final weights, by parameter name.
        mean: tracked means, by parameter name.
        variance: tracked variances, by parameter name; may be negative under the paper's equations.
        covariance: joint covariance matrices, by the names of the parameters they are of, in order.
        deviations: (rank, ...) columns of a low-rank covariance, by parameter name.
        fisher: what data says about every weight, by parameter name, in samples: the average over the layer is the
            number of samples that were looked at, and a weight that none of them needs has 0. Empty where nobody
            measured it.
        gradient: average squared gradient of the layer's weights in training; None where it was not tracked.
        moments: second moments of the layer's inputs on training data; None where nobody measured them.
        reach: how far noise may move the layer's weights, beside other layers (see `share_out`).
        before: second moments of the layer's inputs in an earlier training, which a prior brought.
        places: of the weights that are sharded over processes: which part of them all other fields hold. The layer's
            statistics are those of the whole layer, and every process must ask for them together.
    """

    name: str
    weights: dict[str, Tensor]
    mean: dict[str, Tensor]
    variance: dict[str, Tensor]
    covariance: dict[tuple[str, ...], Tensor] = field(default_factory=dict)
    deviations: dict[str, Tensor] = field(default_factory=dict)
    fisher: dict[str, Tensor] = field(default_factory=dict)
    gradient: float | None = None
    moments: Moments | None = None
    reach: float | None = None
    before: Moments | None = None
    places: dict[str, Place] = field(default_factory=dict)

    def span(self, name: str) -> tuple[int, int]:
        """The weights of a parameter that are held here, first and one past the last, counted through all of it."""
        place = self.places.get(name)
        return (0, self.weights[name].numel()) if place is None else (place.start, place.stop)

    def shape(self, name: str) -> torch.Size:
        """The shape of a parameter, whoever holds it."""
        return self.places[name].shape if name in self.places else self.weights[name].shape

    def count(self, name: str) -> int:
        """How many weights a parameter has, whoever holds them."""
        return self.shape(name).numel()

    @cached_property
    def size(self) -> int:
        """How many weights the layer has, whoever holds them."""
        return sum(map(self.count, self.weights))

    def around_weights(self) -> Layer:
        """The same layer, whose noise is around the final weights instead of the tracked means."""
        return replace(self, mean={name: self.weights[name].to(mean, copy=True) for name, mean in self.mean.items()})

    def _average(self, values: dict[str, Tensor], bound: float, function: Callable[[Tensor], Tensor]) -> float:
        """The average of a function of every weight's value, of size `bound` at the most.

        It is a sum of whole multiples of a unit far below the bound, so that no order of summation changes it: shards,
        threads and devices all find the same number. Each term is rounded to 2^-62 of the bound times the layer's size.
        """
        if not 0 < bound < math.inf:
            return bound  # 0, or what a run that diverged left behind, which a posterior refuses
        unit = math.ldexp(1.0, max(math.frexp(bound)[1] - 62 + self.size.bit_length(), -1022))
        sums = {
            name: sum(
                int(function(chunk.to(torch.float64, copy=True)).div_(unit).round_().to(torch.int64).sum().item())
                for chunk in own.reshape(-1).split(CHUNK)
            )
            for name, own in values.items()
        }
        return sum_over_shards(sums, self.places) / self.size * unit

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the layer's final weights: the unit of a relative length-scale."""
        bound = max(map(abs, self.extent))
        centre = self._average(self.weights, bound, lambda w: w)
        return math.sqrt(self._average(self.weights, 4 * bound * bound, lambda w: w.sub_(centre).square_()))

    @cached_property
    def extent(self) -> tuple[float, float]:
        """The smallest and the largest of the layer's final weights."""
        return extremes({name: _ends(own) for name, own in self.weights.items()}, self.places)

    @cached_property
    def unit(self) -> float:
        """The spread, but not less than what float32 can tell apart at the size of the weights."""
        return max(self.spread, 1e-6 * max(map(abs, self.extent)), 1e-30)

    @cached_property
    def mean_variance(self) -> float:
        """Average of the layer's variances, each clamped to 0."""
        _, highest = extremes({name: _ends(own) for name, own in self.variance.items()}, self.places)
        return self._average(self.variance, max(highest, 0.0), lambda v: v.clamp_min_(0))

    @cached_property
    def samples(self) -> float:
        """Average of the information about the layer's weights: the number of samples that it comes from."""
        size = sum(f.numel() for f in self.fisher.values())
        return sum(map(total, self.fisher.values())) / size

    @cached_property
    def roots(self) -> dict[tuple[str, ...], Tensor]:
        """Symmetric square roots of the joint covariances; negative eigenvalues are clamped to 0."""
        roots = {}
        for names, matrix in self.covariance.items():
            values, vectors = eigh(matrix)
            half = vectors * values.clamp_min(0) ** 0.25
            roots[names] = product(half, half.T).to(matrix.dtype)
        return roots


def _ends(values: Tensor) -> tuple[float, float]:
    """The lowest and the highest value; of nothing, what no minimum and no maximum takes notice of."""
    if not values.numel():
        return math.inf, -math.inf
    low, high = values.aminmax()
    return low.item(), high.item()


def share_out(layers: list[Layer]) -> list[Layer]:
    r"""The same layers, each with its reach: $c_l \propto 1 / \sqrt{\overline{g^2}}$, the spread of a layer on average.

    Where gradients were not tracked, the reach is the layer's own spread. A layer hardly any gradient reaches goes no
    further than one with a thousandth of the largest. Layers that have a reach, from a prior, keep it.
    """
    free = [layer for layer in layers if layer.reach is None]
    reach = {layer.name: own for layer, own in zip(free, _reaches(free), strict=True)}
    return [replace(layer, reach=reach[layer.name]) if layer.name in reach else layer for layer in layers]


def _reaches(layers: list[Layer]) -> list[float]:
    known = [layer.gradient for layer in layers if layer.gradient is not None]
    if not known or len(known) < len(layers) or max(known) == 0:
        return [layer.unit for layer in layers]
    relative = [1 / math.sqrt(max(gradient, 1e-6 * max(known))) for gradient in known]
    ratios = (math.log(layer.unit / own) for layer, own in zip(layers, relative, strict=True))
    unit = math.exp(sum(ratios) / len(layers))
    return [unit * own for own in relative]


def with_prior(layers: list[Layer], prior: Mapping[str, Layer], moved: Collection[str]) -> list[Layer]:
    """The same layers with what a prior says beside mean and variance.

    That is the second moments of earlier inputs, and the reach of layers that training left as they were: no gradient
    of this run says how much they matter.

    Args:
        layers: of this run.
        prior: layers of an earlier posterior, by name.
        moved: names of the parameters that training moved.
    """
    found = []
    for layer in layers:
        earlier = prior.get(layer.name)
        if earlier is not None:
            still = layer.weights.keys().isdisjoint(moved)
            reach = (earlier.reach or layer.unit) if still else None
            layer = replace(layer, before=earlier.moments or earlier.before, reach=reach)
        found.append(layer)
    return found


def by_layer(
    weights: dict[str, Tensor],
    mean: dict[str, Tensor],
    variance: dict[str, Tensor],
    covariance: dict[tuple[str, ...], Tensor] | None = None,
    deviations: dict[str, Tensor] | None = None,
    fisher: dict[str, Tensor] | None = None,
    gradient: dict[str, float] | None = None,
    places: dict[str, Place] | None = None,
) -> list[Layer]:
    """What was tracked, sorted into layers: the weights that a module owns share the first part of their names."""
    layers: dict[str, Layer] = {}
    for name in (name for name in weights if name in mean):
        module = name.rpartition(".")[0]
        layer = layers.setdefault(module, Layer(module, {}, {}, {}))
        layer.weights[name], layer.mean[name], layer.variance[name] = weights[name], mean[name], variance[name]
        if deviations:
            layer.deviations[name] = deviations[name]
        if fisher:
            layer.fisher[name] = fisher[name]
        if places and name in places:
            layer.places[name] = places[name]
    for layer in layers.values():
        if gradient and layer.weights.keys() <= gradient.keys():
            layer.gradient = sum(gradient[name] * layer.count(name) for name in layer.weights) / layer.size
    for names, matrix in (covariance or {}).items():
        layers[names[0].rpartition(".")[0]].covariance[names] = matrix
    return list(layers.values())
