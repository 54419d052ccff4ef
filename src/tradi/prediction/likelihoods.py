"""One likelihood per task: what a network's output says about a target, and what an ensemble's outputs predict."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi.prediction.bernoulli import BernoulliPrediction
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture, gaussian_log_prob

Prediction = ClassPrediction | GaussianMixture | BernoulliPrediction


class Likelihood(ABC):
    """A task: `log_prob` is what scales are searched by, `predict` what `ensemble.predict` returns."""

    @abstractmethod
    def output(self, output: Any) -> Any:
        """The tensor, or pair of tensors, in a network's output that the task is about; caches and losses stay out.

        Raises:
            TypeError: if there is none.
        """

    @abstractmethod
    def log_prob(self, output: Any, target: Any) -> Tensor:
        """Log-likelihood of each target under one network's output, (batch, ...); NaN where a target does not count.

        Raises:
            TypeError: if output or target is not of this task's form.
            ValueError: if their shapes or values do not fit.
        """

    @abstractmethod
    def predict(self, outputs: Any) -> Prediction:
        """The prediction of all members: `outputs` is what `output` gives, with the members' axis first."""

    def fitted(self, data: Iterable[tuple[Any, Any]]) -> Likelihood:
        """The same likelihood with whatever it estimates from (output, target) pairs; most estimate nothing."""
        del data
        return self

    def options(self) -> dict[str, Any]:
        """The options, as JSON: what a file needs to build this object again."""
        return asdict(self)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Classification(Likelihood):
    """One class per sample, pixel or token: logits against whole numbers; negative ones, such as -100, do not count.

    Args:
        class_axis: where the classes are in a network's logits: 1, as in torch (`(batch, classes, ...)`), or -1, as in
            Hugging Face's token classifiers (`(batch, tokens, classes)`).

    Raises:
        ValueError: if `class_axis` is neither.
    """

    class_axis: int = 1

    def __post_init__(self) -> None:
        if self.class_axis not in (1, -1):
            raise ValueError(f"class_axis must be 1 or -1, got {self.class_axis}")

    def output(self, output: Any) -> Tensor:
        return _logits(output, self)

    def log_prob(self, output: Any, target: Any) -> Tensor:
        return _log_prob_of_classes(self.output(output).movedim(self.class_axis, 1), _tensor(target))

    def predict(self, outputs: Any) -> ClassPrediction:
        return ClassPrediction(outputs.movedim(2 if self.class_axis == 1 else -1, 2))


@dataclass(frozen=True)
class Tokens(Likelihood):
    """A causal language model: the logits at each position are about the next token; padding does not count.

    Targets are the tokens themselves, not shifted, with -100 (or any negative number) where one does not count.

    Args:
        padding: number of the padding token, where targets hold it in place of -100.
    """

    padding: int | None = None

    def output(self, output: Any) -> Tensor:
        return _logits(output, self)

    def log_prob(self, output: Any, target: Any) -> Tensor:
        logits, tokens = self.output(output), _tensor(target)
        if logits.ndim != 3 or logits.shape[:2] != tokens.shape or tokens.shape[1] < 2:
            raise ValueError(
                f"Tokens needs logits (batch, tokens, vocabulary) and targets (batch, tokens) of two tokens or more, "
                f"got {tuple(logits.shape)} and {tuple(tokens.shape)}"
            )
        if self.padding is not None:
            tokens = tokens.masked_fill(tokens == self.padding, -100)
        return _log_prob_of_classes(logits[:, :-1].movedim(-1, 1), tokens[:, 1:])

    def predict(self, outputs: Any) -> ClassPrediction:
        return ClassPrediction(outputs.movedim(-1, 2))


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """A number with its own noise: the network returns a pair (mean, variance), both shaped like the target."""

    def output(self, output: Any) -> tuple[Tensor, Tensor]:
        pair = tuple(output.values()) if isinstance(output, Mapping) else output
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
            raise TypeError(
                f"Gaussian needs a network that returns a pair (mean, variance), got {_described(output)}: for a "
                "network that returns the mean alone, pass likelihood=tradi.likelihoods.SquaredError()"
            )
        return pair[0], pair[1]

    def log_prob(self, output: Any, target: Any) -> Tensor:
        mean, variance = self.output(output)
        if mean.shape != variance.shape:
            raise ValueError(f"mean {tuple(mean.shape)} and variance {tuple(variance.shape)} must have one shape")
        values = gaussian_log_prob(_like(target, mean), mean, variance)
        return values.nan_to_num(nan=-math.inf)

    def predict(self, outputs: Any) -> GaussianMixture:
        return GaussianMixture(*outputs)


