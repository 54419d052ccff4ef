"""What `condition` decides: on which rows, which layer, and how."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tradi.ensemble.batches import Pair, batches, bytes_in, evenly, every_kth, naming_types, samples_in, thinned
from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.copying import sharing
from tradi.ensemble.joining import concatenated, joined
from tradi.posterior.activations import SAMPLES, gatherings
from tradi.posterior.conditioning import HeadRegression, Regression, Replay
from tradi.posterior.head import Seen, State, watched
from tradi.posterior.laplace import LaplaceHead
from tradi.posterior.layers import Layer, Moments
from tradi.posterior.linearised import NetworkRegression
from tradi.posterior.rows import is_linear
from tradi.prediction.class_likelihoods import Bernoulli, Classification, Tokens
from tradi.prediction.likelihood import Likelihood
from tradi.prediction.likelihoods import infer
from tradi.prediction.number_likelihoods import Gaussian, SquaredError

ROWS = 20_000  # training samples that are kept to condition on, at the most, evenly spread over the loader
VALIDATED = 2048  # validation samples that scales are judged on, at the most, evenly spread over the loader
KEPT_BYTES = 1 << 29  # and the size of either
REFRESHED = 512  # training samples that BatchNorm's statistics are recomputed on, at the most, likewise spread
REFRESHED_BYTES = 1 << 26  # and their size
LOOKED_AT = 10  # batches, at the most, to tell what outputs and targets mean
SMALL = 1 << 24  # bytes of a square matrix over all weights, below which all of them are conditioned: 1,448 weights


def kept(loader: Iterable[Any], argument: str, like: Tensor, samples: int = ROWS) -> tuple[list[Pair], int]:
    """The samples that fit in memory, and how many there are in all; the loader is read once.

    Raises:
        ValueError: if there are none.
    """
    # By its inputs: a target may begin with an image that has no objects.
    filled = (batch for batch in batches(loader, argument, like) if samples_in((batch[0], None)))
    data, total = evenly(filled, samples, KEPT_BYTES)
    if not data:
        raise ValueError(f"all batches of {argument} are empty")
    return data, total


def some_samples(data: list[Pair]) -> list[Pair]:
    """Samples to refresh BatchNorm on, evenly spread over the data: whatever its order, all of it is represented."""
    size, most = sum(map(samples_in, data)), sum(map(bytes_in, data))
    step = max(-(-size // REFRESHED), -(-most // REFRESHED_BYTES))
    some = [every_kth(batch, step) for batch in data]
    if step > 1:
        with suppress(TypeError):  # samples that cannot be joined stay in small batches
            some = [joined(concatenated, some)]
    return [batch for batch in some if samples_in(batch) > 1] or data  # BatchNorm cannot see a batch of one sample


def first_samples(data: Iterable[Pair], most: int) -> list[Pair]:
    """The first batches that have so many samples together, or all of them; no more is read."""
    found: list[Pair] = []
    count = size = 0
    for batch in data:
        found.append(batch)
        count, size = count + samples_in(batch), size + bytes_in(batch)
        if count >= most or size >= KEPT_BYTES:
            break
    return found


def inferred(replay: Replay, given: Likelihood | None) -> Likelihood:
    """The likelihood, from the network's outputs and the targets where it is not given."""
    found, problem = given, None
    linear = {name: module for name, module in replay.modules.items() if is_linear(module)}
    for inputs, target in replay.data[:LOOKED_AT]:  # a batch of zeros and ones alone leaves open what targets are
        args, kwargs = replay.caller.arguments(inputs, target)
        like = next(replay.model.parameters())
        with naming_types(inputs, like), replay.holding({}), watched(linear) as seen, torch.no_grad():
            output = replay.model(*args, **kwargs)
        try:
            found = found or infer(output, target)
        except TypeError as error:
            problem = problem or error
            continue
        _check_logits(found, output, seen)
        if isinstance(found, Tokens):
            found.check_not_shifted(inputs, target)
        return found
    assert problem is not None
    raise problem


def _check_logits(likelihood: Likelihood, output: Any, seen: dict[str, Seen]) -> None:
    """Raise for a classifier that returns probabilities: a softmax of them would be all but uniform."""
    if isinstance(likelihood, Bernoulli):
        probabilities = likelihood.output(output).float().reshape(-1)
        before = [one.output.float().reshape(-1) for one in seen.values() if one.output.numel() == len(probabilities)]
        if any(torch.allclose(logits.sigmoid(), probabilities, atol=1e-6) for logits in before):
            raise ValueError("the network's outputs are probabilities, and logits are needed: leave out its sigmoid")
    if not isinstance(likelihood, Classification):
        return
    values = likelihood.output(output).movedim(likelihood.class_axis, 1).float()
    if values.min() >= 0 and torch.allclose(values.sum(1), torch.ones(()).to(values), atol=1e-3):
        raise ValueError(
            "the network's outputs are probabilities, and logits are needed: leave out its softmax; log_softmax is fine"
        )


def conditioned(
    replay: Replay, likelihood: Likelihood, centre: State, layer: str | None
) -> LaplaceHead | list[Regression]:
    """How this network is conditioned: for labels by Laplace, for numbers in one or two ways, all weights first.

    Regressions have the prior precisions of the highest evidence at the centre.

    Args:
        replay: the trained network and the training rows.
        likelihood: of the task.
        centre: what was tracked of the weights, by parameter name.
        layer: name of the head, where the user says it.

    Raises:
        TypeError: if the likelihood is none of tradi's own.
        ValueError: if there is no linear layer at the end.
    """
    head = replay.head(likelihood, layer)
    if isinstance(likelihood, Classification | Tokens | Bernoulli):
        return LaplaceHead.of(replay, head, likelihood)
    if not isinstance(likelihood, Gaussian | SquaredError):
        raise TypeError(f"{likelihood!r} cannot be conditioned: choose the scale alone, with choose_scale(validation)")
    replay = replay.at_once()
    centre = {name: value.to(replay.own[name].dtype) for name, value in centre.items()}
    last = HeadRegression(replay, head, likelihood, centre)
    regressions: list[Regression] = [last.with_precision_at(centre)]
    weights = sum(map(replay.size_of, centre))
    if not centre.keys() <= last.own_names and 8 * weights * weights <= SMALL and not running_layers(replay.model):
        replay.check_all_weights()
        try:
            whole = NetworkRegression(replay, head, likelihood, centre).with_precision_at(centre)
            args, kwargs = replay.caller.arguments(*replay.data[0])
            with torch.no_grad():
                whole.module(sharing(replay.model))(*args, **kwargs)
            regressions.insert(0, whole)
        except Exception as error:  # whatever torch.func says of an operation that it cannot differentiate both ways
            warnings.warn(f"only the last layer is conditioned, as all weights cannot be: {error}", stacklevel=4)
    return regressions


def with_moments(replay: Replay, layers: list[Layer]) -> list[Layer]:
    """The layers with second moments of their inputs, from one forward pass over some of the training inputs.

    Where a prior brought those of an earlier training, both count as much.
    """
    replay = replay.over(thinned(replay.data, SAMPLES))
    found = gatherings(replay.modules, layers)
    for number, (_, _, seen) in zip(replay.turns, replay.run({}, found), strict=True):
        for name, here in seen.items():
            found[name].add(here, number)
    moments = {name: one.moments(replay.added_up) for name, one in found.items()}
    return [_joined(layer, moments[layer.name]) if layer.name in moments else layer for layer in layers]


def _joined(layer: Layer, own: Moments | None) -> Layer:
    return replace(layer, moments=layer.before if own is None else own.joined(layer.before))
