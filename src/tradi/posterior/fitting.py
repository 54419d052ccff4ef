"""What comes after training: condition members on the training data, then choose how loud their noise is."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tradi.ensemble.batches import Pair, batches, check_reiterable, samples_in
from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior import loudness
from tradi.posterior.activations import Activations
from tradi.posterior.conditions import (
    REFRESHED,
    VALIDATED,
    conditioned,
    first_samples,
    inferred,
    some_samples,
    with_moments,
)
from tradi.posterior.covariance import Independent
from tradi.posterior.distribution import State
from tradi.posterior.label_search import LabelSearch, SearchedRun
from tradi.posterior.laplace import LaplaceHead
from tradi.posterior.loudness import Averaged, Component, NumbersRun
from tradi.posterior.parts import Parts
from tradi.posterior.randomness import key
from tradi.posterior.recalibration import recalibrated
from tradi.posterior.runner import Runner, in_place_of_first, like
from tradi.posterior.scale_search import Cost
from tradi.posterior.without_rows import WithoutRows
from tradi.prediction.likelihood import as_target
from tradi.prediction.likelihoods import Likelihood, check_likelihood


class Run(NamedTuple):
    """A trained network, and what its posterior is made of."""

    runner: Runner
    parts: Parts


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


def condition(run: Run, train: Iterable[Any], likelihood: Likelihood | None, layer: str | None) -> Parts:
    """See `Posterior.condition`."""
    runner, parts = run
    check_reiterable(train, "train")
    check_likelihood(likelihood or parts.likelihood)
    data, total = runner.kept(train, "train")
    refresh, replay = some_samples(data), runner.replay(data, total)
    task = _estimated(run, inferred(replay, likelihood or parts.likelihood), data, refresh)
    ways = conditioned(replay, task, parts.weights.mean, layer)
    covariance = parts.covariance
    if covariance is None:
        covariance = Activations() if isinstance(ways, LaplaceHead) else Independent()
    way = ways if isinstance(ways, LaplaceHead) else Averaged((Component(1.0, parts.scale, ways[0]),), tuple(ways))
    layers = with_moments(replay, parts.layers) if covariance.needs_moments else parts.layers
    return Parts(layers, covariance, parts.scale, None, task, refresh, way)


def choose_scale(
    runs: Sequence[Run],
    validation: Iterable[Any] | None,
    options: SearchOptions,
    likelihood: Likelihood | None = None,
) -> list[Parts]:
    """See `Posterior.choose_scale`; without validation data, the training data decides.

    Args:
        runs: trained networks of one architecture, with what was tracked of each. They are judged together, and get
            one scale, or for numbers the same average over scales.
        validation: as in `Posterior.choose_scale`; None where there is none.
        options: of the search.
        likelihood: as in `Posterior.choose_scale`.

    Raises:
        TypeError, ValueError: as `Posterior.choose_scale` does, or if only some runs are conditioned.
    """
    cost, first = Cost(options.passes), runs[0].parts
    numbers = isinstance(first.conditioning, Averaged)
    if len({type(run.parts.conditioning) for run in runs}) > 1:
        raise ValueError("only some runs are conditioned: call fit(train, validation), which conditions all of them")
    if validation is None:
        warnings.warn(
            "without validation data the noise is chosen on the training data, and error bars are too small where the "
            "network overfits: pass data that was not trained on",
            stacklevel=4,
        )
    if validation is None and numbers:
        return _numbers_searched(runs, [], options, cost)
    given = first.refresh if validation is None else validation
    assert given is not None
    for run in runs:
        _check(run, given)
    pairs, _ = runs[0].runner.kept(given, "validation", VALIDATED)
    check_likelihood(likelihood)
    if isinstance(first.conditioning, Averaged):
        _check_numbers(first.conditioning, pairs)
    ready = [_ready(run, pairs, likelihood) for run in runs]
    found = _numbers_searched(ready, pairs, options, cost) if numbers else _labels_searched(ready, pairs, options, cost)
    samples = 0 if validation is None else sum(map(samples_in, pairs))
    return [_with_search(parts, samples=samples) for parts in found]


def _ready(run: Run, validation: list[Pair], likelihood: Likelihood | None) -> Run:
    """The run with some data for BatchNorm's statistics, and a likelihood that is estimated on validation data."""
    runner, parts = run
    refresh = parts.refresh
    if refresh is not None:
        refresh = first_samples(batches(refresh, "refresh", like(runner.model)), REFRESHED)
    task = inferred(runner.replay(validation, 0), likelihood or parts.likelihood)
    task = _estimated(run, task, validation, refresh)
    return Run(runner, replace(parts, likelihood=task, refresh=refresh))


