"""Likelihoods of labels: one class of several, the next token, yes or no."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi._torch import tree_leaves
from tradi.prediction.bernoulli import BernoulliPrediction
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.likelihood import Likelihood, as_target, check_temperature, logits_of, target_like


@dataclass(frozen=True)
class Classification(Likelihood):
    """One class per sample, pixel or token: logits against whole numbers; negative ones, such as -100, do not count.

    Classes are numbered from 0. Any negative number is void, as -1 is in tradi's segmentation data and -100 in torch:
    renumber classes that are -1 and 1, or those of -1 are left out.

    Args:
        class_axis: where the classes are in a network's logits: 1, as in torch (`(batch, classes, ...)`), or -1, as in
            Hugging Face's token classifiers (`(batch, tokens, classes)`).
        temperature: what logits are divided by, 1 until `fit(..., temperature=True)` has found another.

    Raises:
        ValueError: if `class_axis` is neither, or the temperature is not positive and finite.
    """

    class_axis: int = 1
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.class_axis not in (1, -1):
            raise ValueError(f"class_axis must be 1 or -1, got {self.class_axis}")

    def output(self, output: Any) -> Tensor:
        return logits_of(output, self)

    def log_prob(self, output: Any, target: Any) -> Tensor:
        logits = _divided(self.output(output), self.temperature).movedim(self.class_axis, 1)
        return _log_prob_of_classes(logits, as_target(target))

    def row_targets(self, target: Any) -> Tensor:
        labels = as_target(target)
        if labels.is_floating_point():
            raise TypeError(f"class targets must be whole numbers, got {labels.dtype}")
        return labels.reshape(len(labels), -1)

    def predict(self, outputs: Any) -> ClassPrediction:
        logits = _divided(outputs, self.temperature)
        if logits.ndim < 3:
            return ClassPrediction(logits)  # which says that the axis of samples is missing
        return ClassPrediction(logits.movedim(2 if self.class_axis == 1 else -1, 2))


@dataclass(frozen=True)
class Tokens(Likelihood):
    """A causal language model: the logits at each position are about the next token; padding does not count.

    Targets are the tokens themselves, not shifted, with -100 (or any negative number) where one does not count.

    Args:
        padding: number of the padding token, where targets hold it in place of -100.
        temperature: as in `Classification`.

    Raises:
        ValueError: if the temperature is not positive and finite.
    """

    padding: int | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def output(self, output: Any) -> Tensor:
        return logits_of(output, self)

    def log_prob(self, output: Any, target: Any) -> Tensor:
        logits, tokens = self.output(output), as_target(target)
        if logits.ndim != 3 or logits.shape[:2] != tokens.shape or tokens.shape[1] < 2:
            raise ValueError(
                f"Tokens needs logits (batch, tokens, vocabulary) and targets (batch, tokens) of two tokens or more, "
                f"got {tuple(logits.shape)} and {tuple(tokens.shape)}"
            )
        return _log_prob_of_classes(
            _divided(logits, self.temperature)[:, :-1].movedim(-1, 1), self._known(tokens)[:, 1:]
        )

    def row_targets(self, target: Any) -> Tensor:
        tokens = self._known(as_target(target))
        return torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], -100)], 1)  # nothing follows the last one

    def check_not_shifted(self, inputs: Any, target: Any) -> None:
        """Raise for targets that are the next tokens already, `x[:, 1:]` beside `x[:, :-1]`.

        Args:
            inputs: of a batch, as the loader gives it.
            target: of the same batch.

        Raises:
            ValueError: if targets are the inputs shifted by one throughout.
        """
        tokens = self._known(as_target(target))
        for given in tree_leaves(inputs):
            if not isinstance(given, Tensor) or given.shape != tokens.shape or tokens.ndim != 2 or tokens.shape[1] < 3:
                continue
            known, here = tokens >= 0, given.to(tokens.device)
            shifted = (tokens == here.roll(-1, 1))[:, :-1][known[:, :-1]]
            if len(shifted) and shifted.all() and (tokens != here)[known].any():
                raise ValueError(
                    "the targets are the inputs shifted by one: pass the inputs themselves as targets; Tokens shifts "
                    "them"
                )

    def predict(self, outputs: Any) -> ClassPrediction:
        logits = _divided(outputs, self.temperature)
        return ClassPrediction(logits if logits.ndim < 3 else logits.movedim(-1, 2))

    def _known(self, tokens: Tensor) -> Tensor:
        if tokens.is_floating_point():
            raise TypeError(f"class targets must be whole numbers, got {tokens.dtype}")
        tokens = tokens.long()  # a uint8 has no -100
        return tokens if self.padding is None else tokens.masked_fill(tokens == self.padding, -100)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Yes or no, for one label or for many that may hold together: one logit per label against targets of 0 and 1.

    Args:
        temperature: as in `Classification`.

    Raises:
        ValueError: if the temperature is not positive and finite.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def output(self, output: Any) -> Tensor:
        return logits_of(output, self)

    def log_prob(self, output: Any, target: Any) -> Tensor:
        logits = _divided(self.output(output), self.temperature)
        labels = target_like(target, logits)
        known = (labels == 0) | (labels == 1) | labels.isnan()
        if not known.all():
            raise ValueError(
                f"Bernoulli needs targets of 0 and 1, got {labels[~known].flatten()[0].item():g}: for numbers, pass "
                "likelihood=tradi.likelihoods.SquaredError()"
            )
        signed = torch.where(labels == 1, logits, -logits).float()
        return F.logsigmoid(signed).nan_to_num(nan=-math.inf).masked_fill(labels.isnan(), math.nan)

    def row_targets(self, target: Any) -> Tensor:
        labels = as_target(target)
        return labels.reshape(len(labels), 1, -1).nan_to_num(nan=-1.0)

    def predict(self, outputs: Any) -> BernoulliPrediction:
        return BernoulliPrediction(_divided(outputs, self.temperature))


def _divided(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1 else logits / temperature


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
            f"class targets must be below {logits.shape[1]}, got {labels.max().item()}; negative ones are ignored"
        )
    log_probs = logits.float().log_softmax(1).nan_to_num(nan=-math.inf)
    found = log_probs.gather(1, labels.long().clamp_min(0).unsqueeze(1)).squeeze(1)
    return found.masked_fill(labels < 0, math.nan)
