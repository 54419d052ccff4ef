"""The tracked distribution of a network's weights: condition it, scale it, sample it, keep it."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import nn

from tradi.ensemble.batches import check_reiterable
from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import Ensemble
from tradi.ensemble.files import Packed, read, write
from tradi.posterior import fitting, packing
from tradi.posterior.conditioning import Conditioning
from tradi.posterior.conditions import kept, some_samples
from tradi.posterior.covariance import Covariance
from tradi.posterior.distribution import State, check_finite
from tradi.posterior.fitting import SearchOptions
from tradi.posterior.layers import Layer
from tradi.posterior.parts import Parts
from tradi.posterior.scale_search import ScaleSearch
from tradi.posterior.without_rows import WithoutRows
from tradi.prediction.likelihoods import Likelihood


class Posterior:
    """A Gaussian over the weights of a network, independent of the run it came from.

    Args:
        model: a network of its own, holding the final weights and everything that was not tracked.
        layers: what was tracked.
        covariance: how noise is correlated within a layer. None leaves it to `condition`, by the task: `Activations`
            for labels, `Independent` for numbers.
        scale: factor on the noise.
        scale_search: how the scale was chosen, if it was.
        likelihood: what outputs mean, if that is known.
        refresh: training data that members recompute BatchNorm's statistics on, if that is known; it is not saved.
        conditioning: how the training data enters the members' weights, if it does.

    Raises:
        ValueError: if the scale is negative, or a tracked or trained weight is not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: list[Layer],
        covariance: Covariance | None,
        scale: float = 1.0,
        *,
        scale_search: ScaleSearch | None = None,
        likelihood: Likelihood | None = None,
        refresh: Iterable[Any] | None = None,
        conditioning: Conditioning | None = None,
    ) -> None:
        if not 0 <= scale < float("inf"):
            raise ValueError(f"scale must be finite and not negative, got {scale}")
        self._parts = Parts(layers, covariance, scale, scale_search, likelihood, refresh, conditioning)
        self._weights = self._parts.weights
        check_finite(model)
        self.model = model.eval()
        self.covariance = covariance
        self.scale = scale
        self.scale_search = scale_search
        self.likelihood = likelihood
        self.refresh = refresh
        self.conditioning = conditioning
        self._layers = layers

    def __repr__(self) -> str:
        weights = sum(mean.numel() for mean in self.mean.values())
        chosen = "not chosen: see fit" if self.scale_search is None else self.scale_search.where
        parts = [
            f"{weights:,} weights in {len(self._layers)} layers",
            f"{self.covariance or 'noise not chosen: see fit'}",
        ]
        parts.append(f"scale {self.scale:g} ({chosen})")
        parts.append(f"likelihood {self.likelihood!r}")
        parts.append("not conditioned: see fit" if self.conditioning is None else str(self.conditioning))
        if running_layers(self.model):
            parts.append(f"BatchNorm {'is refreshed by members' if self.refresh is not None else 'needs refresh='}")
        return f"Posterior({', '.join(parts)})"

    @property
    def mean(self) -> State:
        """Tracked means by parameter name."""
        return self._weights.mean

    @property
    def variance(self) -> State:
        """Tracked variances by parameter name, before scale and shrinkage; the paper's may be negative."""
        return self._weights.variance

    def sample(
        self,
        members: int,
        seed: int = 0,
        *,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
    ) -> Ensemble:
        """An ensemble of networks drawn from the posterior; member i is a function of the posterior, seed and i alone.

        Args:
            members: how many.
            seed: of the draws; `sample(5)` is the beginning of `sample(20)`.
            refresh: training data on which members recompute BatchNorm's statistics at first use; by default what
                `condition` or `choose_scale` was given. Of a loaded posterior that was conditioned for numbers, all
                data that members are conditioned on: see `reconditioned`.
            likelihood: what outputs mean; by default what `condition` or `choose_scale` found.

        Raises:
            ValueError: if `members` is below 1, or members depend on training data that is not at hand.
        """
        seed = operator.index(seed)
        posterior = self if refresh is None else self.reconditioned(refresh)
        return Ensemble(
            posterior.architecture(),
            lambda i: posterior.draw(i, seed),
            members,
            moved=posterior.moved,
            refresh=self.refresh if refresh is None else refresh,
            likelihood=likelihood or self.likelihood,
        )

    def reconditioned(self, train: Iterable[Any]) -> Posterior:
        """After loading: the same posterior, whose members are conditioned on data that the file does not hold.

        Only members that predict numbers depend on it; any other posterior is returned as it is. The same batches give
        the same members, up to rounding. What `fit` was given for validation joined the training data: pass both,
        `[*train_loader, *validation_loader]`. Of each, `fit` kept what `condition` and `choose_scale` say.

        Args:
            train: (inputs, target) batches.

        Raises:
            TypeError, ValueError: if these are no such batches.
        """
        if not isinstance(self.conditioning, WithoutRows):
            return self
        check_reiterable(train, "refresh")
        data, total = kept(train, "refresh", fitting.like(self.model))
        way = self.conditioning.conditioned_on(data, total, self.model, self.mean)
        return self._changed(conditioning=way, refresh=some_samples(data))

    def architecture(self) -> nn.Module:
        """A module that members run in, holding what they do not draw."""
        with torch.inference_mode(False):
            model = copy.deepcopy(self.model)
        return model if self.conditioning is None else self.conditioning.module(model)

    @property
    def moved(self) -> bool:
        """Whether members have other weights than BatchNorm's statistics belong to, and do not refresh them."""
        return bool(self._layers) and not (self.conditioning is not None and self.conditioning.refreshes)

    def draw(self, member: int, seed: int = 0) -> State:
        """What one member holds in place of the model's own, by name."""
        return self._parts.draw(self._weights, member, seed)

    def final(self) -> Ensemble:
        """The network as training left it, as an ensemble of one: what everything is compared with."""
        return Ensemble(copy.deepcopy(self.model), lambda _: {}, 1, likelihood=self.likelihood)

    def noise(self, member: int, seed: int = 0) -> State:
        """The noise of one member by parameter name, before the scale."""
        return self._weights.noise(member, seed)

    def rescaled(self, scale: float) -> Posterior:
        """The same posterior with another factor on its noise; 0 leaves the mean network, and what was conditioned."""
        way = None if self.conditioning is None else self.conditioning.rescaled(scale)
        return self._changed(scale=scale, scale_search=None, conditioning=way)

    def with_covariance(self, covariance: Covariance) -> Posterior:
        """The same means and variances with noise that is correlated otherwise.

        Raises:
            ValueError: if the covariance had to be tracked and was not.
        """
        if covariance.joint and not all(layer.covariance for layer in self._layers):
            raise ValueError(f"{covariance!r} needs a covariance that was tracked: attach with covariance=")
        return self._changed(covariance=covariance, scale_search=None)

    def _changed(self, **changes: Any) -> Posterior:
        return Posterior(self.model, **vars(replace(self._parts, **changes)))

    def fit(
        self,
        train: Iterable[Any],
        validation: Iterable[Any] | None = None,
        *,
        likelihood: Likelihood | None = None,
        layer: str | None = None,
        temperature: bool = False,
        passes: int | None = None,
        seed: int = 0,
    ) -> Posterior:
        """What comes after training: `condition` on the training data, then `choose_scale` on validation data.

        Args:
            train: (inputs, target) batches that were trained on, as a loader or a list.
            validation: batches that were not trained on, in a fixed order. Without them the noise is what the training
                data admits, which errs towards quiet.
            likelihood: as in `choose_scale`.
            layer: as in `condition`.
            temperature: as in `choose_scale`.
            passes: as in `choose_scale`.
            seed: of the search's own random stream.

        Raises:
            TypeError, ValueError: as `condition` and `choose_scale` do.
        """
        options = SearchOptions(temperature=temperature, passes=passes, seed=seed)
        parts = fitting.condition(self.model, self._parts, train, likelihood, layer)
        return Posterior(self.model, **vars(fitting.choose_scale(self.model, parts, validation, options)))

    def condition(
        self, train: Iterable[Any], *, likelihood: Likelihood | None = None, layer: str | None = None
    ) -> Posterior:
        """A posterior whose members agree with the training data: the filter's measurement update.

        The last linear layer is conditioned in closed form: for numbers at every member's own features, by Bayesian
        linear regression with the network's own noise; for labels by Laplace's approximation at the trained network's.
        Of a small network that predicts numbers, all weights are conditioned, through its derivatives. Prior precisions
        have the highest evidence. See docs/method.md.

        The loader is read once. At most 20,000 samples of it are kept, evenly spread over it; the rest counts as if
        it were like them.

        Args:
            train: (inputs, target) batches that were trained on.
            likelihood: what outputs mean; inferred where outputs and targets leave no doubt, and remembered.
            layer: name of the last linear layer, where the network's output is not its output as it is.

        Raises:
            TypeError: if the loader or the likelihood is not one, or the likelihood cannot be inferred.
            ValueError: if there are no batches, or the network does not end in a linear layer.
        """
        return Posterior(self.model, **vars(fitting.condition(self.model, self._parts, train, likelihood, layer)))

    def choose_scale(
        self,
        validation: Iterable[Any],
        *,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
        members: int = 5,
        tolerance: float = 0.001,
        temperature: bool = False,
        passes: int | None = None,
        seed: int = 0,
    ) -> Posterior:
        """A posterior whose noise is as loud as validation data admits.

        For labels that is the largest scale whose validation NLL exceeds that of every smaller one by at most
        `tolerance`, the standard error of that excess included: few samples cannot show that noise is harmless. If the
        head was conditioned, the factor on its own noise is chosen first. For numbers, where members are conditioned,
        it is the scale with the lowest NLL, and one factor on the noise variance is estimated with it.
        `posterior.scale_search` says what was found, and what it cost. Never pass test data.

        Args:
            validation: (inputs, target) batches that were not trained on, in a fixed order.
            refresh: training data for BatchNorm statistics; needed where the network has BatchNorm, and remembered.
                `condition` remembers some by itself.
            likelihood: what outputs mean; inferred from outputs and targets where these leave no doubt, and remembered.
            members: networks that a scale is judged by; they are never among those that `sample` draws.
            tolerance: how much worse than with less noise is accepted, in nats per sample: 0.001 lowers the likelihood
                of an average sample by a tenth of a per cent, and 0 takes only noise that is shown to help.
            temperature: divide logits by the one number that has the lowest validation NLL.
            passes: over the validation data, at the most; the search ends early there.
            seed: of the search's own random stream.

        Raises:
            TypeError: if a loader or the likelihood is not one, or the likelihood cannot be inferred.
            ValueError: if nothing was tracked, options are out of range, or no scale has a finite NLL.
        """
        options = SearchOptions(members, tolerance, temperature, passes, seed)
        parts = self._parts if refresh is None else replace(self._parts, refresh=refresh)
        return Posterior(self.model, **vars(fitting.choose_scale(self.model, parts, validation, options, likelihood)))

    def save(self, path: str | PathLike[str]) -> None:
        """Write tensors and JSON metadata to a safetensors file; it never holds data.

        Conditioned for labels, it is complete. Conditioned for numbers, it needs the training data again after loading
        (see `sample`); `sample(20).save(path)` writes members that need none.
        """
        write(path, "a posterior", [self.packed()])

    def packed(self) -> Packed:
        """What a file needs to know."""
        return packing.packed(self.model, self._parts)

    @staticmethod
    def unpacked(packed: Packed, model: nn.Module) -> Posterior:
        """The posterior that `packed` was made of; the model, of the same architecture, becomes its own."""
        return Posterior(model, **vars(packing.unpacked(packed, model)))


def load_posterior(path: str | PathLike[str], model: nn.Module) -> Posterior:
    """Read a saved posterior; the model gives the architecture, and its own weights stay as they are.

    Members are those of the posterior that was saved. Where they depend on data, pass it again: `sample(20,
    refresh=training_batches)`, for BatchNorm's statistics and for members that predict numbers and were conditioned.

    Raises:
        ValueError: if the file is not one posterior, or of another architecture.
    """
    packed = read(path, "a posterior", model)
    if len(packed) > 1:
        raise ValueError(f"{path} holds {len(packed)} runs: DeepEnsemble.load reads it")
    return Posterior.unpacked(packed[0], copied(model))
