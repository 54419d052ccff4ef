"""What comes after training: condition members on the training data, then choose how loud their noise is."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from tradi.ensemble.batches import Pair, batches, check_reiterable, samples_in
from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior import loudness
from tradi.posterior.activations import Activations
from tradi.posterior.conditions import (
    REFRESHED,
    VALIDATED,
    conditioned,
    first_samples,
    inferred,
    kept,
    some_samples,
    with_moments,
)
from tradi.posterior.covariance import Independent
from tradi.posterior.fisher import fisher
from tradi.posterior.label_search import LabelSearch
from tradi.posterior.laplace import LaplaceHead
from tradi.posterior.loudness import Averaged, Component
from tradi.posterior.parts import Parts
from tradi.posterior.randomness import key
from tradi.posterior.recalibration import recalibrated
from tradi.posterior.scale_search import Cost
from tradi.posterior.without_rows import WithoutRows
from tradi.prediction.likelihoods import Likelihood, check_likelihood


@dataclass(frozen=True)
class SearchOptions:
    """How a scale is searched for; see `Posterior.choose_scale`.

    Raises:
        ValueError: if an option is out of range.
    """

    members: int = 5
    tolerance: float = 0.001
    temperature: bool = False
    passes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError(f"members must be at least 1, got {self.members}")
        if not 0 <= self.tolerance < float("inf"):
            raise ValueError(f"tolerance must be finite and not negative, got {self.tolerance}")


def condition(
    model: nn.Module, parts: Parts, train: Iterable[Any], likelihood: Likelihood | None, layer: str | None
) -> Parts:
    """See `Posterior.condition`."""
    check_reiterable(train, "train")
    check_likelihood(likelihood or parts.likelihood)
    data, total = kept(train, "train", like(model))
    refresh = some_samples(data)
    task = _estimated(model, parts, inferred(model, data, likelihood or parts.likelihood), data, refresh)
    centre = parts.weights.mean
    ways = conditioned(model, data, total, task, centre, layer)
    covariance = parts.covariance
    if covariance is None:
        covariance = Activations() if isinstance(ways, LaplaceHead) else Independent()
    way = ways if isinstance(ways, LaplaceHead) else Averaged((Component(1.0, parts.scale, ways[0]),), tuple(ways))
    layers = with_moments(model, parts.layers, data) if covariance.needs_moments else parts.layers
    return Parts(layers, covariance, parts.scale, None, task, refresh, way)


def choose_scale(
    model: nn.Module,
    parts: Parts,
    validation: Iterable[Any] | None,
    options: SearchOptions,
    likelihood: Likelihood | None = None,
) -> Parts:
    """See `Posterior.choose_scale`; without validation data, the training data decides."""
    cost = Cost(options.passes)
    if validation is None:
        warnings.warn(
            "without validation data the noise is chosen on the training data, and error bars are too small where the "
            "network overfits: pass data that was not trained on",
            stacklevel=3,
        )
    if validation is None and isinstance(parts.conditioning, Averaged):
        return _numbers_searched(model, parts, [], options, cost)
    given = parts.refresh if validation is None else validation
    assert given is not None
    _check(model, parts, given)
    pairs, _ = kept(given, "validation", like(model), VALIDATED)
    refresh = parts.refresh
    if refresh is not None:
        refresh = first_samples(batches(refresh, "refresh", like(model)), REFRESHED)
    check_likelihood(likelihood)
    task = _estimated(model, parts, inferred(model, pairs, likelihood or parts.likelihood), pairs, refresh)
    parts = replace(parts, likelihood=task, refresh=refresh)
    searched = _numbers_searched if isinstance(parts.conditioning, Averaged) else _labels_searched
    found = searched(model, parts, pairs, options, cost)
    assert found.scale_search is not None
    samples = 0 if validation is None else sum(map(samples_in, pairs))
    return replace(found, scale_search=replace(found.scale_search, samples=samples))


def like(model: nn.Module) -> Tensor:
    """A tensor on the model's device, of its floating-point type."""
    return next(model.parameters()).detach()


def _numbers_searched(
    model: nn.Module, parts: Parts, validation: list[Pair], options: SearchOptions, cost: Cost
) -> Parts:
    assert isinstance(parts.conditioning, Averaged)
    ways = parts.conditioning.ways
    chosen, search = loudness.choose(parts.weights, model, ways, validation, options.members, cost, options.seed)
    noise = sum(one.share * (one.conditioning.noise or 1.0) for one in chosen.components)
    task = ways[0].likelihood.tempered(noise)
    return replace(parts, scale=search.scale, scale_search=search, conditioning=chosen, likelihood=task)


def _labels_searched(
    model: nn.Module, parts: Parts, validation: list[Pair], options: SearchOptions, cost: Cost
) -> Parts:
    task = parts.likelihood
    assert task is not None
    if parts.covariance is not None and parts.covariance.prior_samples is not None:
        found = fisher(model, parts.layers, validation, task)
        parts = replace(parts, layers=[replace(one, fisher=f) for one, f in zip(parts.layers, found, strict=True)])
    search = LabelSearch(parts.weights, model, task, parts.refresh, options.members, options.tolerance, options.seed)
    way, chosen = search.choose(parts.conditioning, validation, cost)
    parts = replace(parts, scale=chosen.scale, scale_search=chosen, conditioning=way)
    return _tempered(model, parts, validation, options) if options.temperature else parts


def _tempered(model: nn.Module, parts: Parts, validation: list[Pair], options: SearchOptions) -> Parts:
    """The same with the temperature that validation data asks for."""
    assert parts.likelihood is not None
    assert parts.scale_search is not None
    ensemble = _members(model, parts, options.members, key("temperature", operator.index(options.seed)))
    task = recalibrated(ensemble, parts.likelihood, validation)
    search = replace(parts.scale_search, temperature=task.options()["temperature"])
    return replace(parts, likelihood=task, scale_search=search)


def _estimated(
    model: nn.Module, parts: Parts, task: Likelihood, data: list[Pair], refresh: Iterable[Any] | None
) -> Likelihood:
    """The likelihood with what it estimates, such as a noise variance, at the mean network."""
    mean = _members(model, replace(parts, conditioning=None, scale=0.0, refresh=refresh), 1, 0)
    return task.fitted((output, target) for _, _, output, target in mean.iterate(data))


def _members(model: nn.Module, parts: Parts, members: int, seed: int) -> Ensemble:
    """An ensemble of networks of the model's own architecture."""
    weights = parts.weights
    return Ensemble(
        copied(model),
        lambda i: parts.draw(weights, i, seed),
        members,
        moved=bool(parts.layers),
        refresh=parts.refresh,
    )


def _check(model: nn.Module, parts: Parts, validation: Iterable[Any]) -> None:
    """Raise for what no search can work with."""
    if not parts.layers and parts.conditioning is None:
        raise ValueError("this posterior has no noise to scale: nothing was tracked")
    if isinstance(parts.conditioning, WithoutRows):
        raise ValueError(
            "this posterior comes from a file without the training data that its members are conditioned on: "
            "call fit(train, validation) again"
        )
    check_reiterable(validation, "validation")
    if parts.refresh is not None:
        check_reiterable(parts.refresh, "refresh")
    if parts.refresh is None and running_layers(model):
        raise ValueError("the network has BatchNorm: pass refresh=, training data to recompute its statistics on")