@dataclass(frozen=True)
class SquaredError(Likelihood):
    r"""A number under noise that is the same for all inputs: a plain regression network, trained by squared error.

    $$ p(y \mid x) = \mathcal N(y; f(x), v), \quad v = \frac1n \sum_i (y_i - f(x_i))^2 $$

    Args:
        variance: v, one number per output; None until `choose_scale` has estimated it on validation data.

    Raises:
        ValueError: if a variance is not positive and finite.
    """

    variance: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.variance is None:
            return
        given: Any = self.variance
        numbers = tuple(float(number) for number in ((given,) if isinstance(given, int | float) else given))
        object.__setattr__(self, "variance", numbers)
        if not numbers or not all(0 < number < math.inf for number in numbers):
            raise ValueError(f"variance must be positive and finite, one number per output, got {self.variance}")

    def output(self, output: Any) -> Tensor:
        return _logits(output, self)

    def fitted(self, data: Iterable[tuple[Any, Any]]) -> SquaredError:
        if self.variance is not None:
            return self
        total: Tensor | None = None
        count = 0
        for output, target in data:
            mean = self.output(output)
            squares = (_like(target, mean) - mean).double().square()
            rows = squares.movedim(1, -1).flatten(0, -2) if squares.ndim > 1 else squares.unsqueeze(1)
            total = rows.sum(0) + (0 if total is None else total)
            count += len(rows)
        if total is None or not total.isfinite().all():
            raise ValueError("the noise variance cannot be estimated: outputs or targets of this data are not finite")
        return SquaredError(tuple((total / count).clamp_min(1e-12).tolist()))

    def log_prob(self, output: Any, target: Any) -> Tensor:
        mean = self.output(output)
        return gaussian_log_prob(_like(target, mean), mean, self._variances(mean, 1)).nan_to_num(nan=-math.inf)

    def predict(self, outputs: Any) -> GaussianMixture:
        return GaussianMixture(outputs, self._variances(outputs, 2))

    def _variances(self, means: Tensor, axis: int) -> Tensor:
        if self.variance is None:
            raise ValueError(
                "the noise variance is not known yet: choose_scale estimates it on validation data, or pass "
                "likelihood=tradi.likelihoods.SquaredError(variance=...)"
            )
        if len(self.variance) == 1:
            return torch.full_like(means, self.variance[0])
        if means.ndim <= axis or means.shape[axis] != len(self.variance):
            raise ValueError(f"{len(self.variance)} noise variances do not fit outputs of shape {tuple(means.shape)}")
        shape = (-1, *[1] * (means.ndim - axis - 1))
        return means.new_tensor(self.variance).reshape(shape).expand_as(means).contiguous()


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Yes or no, for one label or for many that may hold together: one logit per label against targets of 0 and 1."""

    def output(self, output: Any) -> Tensor:
        return _logits(output, self)

    def log_prob(self, output: Any, target: Any) -> Tensor:
        logits = self.output(output)
        labels = _like(target, logits)
        known = (labels == 0) | (labels == 1) | labels.isnan()
        if not known.all():
            raise ValueError(
                f"Bernoulli needs targets of 0 and 1, got {labels[~known].flatten()[0].item():g}: for numbers, pass "
                "likelihood=tradi.likelihoods.SquaredError()"
            )
        signed = torch.where(labels == 1, logits, -logits).float()
        return F.logsigmoid(signed).nan_to_num(nan=-math.inf).masked_fill(labels.isnan(), math.nan)

    def predict(self, outputs: Any) -> BernoulliPrediction:
        return BernoulliPrediction(outputs)


KINDS: dict[str, type[Likelihood]] = {
    kind.__name__: kind for kind in (Classification, Gaussian, SquaredError, Bernoulli, Tokens)
}
CHOICES = ", ".join(f"tradi.likelihoods.{name}()" for name in KINDS)


def likelihood_from_options(name: str, options: dict[str, Any]) -> Likelihood:
    """The likelihood that `options()` described.

    Raises:
        ValueError: if this version of tradi does not know it.
    """
    if name not in KINDS:
        raise ValueError(f"unknown likelihood {name!r}: this version of tradi knows {sorted(KINDS)}")
    return KINDS[name](**options)


def infer(output: Any, target: Any) -> Likelihood:
    """The likelihood that one batch of outputs and targets can only mean.

    Raises:
        TypeError: if they could mean several, or none; the message names what to pass as `likelihood=`.
    """
    labels = _tensor(target)
    if isinstance(output, tuple | list) and len(output) == 2 and labels.is_floating_point():
        return Gaussian()
    try:
        values = _logits(output, None)
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
    if _fits(labels, values):
        binary = bool(((labels == 0) | (labels == 1)).all())
        if whole and binary:
            return Bernoulli()
        if whole or binary:  # whole numbers to regress on, or a BCE network's 0.0 and 1.0: nobody can tell
            raise _undecided(output, labels, "Bernoulli()", "SquaredError()")
        return SquaredError()
    raise _undecided(output, labels)


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


def _logits(output: Any, likelihood: Likelihood | None) -> Tensor:
    """The tensor in an output: itself, or the `logits` of a dict or dataclass such as Hugging Face's."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("logits")
    elif is_dataclass(output):
        found = getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        name = type(likelihood).__name__ if likelihood else "tradi"
        raise TypeError(
            f"{name} needs a network that returns a tensor, or logits in a dict or dataclass, got {_described(output)}"
        )
    return found


