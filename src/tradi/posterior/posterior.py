"""The tracked distribution of a network's weights: condition it, scale it, sample it, keep it."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.batches import Pair, batches, check_reiterable, evenly
from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior import loudness
from tradi.posterior.activations import Activations
from tradi.posterior.conditioning import Conditioning
from tradi.posterior.conditions import (
    KEPT_BYTES,
    REFRESHED,
    VALIDATED,
    conditioned,
    first_samples,
    inferred,
    kept,
    with_moments,
)
from tradi.posterior.covariance import Covariance, Independent, covariance_from_options
from tradi.posterior.distribution import State, WeightDistribution, check_finite
from tradi.posterior.files import Packed, fill, model_tensors, read, write
from tradi.posterior.fisher import fisher
from tradi.posterior.label_search import LabelSearch
from tradi.posterior.laplace import LaplaceHead
from tradi.posterior.layers import Layer, by_layer
from tradi.posterior.loudness import Averaged, Component
from tradi.posterior.randomness import key
from tradi.posterior.recalibration import recalibrated
from tradi.posterior.scale_search import Cost, ScaleSearch
from tradi.prediction.likelihoods import KINDS, Likelihood, likelihood_from_options


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
        self._weights = WeightDistribution(layers, covariance or Independent())
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
        chosen = "chosen on validation data" if self.scale_search else "not chosen: see fit"
        parts = [f"{weights:,} weights in {len(self._layers)} layers", repr(self.covariance or "noise by task")]
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
                `condition` or `choose_scale` was given.
            likelihood: what outputs mean; by default what `condition` or `choose_scale` found.

        Raises:
            ValueError: if `members` is below 1.
        """
        seed, way = operator.index(seed), self.conditioning
        with torch.inference_mode(False):
            model = copy.deepcopy(self.model)
        return Ensemble(
            model if way is None else way.module(model),
            lambda i: self.draw(i, seed),
            members,
            moved=bool(self._layers) and not isinstance(way, Averaged),  # which refreshes by itself
            refresh=self.refresh if refresh is None else refresh,
            likelihood=likelihood or self.likelihood,
        )

    def draw(self, member: int, seed: int = 0) -> State:
        """What one member holds in place of the model's own, by name."""
        if self.conditioning is None:
            return self._weights.drawn(member, seed, self.scale)
        return self.conditioning.weights(
            lambda scale: self._weights.drawn(member, seed, scale), self.scale, seed, member
        )

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
        own: dict[str, Any] = {"covariance": self.covariance, "scale": self.scale, "scale_search": self.scale_search}
        own |= {"likelihood": self.likelihood, "refresh": self.refresh, "layers": self._layers}
        own |= {"conditioning": self.conditioning}
        return Posterior(self.model, **(own | changes))

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
        conditioned = self.condition(train, likelihood=likelihood, layer=layer)
        options: dict[str, Any] = {"temperature": temperature, "passes": passes, "seed": seed}
        if validation is not None:
            return conditioned.choose_scale(validation, **options)
        if isinstance(conditioned.conditioning, Averaged):
            return conditioned._numbers_searched([], 5, Cost(passes), seed)
        assert conditioned.refresh is not None
        return conditioned.choose_scale(conditioned.refresh, **options)

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
        check_reiterable(train, "train")
        _check_likelihood(likelihood or self.likelihood)
        data, total = kept(train, "train", self._like)
        task = inferred(self.model, data, likelihood or self.likelihood)
        refresh, _ = evenly(data, REFRESHED, KEPT_BYTES)
        task = self._fitted(task, data, refresh)
        ways = conditioned(self.model, data, total, task, self.mean, layer)
        covariance = self.covariance
        if covariance is None:
            covariance = Activations() if isinstance(ways, LaplaceHead) else Independent()
        layers = with_moments(self.model, self._layers, data) if covariance.needs_moments else self._layers
        first = ways if isinstance(ways, LaplaceHead) else Averaged((Component(1.0, self.scale, ways[0]),), tuple(ways))
        return self._changed(
            layers=layers,
            covariance=covariance,
            likelihood=task,
            refresh=refresh,
            conditioning=first,
            scale_search=None,
        )

    def choose_scale(
        self,
        validation: Iterable[Any],
        *,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
        members: int = 5,
        tolerance: float = 0.002,
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
            tolerance: how much worse than with less noise is accepted, in nats per sample: 0.002 lowers the likelihood
                of an average sample by a fifth of a per cent, and 0 takes only noise that is shown to help.
            temperature: divide logits by the one number that has the lowest validation NLL.
            passes: over the validation data, at the most; the search ends early there.
            seed: of the search's own random stream.

        Raises:
            TypeError: if a loader or the likelihood is not one, or the likelihood cannot be inferred.
            ValueError: if nothing was tracked, options are out of range, or no scale has a finite NLL.
        """
        refresh = self.refresh if refresh is None else refresh
        self._check_search(validation, refresh, members, tolerance)
        cost = Cost(passes)
        pairs, _ = kept(validation, "validation", self._like, VALIDATED)
        if refresh is not None:
            refresh = first_samples(batches(refresh, "refresh", self._like), REFRESHED)
        _check_likelihood(likelihood)
        task = self._fitted(inferred(self.model, pairs, likelihood or self.likelihood), pairs, refresh)
        posterior = self._changed(likelihood=task, refresh=refresh)
        if isinstance(posterior.conditioning, Averaged):
            return posterior._numbers_searched(pairs, members, cost, seed)
        found = posterior._labels_searched(pairs, members, tolerance, cost, seed)
        return found._tempered(pairs, members, seed) if temperature else found

    def _numbers_searched(self, validation: list[Pair], members: int, cost: Cost, seed: int) -> Posterior:
        assert isinstance(self.conditioning, Averaged)
        ways = self.conditioning.ways
        chosen, search = loudness.choose(self._weights, self.model, ways, validation, members, cost, seed)
        noise = sum(one.share * (one.conditioning.noise or 1.0) for one in chosen.components)
        task = ways[0].likelihood.tempered(noise)
        return self._changed(scale=search.scale, scale_search=search, conditioning=chosen, likelihood=task)

    def _labels_searched(
        self, validation: list[Pair], members: int, tolerance: float, cost: Cost, seed: int
    ) -> Posterior:
        posterior, task = self, self.likelihood
        assert task is not None
        if self.covariance is not None and self.covariance.prior_samples is not None:
            found = fisher(self.model, self._layers, validation, task)
            layers = [replace(layer, fisher=known) for layer, known in zip(self._layers, found, strict=True)]
            posterior = posterior._changed(layers=layers)
        search = LabelSearch(posterior._weights, self.model, task, self.refresh, members, tolerance, seed)
        way, chosen = search.choose(self.conditioning, validation, cost)
        return posterior._changed(scale=chosen.scale, scale_search=chosen, conditioning=way)

    def _tempered(self, validation: list[Pair], members: int, seed: int) -> Posterior:
        """The same with the temperature that validation data asks for."""
        assert self.likelihood is not None
        assert self.scale_search is not None
        ensemble = self.sample(members, key("temperature", operator.index(seed)))
        task = recalibrated(ensemble, self.likelihood, validation)
        search = replace(self.scale_search, temperature=task.options()["temperature"])
        return self._changed(likelihood=task, scale_search=search)

    @property
    def _like(self) -> Tensor:
        return next(self.model.parameters()).detach()

    def _fitted(self, task: Likelihood, data: list[Pair], refresh: Iterable[Any] | None) -> Likelihood:
        """The likelihood with what it estimates, such as a noise variance, at the mean network."""
        mean = self._changed(conditioning=None, scale=0.0).sample(1, refresh=refresh)
        return task.fitted((output, target) for _, _, output, target in mean.iterate(data))

    def _check_search(
        self, validation: Iterable[Any], refresh: Iterable[Any] | None, members: int, tolerance: float
    ) -> None:
        """Raise for what no search can work with."""
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        if not 0 <= tolerance < float("inf"):
            raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
        if not self._layers and self.conditioning is None:
            raise ValueError("this posterior has no noise to scale: nothing was tracked")
        check_reiterable(validation, "validation")
        if refresh is not None:
            check_reiterable(refresh, "refresh")
        if refresh is None and running_layers(self.model):
            raise ValueError("the network has BatchNorm: pass refresh=, training data to recompute its statistics on")

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
            "fisher": {name: value for layer in self._layers for name, value in layer.fisher.items()},
        }
        about = {
            "covariance": None if self.covariance is None else type(self.covariance).__name__,
            "options": {} if self.covariance is None else self.covariance.options(),
            "scale": self.scale,
            "joint": list(joint),
            "scale_search": None if self.scale_search is None else self.scale_search.packed(),
            "likelihood": _packed_likelihood(self.likelihood),
        }
        return tensors, about

    @staticmethod
    def unpacked(packed: Packed, model: nn.Module) -> Posterior:
        """The posterior that `packed` was made of; the model, of the same architecture, becomes its own."""
        tensors, about = packed
        fill(model, tensors["model"])
        joint = {tuple(names): tensors["covariance"][str(i)] for i, names in enumerate(about["joint"])}
        final = {name: parameter.detach() for name, parameter in model.named_parameters()}
        more = tensors["deviations"], tensors["fisher"]
        layers = by_layer(final, tensors["mean"], tensors["variance"], joint, *more)
        name = about["covariance"]
        covariance = None if name is None else covariance_from_options(name, about["options"])
        search, task = about["scale_search"], about["likelihood"]
        return Posterior(
            model,
            layers,
            covariance,
            about["scale"],
            scale_search=None if search is None else ScaleSearch.unpacked(search),
            likelihood=None if task is None else likelihood_from_options(*task),
        )


def _check_likelihood(given: Any) -> None:
    if given is not None and not isinstance(given, Likelihood):
        raise TypeError(f"likelihood must be one of tradi.likelihoods, such as Classification(), got {given!r}")


def _packed_likelihood(likelihood: Likelihood | None) -> tuple[str, dict[str, Any]] | None:
    """As JSON; a likelihood that somebody else wrote is theirs to pass again."""
    name = type(likelihood).__name__
    return (name, likelihood.options()) if likelihood is not None and KINDS.get(name) is type(likelihood) else None


def load_posterior(path: str | PathLike[str], model: nn.Module) -> Posterior:
    """Read a saved posterior; the model gives the architecture, and its own weights stay as they are."""
    packed = read(path, model)
    if len(packed) > 1:
        raise ValueError(f"{path} holds {len(packed)} runs: DeepEnsemble.load reads it")
    return Posterior.unpacked(packed[0], copied(model))
