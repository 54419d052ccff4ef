"""One likelihood per task: all of them by name, and which one a batch of outputs and targets can only mean."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tradi.prediction.class_likelihoods import Bernoulli, Classification, Tokens
from tradi.prediction.likelihood import Likelihood, Prediction, as_target, described, logits_of, per_value, same_shape
from tradi.prediction.number_likelihoods import Gaussian, SquaredError
from tradi.storage.typed import built

__all__ = [
    "KINDS",
    "Bernoulli",
    "Classification",
    "Gaussian",
    "Likelihood",
    "Prediction",
    "SquaredError",
    "Tokens",
    "check_likelihood",
    "infer",
    "likelihood_from_options",
    "likelihood_options",
    "per_value",
    "task_of",
]

KINDS: dict[str, type[Likelihood]] = {
    kind.__name__: kind for kind in (Classification, Gaussian, SquaredError, Bernoulli, Tokens)
}
FORMS = (
    "Classification() takes logits (batch, classes, ...) and whole numbers (batch, ...), Gaussian() a pair (mean, "
    "variance) and numbers, SquaredError() and Bernoulli() outputs and targets of one shape, Tokens() logits (batch, "
    "tokens, vocabulary) and tokens (batch, tokens)"
)


SHARES = (
    "targets of every sample add up to 1, and one-hot or smoothed labels of classes are no labels for a posterior. Of "
    "classes, pass their numbers, target.argmax(1); otherwise "
)


def likelihood_from_options(name: str, options: dict[str, Any]) -> Likelihood:
    """The likelihood that `options()` described.

    Raises:
        ValueError: if this version of tradi does not know it, or it has other options.
    """
    if name not in KINDS:
        raise ValueError(f"unknown likelihood {name!r}: this version of tradi knows {sorted(KINDS)}")
    likelihood: Likelihood = built(KINDS[name], options, f"likelihood {name}")
    return likelihood


def likelihood_options(likelihood: Likelihood | None) -> tuple[str, dict[str, Any]] | None:
    """Name and options, as JSON; None for a likelihood that somebody else wrote, which is theirs to pass again."""
    name = type(likelihood).__name__
    return (name, likelihood.options()) if likelihood is not None and KINDS.get(name) is type(likelihood) else None


def check_likelihood(given: Any) -> None:
    """Raise for what is neither a likelihood nor None.

    Raises:
        TypeError: if it is something else.
    """
    if given is not None and not isinstance(given, Likelihood):
        raise TypeError(f"likelihood must be one of tradi.likelihoods, such as Classification(), got {given!r}")


def infer(output: Any, target: Any) -> Likelihood:
    """The likelihood that one batch of outputs and targets can only mean.

    Raises:
        TypeError: if they could mean several, or none; the message names what to pass as `likelihood=`.
    """
    labels = as_target(target)
    if isinstance(output, tuple | list) and len(output) == 2 and labels.is_floating_point():
        return Gaussian()
    try:
        values = logits_of(output, None)
    except TypeError:
        raise _undecided(output, labels) from None
    whole = not labels.is_floating_point()
    if whole and values.ndim == labels.ndim + 1:
        first = values.shape[:1] + values.shape[2:] == labels.shape and values.shape[1] > 1
        last = values.ndim > 2 and values.shape[:-1] == labels.shape
        if first and not last:
            return Classification()
        if last:
            raise _undecided(output, labels, "Classification(class_axis=-1)", "Tokens()", "Classification()")
    if same_shape(labels, values):
        if _are_shares(labels):
            raise _undecided(output, labels, "Bernoulli()", "SquaredError()", why=SHARES)
        binary = bool(((labels == 0) | (labels == 1)).all())
        if whole and binary:
            return Bernoulli()
        if whole or binary:  # whole numbers to regress on, or a BCE network's 0.0 and 1.0: nobody can tell
            raise _undecided(output, labels, "Bernoulli()", "SquaredError()")
        return SquaredError()
    raise _undecided(output, labels)


def task_of(task: Likelihood | None, output: Any, target: Any) -> Likelihood:
    """The task, inferred where it is not given; targets that do not fit it are inputs that went the wrong way.

    Raises:
        TypeError: if it is not given and cannot be inferred, or the target does not fit.
    """
    if target is None:
        if task is None:
            raise TypeError(
                "it is not known what the outputs mean: fit() finds out and remembers, or pass a likelihood, such as "
                "predict(x, likelihood=tradi.likelihoods.Classification())"
            )
        return task
    try:
        task = infer(output, target) if task is None else task
        per_value(task.fitted([(output, target)]), output, target)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the second part of a batch is taken for the target, which does not fit ({error}): several inputs are "
            "a tuple, as in [((x, mask), target)]"
        ) from error
    return task


def _are_shares(labels: Tensor) -> bool:
    """Whether targets of every sample are positive and add up to 1, as one-hot and smoothed labels do."""
    if labels.ndim < 2 or labels.shape[1] < 2:
        return False
    total = labels.double().sum(1)
    return bool((labels >= 0).all() and torch.allclose(total, torch.ones_like(total), atol=1e-3))


def _undecided(output: Any, target: Tensor, *candidates: str, why: str = "") -> TypeError:
    seen = f"outputs {described(output)} and targets {tuple(target.shape)} of {target.dtype}"
    if not candidates:
        return TypeError(f"{seen} fit none of tradi.likelihoods: {FORMS}; pass likelihood= where one is meant")
    names = " or ".join(f"tradi.likelihoods.{name}" for name in candidates)
    return TypeError(f"{seen} do not say which likelihood is meant: {why}pass likelihood={names}")
