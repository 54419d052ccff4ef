"""The tracked distribution of a network's weights: sample it, scale it, keep it."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import nn

from tradi.covariance import Covariance, covariance_from_options
from tradi.ensemble import Ensemble, State
from tradi.information import information
from tradi.layers import Layer, by_layer
from tradi.scale import LogLikelihood, ScaleChoice, check_search, choose_scale, log_likelihood
from tradi.storage import Packed, fill, model_tensors, read, write
from tradi.weights import copied


class Posterior:
    """A Gaussian over the weights of a network, independent of the run it came from.

    Args:
        model: a network of its own, holding the final weights and everything that was not tracked.
        layers: what was tracked.
        covariance: how noise hangs together inside a layer.
        scale: factor on the noise.
        choice: how the scale was chosen, if it was.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: list[Layer],
        covariance: Covariance,
        scale: float = 1.0,
        choice: ScaleChoice | None = None,
    ) -> None:
        if not 0 <= scale < float("inf"):
            raise ValueError(f"scale must be finite and not negative, got {scale}")
        for layer in layers:
            for name, mean in layer.mean.items():
                if not (mean.isfinite().all() and layer.variance[name].isfinite().all()):
                    raise ValueError(
                        f"what was tracked of {name} is not finite: its weights were NaN or infinite at some step; "
                        "train without divergence (a lower learning rate, gradient clipping) and attach again"
                    )
        for name, parameter in model.named_parameters():
            if not parameter.isfinite().all():
                raise ValueError(f"the weights of {name} are NaN or infinite: training diverged")
        self.model = model.eval()
        self.covariance = covariance
        self.scale = scale
        self.choice = choice
        self._layers = layers

    def __repr__(self) -> str:
        weights = sum(mean.numel() for mean in self.mean.values())
        return f"Posterior({weights:,} weights in {len(self._layers)} layers, {self.covariance}, scale={self.scale:g})"

    @property
    def mean(self) -> State:
        """Tracked means by parameter name."""
        return {name: value for layer in self._layers for name, value in layer.mean.items()}

    @property
    def variance(self) -> State:
        """Tracked variances by parameter name, before scale and shrinkage; the paper's may be negative."""
        return {name: value for layer in self._layers for name, value in layer.variance.items()}

    def sample(self, members: int, seed: int = 0) -> Ensemble:
        """An ensemble of networks drawn from the posterior; member i is a function of the posterior, seed and i alone.

        Where the network has BatchNorm, call `refresh(training data)` on what you get before predicting.
        """
        seed = operator.index(seed)
        with torch.inference_mode(False):
            model = copy.deepcopy(self.model)
        return Ensemble(model, lambda i: self.draw(i, seed), members, moved=bool(self._layers))

    def draw(self, member: int, seed: int = 0) -> State:
        """The weights of one member by parameter name."""
        weights: State = {}
        with self._in_full_precision():
            for layer in self._layers:
                weights |= _as_weights(layer, self._onto(layer, layer.mean, self.scale, member, seed))
        return weights

    def at(self, noise: State) -> State:
        """The weights, by parameter name, that this noise leads to."""
        weights: State = {}
        for layer in self._layers:
            sums = {name: torch.add(mean, noise[name], alpha=self.scale) for name, mean in layer.mean.items()}
            weights |= _as_weights(layer, sums)
        return weights

    def final(self) -> Ensemble:
        """The network as training left it, as an ensemble of one: what everything is compared with."""
        return Ensemble(copy.deepcopy(self.model), lambda _: {}, 1)

    def noise(self, member: int, seed: int = 0) -> State:
        """The noise of one member by parameter name, before the scale."""
        noise: State = {}
        with self._in_full_precision():
            for layer in self._layers:
                nothing = {name: mean.new_zeros(()).expand_as(mean) for name, mean in layer.mean.items()}
                noise |= self._onto(layer, nothing, 1, member, seed)
        return noise

    @contextmanager
    def _in_full_precision(self) -> Iterator[None]:
        """Whatever autocast a member is first asked for in: it would be another one."""
        with ExitStack() as stack:
            for kind in {mean.device.type for layer in self._layers for mean in layer.mean.values()}:
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

    def rescaled(self, scale: float, choice: ScaleChoice | None = None) -> Posterior:
        """The same posterior with another factor on its noise; 0 leaves the mean network alone."""
        return Posterior(self.model, self._layers, self.covariance, scale, choice)

    def with_covariance(self, covariance: Covariance) -> Posterior:
        """The same means and variances with noise that hangs together otherwise."""
        if covariance.joint and not all(layer.covariance for layer in self._layers):
            raise ValueError(f"{covariance!r} needs a covariance that was tracked: attach with covariance=")
        return Posterior(self.model, self._layers, covariance, self.scale)

    def choose_scale(
        self,
        validation: Iterable[Any],
        *,
        refresh: Iterable[Any] | None = None,
        members: int = 10,
        tolerance: float = 0.002,
        seed: int = 0,
        log_prob: LogLikelihood = log_likelihood,
    ) -> Posterior:
        """A posterior with the largest noise scale that validation data does not speak against.

        That is the largest scale whose validation NLL exceeds that of every smaller one by at most `tolerance`, the
        standard error of that excess included: few samples cannot show that noise is harmless. Before the search the
        covariance is told how much the same data says about each weight, if it asks for that (see its `prior_samples`).
        `posterior.choice` says what was chosen, and what it cost. Never pass test data.

        Args:
            validation: (inputs, target) batches that were not trained on.
            refresh: training data for BatchNorm statistics; needed where the network has BatchNorm.
            members: networks a scale is judged by.
            tolerance: how much worse than with less noise is accepted, in nats a sample: 0.002 lowers the likelihood of
                an average sample by a fifth of a per cent, and 0 takes only noise that is shown to help.
            seed: of the members.
            log_prob: per-sample log-likelihood of targets under one member's output; the default takes integer
                targets for classes (negative ones are left out) and a (mean, variance) pair for regression.
        """
        check_search(self, validation, refresh, members, tolerance)
        posterior = self if self.covariance.prior_samples is None else self._informed(validation, log_prob)
        choice = choose_scale(posterior, validation, refresh, members, tolerance, seed, log_prob)
        return posterior.rescaled(choice.scale, choice)

    def _informed(self, data: Iterable[Any], log_prob: LogLikelihood) -> Posterior:
        found = information(self.model, self._layers, data, log_prob)
        layers = [replace(layer, information=known) for layer, known in zip(self._layers, found, strict=True)]
        return Posterior(self.model, layers, self.covariance, self.scale)

    def save(self, path: str | PathLike[str]) -> None:
        """Write tensors and JSON metadata to a safetensors file."""
        write(path, [self.packed()])

    def packed(self) -> Packed:
        """What a file needs to know."""
        joint = {names: matrix for layer in self._layers for names, matrix in layer.covariance.items()}
        tensors = {
            "model": model_tensors(self.model),
            "mean": self.mean,
            "variance": self.variance,
            "covariance": {str(i): matrix for i, matrix in enumerate(joint.values())},
            "deviations": {name: value for layer in self._layers for name, value in layer.deviations.items()},
            "information": {name: value for layer in self._layers for name, value in layer.information.items()},
        }
        about = {
            "covariance": type(self.covariance).__name__,
            "options": self.covariance.options(),
            "scale": self.scale,
            "joint": list(joint),
            "choice": None if self.choice is None else self.choice.packed(),
        }
        return tensors, about

    @staticmethod
    def unpacked(packed: Packed, model: nn.Module) -> Posterior:
        """The posterior that `packed` was made of; the model, of the same architecture, becomes its own."""
        tensors, about = packed
        fill(model, tensors["model"])
        joint = {tuple(names): tensors["covariance"][str(i)] for i, names in enumerate(about["joint"])}
        final = {name: parameter.detach() for name, parameter in model.named_parameters()}
        more = tensors["deviations"], tensors["information"]
        layers = by_layer(final, tensors["mean"], tensors["variance"], joint, *more)
        covariance = covariance_from_options(about["covariance"], about["options"])
        choice = None if about["choice"] is None else ScaleChoice.unpacked(about["choice"])
        return Posterior(model, layers, covariance, about["scale"], choice)


def _as_weights(layer: Layer, values: State) -> State:
    """In the weights' own dtype, which what was tracked need not have."""
    return {name: values[name].to(weight.dtype) for name, weight in layer.weights.items()}


def load_posterior(path: str | PathLike[str], model: nn.Module) -> Posterior:
    """Read a saved posterior; the model gives the architecture, and its own weights stay as they are."""
    packed = read(path, model)
    if len(packed) > 1:
        raise ValueError(f"{path} holds {len(packed)} runs: DeepEnsemble.load reads it")
    return Posterior.unpacked(packed[0], copied(model))