def _with_search(parts: Parts, **changes: Any) -> Parts:
    assert parts.scale_search is not None
    return replace(parts, scale_search=replace(parts.scale_search, **changes))


def _numbers_searched(runs: Sequence[Run], validation: list[Pair], options: SearchOptions, cost: Cost) -> list[Parts]:
    searched = []
    for runner, parts in runs:
        assert isinstance(parts.conditioning, Averaged)
        searched.append(NumbersRun(runner, parts.weights, parts.conditioning.ways))
    found, search = loudness.choose(searched, validation, options.members, cost, options.seed)
    noise = [sum(one.share * (one.conditioning.noise or 1.0) for one in averaged.components) for averaged in found]
    task = searched[0].ways[0].likelihood.tempered(sum(noise) / len(noise))  # one for the members of all runs
    return [
        replace(run.parts, scale=search.scale, scale_search=search, conditioning=own, likelihood=task)
        for run, own in zip(runs, found, strict=True)
    ]


def _labels_searched(runs: Sequence[Run], validation: list[Pair], options: SearchOptions, cost: Cost) -> list[Parts]:
    task = runs[0].parts.likelihood
    assert task is not None
    runs = [_with_fisher(run, validation, task) for run in runs]
    searched = [SearchedRun(run.runner, run.parts.weights, run.parts.conditioning) for run in runs]
    search = LabelSearch(searched, task, runs[0].parts.refresh, options.members, options.tolerance, options.seed)
    ways, chosen, trained = search.choose(validation, cost)
    done = [
        replace(run.parts, scale=chosen.scale, scale_search=chosen, conditioning=way)
        for run, way in zip(runs, ways, strict=True)
    ]
    if trained:
        done = [replace(parts, layers=parts.weights.around_trained().layers) for parts in done]
    if not options.temperature:
        return done
    ready = [Run(run.runner, parts) for run, parts in zip(runs, done, strict=True)]
    ensemble = _members(ready, options.members, key("temperature", operator.index(options.seed)))
    task = recalibrated(ensemble, task, validation)
    return [_with_search(replace(parts, likelihood=task), temperature=task.options()["temperature"]) for parts in done]


def _with_fisher(run: Run, validation: list[Pair], task: Likelihood) -> Run:
    parts = run.parts
    if parts.covariance is None or parts.covariance.prior_samples is None:
        return run
    found = run.runner.fisher(parts.layers, validation, task)
    layers = [replace(one, fisher=own) for one, own in zip(parts.layers, found, strict=True)]
    return Run(run.runner, replace(parts, layers=layers))


def _estimated(run: Run, task: Likelihood, data: list[Pair], refresh: Iterable[Any] | None) -> Likelihood:
    """The likelihood with what it estimates, such as a noise variance, at the mean network."""
    mean = _members([run._replace(parts=replace(run.parts, conditioning=None, scale=0.0, refresh=refresh))], 1, 0)
    return task.fitted((output, target) for _, _, output, target in mean.iterate(data))


def _members(runs: Sequence[Run], members: int, seed: int) -> Ensemble:
    """An ensemble of networks of the runs' own architecture, from every run in turn."""
    trained, weights = in_place_of_first([run.runner for run in runs]), [run.parts.weights for run in runs]

    def draw(i: int) -> State:
        number = i % len(runs)
        return trained[number] | runs[number].parts.draw(weights[number], i, seed)

    return runs[0].runner.ensemble(
        draw,
        max(members, len(runs)),
        trained=trained,
        moved=any(run.parts.layers for run in runs),
        refresh=runs[0].parts.refresh,
    )


def _check_numbers(conditioning: Averaged, validation: list[Pair]) -> None:
    """Raise for whole numbers, perhaps of classes, beside training targets that are not: they would join these."""
    (_, trained), *_ = conditioning.ways[0].replay.data
    for _, target in validation:
        if as_target(trained).is_floating_point() and target is not None and not as_target(target).is_floating_point():
            raise TypeError(
                f"validation targets are {as_target(target).dtype}, and training targets are "
                f"{as_target(trained).dtype}: pass the same for both, validation targets by .float() if these are "
                "numbers"
            )


def _check(run: Run, validation: Iterable[Any]) -> None:
    """Raise for what no search can work with."""
    runner, parts = run
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
    if parts.refresh is None and running_layers(runner.model):
        raise ValueError("the network has BatchNorm: pass refresh=, training data to recompute its statistics on")