def _tensor(target: Any) -> Tensor:
    if target is None:
        raise ValueError("targets are needed: give (inputs, target) batches, got inputs alone")
    try:
        return torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"targets must be tensors or arrays of numbers, got {type(target).__name__}: {error}"
        ) from error


def _fits(target: Tensor, output: Tensor) -> bool:
    """Whether two shapes are one but for a last axis of 1: (n,) and (n, 1)."""
    ours, theirs = ((*t.shape[:-1],) if t.ndim > 1 and t.shape[-1] == 1 else (*t.shape,) for t in (target, output))
    return ours == theirs


def _like(target: Any, output: Tensor) -> Tensor:
    """Targets in the shape and type of outputs: (n,) beside (n, 1) would broadcast to (n, n)."""
    values = _tensor(target)
    if not _fits(values, output):
        raise ValueError(f"targets must have shape {tuple(output.shape)} like the output, got {tuple(values.shape)}")
    return values.to(output.device, output.dtype).reshape(output.shape)


def _log_prob_of_classes(logits: Tensor, labels: Tensor) -> Tensor:
    expected = (*logits.shape[:1], *logits.shape[2:])
    if labels.is_floating_point():
        raise TypeError(f"class targets must be whole numbers, got {labels.dtype}")
    if labels.shape != expected:
        raise ValueError(
            f"class targets must have shape {expected} for logits {tuple(logits.shape)}, got {tuple(labels.shape)}"
        )
    labels = labels.to(logits.device)
    if (labels >= logits.shape[1]).any():
        raise ValueError(
            f"class targets must be below {logits.shape[1]}, got {labels.max().item()}: void ones are negative"
        )
    log_probs = logits.float().log_softmax(1).nan_to_num(nan=-math.inf)
    found = log_probs.gather(1, labels.long().clamp_min(0).unsqueeze(1)).squeeze(1)
    return found.masked_fill(labels < 0, math.nan)


def _undecided(output: Any, target: Tensor, *candidates: str) -> TypeError:
    names = " or ".join(f"tradi.likelihoods.{name}" for name in candidates) or f"one of {CHOICES}"
    return TypeError(
        f"outputs {_described(output)} and targets {tuple(target.shape)} of {target.dtype} do not say which likelihood "
        f"is meant: pass likelihood={names}"
    )


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"{tuple(output.shape)} of {output.dtype}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with {sorted(map(str, output))}"
    return f"a {type(output).__name__}"
