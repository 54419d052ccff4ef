"""What every likelihood is, and how it reads outputs and targets."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tradi.prediction.bernoulli import BernoulliPrediction
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture

Prediction = ClassPrediction | GaussianMixture | BernoulliPrediction


class Likelihood(ABC):
    """A task: `log_prob` is what scales are searched by, `predict` what `ensemble.predict` returns."""

    @abstractmethod
    def output(self, output: Any) -> Any:
        """The tensor, or pair of tensors, in a network's output that the task is about; caches and losses stay out.

        Args:
            output: what the network returns.

        Returns:
            what `log_prob` and `predict` take.

        Raises:
            TypeError: if there is none.
        """

    @abstractmethod
    def log_prob(self, output: Any, target: Any) -> Tensor:
        """Log-likelihood of each target under one network's output, (batch, ...); NaN where a target does not count.

        Args:
            output: of one network, for a batch.
            target: of the same batch, as the loader gives it.

        Returns:
            nats, (batch, ...).

        Raises:
            TypeError: if output or target is not of this task's form.
            ValueError: if their shapes or values do not fit.
        """

    @abstractmethod
    def predict(self, outputs: Any) -> Prediction:
        """The prediction of all members: `outputs` is what `output` gives, with the members' axis first.

        Args:
            outputs: (members, batch, ...).

        Returns:
            the prediction object of the task.
        """

    def linear(self, output: Any) -> Tensor:
        """The tensor in a network's output that a last linear layer gives: logits, or the mean.

        Args:
            output: what the network returns.

        Returns:
            the tensor, (batch, outputs, ...).
        """
        found: Tensor = self.output(output)
        return found

    def with_linear(self, output: Any, value: Tensor) -> Any:
        """The output with this in place of what `linear` gives; of the form that `output` gives.

        Args:
            output: what the network returns.
            value: what takes the place of the tensor.

        Returns:
            what `log_prob` takes.
        """
        del output
        return value

    def row_targets(self, target: Any) -> Tensor:
        """Labels, (samples, positions), negative where one does not count: a vector has one position, a text many.

        Args:
            target: of a batch, as the loader gives it.

        Returns:
            whole numbers, (samples, positions).

        Raises:
            TypeError: if the task is not about labels.
        """
        del target
        raise TypeError(f"{self!r} is not about labels")

    def tempered(self, factor: float) -> Likelihood:
        """The same likelihood, less sure by a factor: on logits one over it, on noise variances the factor itself.

        Args:
            factor: above 0; 1 changes nothing.

        Returns:
            a new likelihood; this one is unchanged.
        """
        return replace(self, temperature=self.temperature * factor)  # type: ignore[type-var, attr-defined]

    def fitted(self, data: Iterable[tuple[Any, Any]]) -> Likelihood:
        """The same likelihood with whatever it estimates from (output, target) pairs; most estimate nothing.

        Args:
            data: pairs of output and target, batch by batch.

        Returns:
            a likelihood; this one is unchanged.

        Raises:
            ValueError: if it cannot be estimated from them.
        """
        del data
        return self

    def options(self) -> dict[str, Any]:
        """The options, as JSON: what a file needs to build this object again."""
        return asdict(self)  # type: ignore[call-overload]


def check_temperature(temperature: float) -> None:
    """Raise for what is no factor.

    Raises:
        ValueError: if it is not positive and finite.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")


def per_value(likelihood: Likelihood, output: Any, target: Any) -> Tensor:
    """Log-likelihoods of a batch, one or more per sample.

    Raises:
        ValueError: if there are no targets, or the likelihood gives a single number.
    """
    if target is None:
        raise ValueError("targets are needed: give (inputs, target) batches, got inputs alone")
    values = likelihood.log_prob(output, target)
    if values.ndim == 0:
        raise ValueError("log_prob must give a value for every sample, got a single number")
    return values


def logits_of(output: Any, likelihood: Likelihood | None) -> Tensor:
    """The tensor in an output: itself, or the `logits` of a dict or dataclass such as Hugging Face's."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif is_dataclass(output):
        found = getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        name = type(likelihood).__name__ if likelihood else "tradi"
        raise TypeError(
            f"{name} needs a network that returns a tensor, or logits in a dict or dataclass, got {described(output)}"
        )
    return found


def as_target(target: Any) -> Tensor:
    """Targets as a tensor, or an error that says what they are instead."""
    if target is None:
        raise ValueError("targets are needed: give (inputs, target) batches, got inputs alone")
    try:
        return torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"targets must be tensors or arrays of numbers, got {type(target).__name__}: {error}"
        ) from error


def same_shape(target: Tensor, output: Tensor) -> bool:
    """Whether two shapes are one but for a last axis of 1: (n,) and (n, 1)."""
    ours, theirs = ((*t.shape[:-1],) if t.ndim > 1 and t.shape[-1] == 1 else (*t.shape,) for t in (target, output))
    return ours == theirs


def target_like(target: Any, output: Tensor) -> Tensor:
    """Targets in the shape and type of outputs: (n,) beside (n, 1) would broadcast to (n, n)."""
    values = as_target(target)
    if not same_shape(values, output):
        raise ValueError(f"targets must have shape {tuple(output.shape)} like the output, got {tuple(values.shape)}")
    return values.to(output.device, output.dtype).reshape(output.shape)


def described(output: Any) -> str:
    """What an output is, for a message."""
    if isinstance(output, Tensor):
        return f"{tuple(output.shape)} of {output.dtype}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with {sorted(map(str, output))}"
    return f"a {type(output).__name__}"
