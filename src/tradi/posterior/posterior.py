"""The tracked distribution of a network's weights: condition it, scale it, sample it, keep it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import nn

from tradi.ensemble.batches import check_reiterable
from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.copying import Snapshot, sharing
from tradi.ensemble.ensemble import Ensemble
from tradi.ensemble.files import Packed, naming, read, write
from tradi.posterior import fitting, packing
from tradi.posterior.conditioning import Conditioning
from tradi.posterior.conditions import some_samples
from tradi.posterior.covariance import Covariance
from tradi.posterior.distribution import State, check_finite
from tradi.posterior.fitting import SearchOptions
from tradi.posterior.layers import Layer
from tradi.posterior.parts import Parts
from tradi.posterior.ranks import check_agreement
from tradi.posterior.runner import Runner
from tradi.posterior.scale_search import ScaleSearch
from tradi.posterior.without_rows import WithoutRows
from tradi.prediction.likelihoods import Likelihood, check_likelihood


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
        ValueError: if the scale is negative, or a tracked or trainable weight is not finite.
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
        parts = Parts(layers, covariance, scale, scale_search, likelihood, refresh, conditioning)
        check_finite({name: p.detach() for name, p in model.named_parameters() if p.requires_grad}, layers)
        self._take(Snapshot(model.eval()), parts)

    def _take(self, snapshot: Snapshot, parts: Parts) -> None:
        self._snapshot, self._parts, self._weights = snapshot, parts, parts.weights
        self.covariance = parts.covariance
        self.scale = parts.scale
        self.scale_search = parts.scale_search
        self.likelihood = parts.likelihood
        self.refresh = parts.refresh
        self.conditioning = parts.conditioning
        self._layers = parts.layers

    def _with(self, parts: Parts) -> Posterior:
        """Of the same network, whose weights were found to be finite already."""
        self._snapshot.check()
        posterior = object.__new__(Posterior)
        posterior._take(self._snapshot, parts)
        return posterior

    @property
    def model(self) -> nn.Module:
        """The trained network, in eval mode; it may share frozen weights with the live model.

        Raises:
            RuntimeError: if a weight was changed in place since the posterior was taken.
        """
        return self._snapshot.model

    def __repr__(self) -> str:
        weights = sum(layer.size for layer in self._layers)
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
    def run(self) -> fitting.Run:
        """What is fitted to data."""
        return fitting.Run(Runner(self.model), self._parts)

    def check_agreement(self, what: str) -> None:
        """Compare what was fitted with what other processes came to: see `ranks.check_agreement`.

        Args:
            what: was called, such as "fit", for the error.

        Raises:
            RuntimeError: if processes came to several posteriors.
        """
        check_agreement(what, self._weights.mean, partial(self.draw, 0), self.scale)

    @property
    def mean(self) -> State:
        """Tracked means by parameter name: copies, which may be changed."""
        return {name: value.clone() for name, value in self._weights.mean.items()}

    @property
    def layers(self) -> list[Layer]:
        """What was tracked, layer by layer: no copies."""
        return self._layers

    @property
    def variance(self) -> State:
        """Tracked variances by parameter name, before scale and shrinkage; the paper's may be negative. Copies too."""
        return {name: value.clone() for name, value in self._weights.variance.items()}

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

        Returns:
            the ensemble; its members are drawn when they are first used.

        Raises:
            ValueError: if `members` is below 1, or members depend on training data that is not at hand.
        """
        seed = operator.index(seed)
        posterior = self if refresh is None else self.reconditioned(refresh)
        return Ensemble(
            posterior.architecture(),
            partial(posterior.draw, seed=seed),  # nothing local, so that an ensemble can be pickled
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
        data, total = self.run.runner.kept(train, "refresh")
        way = self.conditioning.conditioned_on(data, total, self.model, self._weights.mean)
        return self._changed(conditioning=way, refresh=some_samples(data))

    def architecture(self) -> nn.Module:
        """A module that members run in, holding what they do not draw."""
        with torch.inference_mode(False):
            model = sharing(self.model)
        return model if self.conditioning is None else self.conditioning.module(model)

    @property
    def moved(self) -> bool:
        """Whether members have other weights than BatchNorm's statistics belong to, and do not refresh them."""
        return bool(self._layers) and not (self.conditioning is not None and self.conditioning.refreshes)

    @property
    def has_noise(self) -> bool:
        """Whether members differ: weights were tracked, or conditioned on data."""
        return bool(self._layers) or self.conditioning is not None

    def draw(self, member: int, seed: int = 0) -> State:
        """What one member holds in place of the model's own, by name.

        Args:
            member: its number.
            seed: of the ensemble that it belongs to.

        Returns:
            tensors of the member's own: weights, and what conditioning adds.
        """
        return self._parts.draw(self._weights, member, seed)

    def final(self) -> Ensemble:
        """The network as training left it, as an ensemble of one: what everything is compared with.

        For numbers it has the noise that it leaves on the training data by itself, not that of conditioned members.

        Returns:
            the ensemble.
        """
        own = None if self.conditioning is None else self.conditioning.network_likelihood
        return Ensemble(sharing(self.model), [{}].__getitem__, 1, likelihood=own or self.likelihood)

    def noise(self, member: int, seed: int = 0) -> State:
        """The noise of one member by parameter name, before the scale.

        Args:
            member: its number.
            seed: of the ensemble that it belongs to.

        Returns:
            a tensor for every tracked weight.
        """
        return self._weights.noise(member, seed)

    def rescaled(self, scale: float) -> Posterior:
        """The same posterior with another factor on its noise; 0 leaves the mean network, and what was conditioned.

        Args:
            scale: factor on the noise, not below 0.

        Returns:
            a new posterior; this one is unchanged.
        """
        way = None if self.conditioning is None else self.conditioning.rescaled(scale)
        return self._changed(scale=scale, scale_search=None, conditioning=way)

    def with_covariance(self, covariance: Covariance) -> Posterior:
        """The same means and variances with noise that is correlated otherwise.

        Args:
            covariance: how noise is correlated within a layer.

        Returns:
            a new posterior; this one is unchanged.

        Raises:
            ValueError: if the covariance had to be tracked and was not.
        """
        if covariance.joint and not all(layer.covariance for layer in self._layers):
            raise ValueError(f"{covariance!r} needs a covariance that was tracked: attach with covariance=")
        return self._changed(covariance=covariance, scale_search=None)

    def with_likelihood(self, likelihood: Likelihood) -> Posterior:
        """The same posterior, which knows what outputs mean.

        Args:
            likelihood: what outputs mean.

        Returns:
            a new posterior; this one is unchanged.

        Raises:
            TypeError: if the likelihood is not one.
        """
        check_likelihood(likelihood)
        return self._changed(likelihood=likelihood)

    def refreshing(self, data: Iterable[Any]) -> Posterior:
        """The same, whose members recompute BatchNorm's statistics on this training data.

        Args:
            data: training batches, shuffled and representative.

        Returns:
            a new posterior; this one is unchanged.
        """
        return self._changed(refresh=data)

    def _changed(self, **changes: Any) -> Posterior:
        return self._with(replace(self._parts, **changes))

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

        Returns:
            a new posterior; this one is unchanged.

        Raises:
            TypeError, ValueError: as `condition` and `choose_scale` do.
            RuntimeError: if processes that train together (DDP) fit on data of their own and come to several
                posteriors: give every rank all data, or fit on one rank, and `save` and load the file on the others.
        """
        options = SearchOptions(temperature=temperature, passes=passes, seed=seed)
        conditioned = self._with(fitting.condition(self.run, train, likelihood, layer))
        return scaled_together([conditioned], validation, options)[0]

    def condition(
        self, train: Iterable[Any], *, likelihood: Likelihood | None = None, layer: str | None = None
    ) -> Posterior:
        """A posterior whose members agree with the training data: the filter's measurement update.

        The last linear layer is conditioned in closed form: for numbers at every member's own features, by Bayesian
        linear regression with the network's own noise; for labels by Laplace's approximation at the trained network's.
        Of a small network that predicts numbers, all weights are conditioned, through its derivatives. Prior precisions
        have the highest evidence. A frozen head is conditioned like any other. See docs/method.md.

        The loader is read once. At most 20,000 samples of it are kept, evenly spread over it; the rest counts as if
        it were like them.

        Args:
            train: (inputs, target) batches that were trained on.
            likelihood: what outputs mean; inferred where outputs and targets leave no doubt, and remembered.
            layer: name of the last linear layer, where the network's output is not its output as it is.

        Returns:
            a new posterior; this one is unchanged.

        Raises:
            TypeError: if the loader or the likelihood is not one, or the likelihood cannot be inferred.
            ValueError: if there are no batches, or the network does not end in a linear layer.
        """
        done = self._with(fitting.condition(self.run, train, likelihood, layer))
        done.check_agreement("condition")
        return done

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

        Returns:
            a new posterior; this one is unchanged.

        Raises:
            TypeError: if a loader or the likelihood is not one, or the likelihood cannot be inferred.
            ValueError: if nothing was tracked, options are out of range, or no scale has a finite NLL.
        """
        options = SearchOptions(members, tolerance, temperature, passes, seed)
        posterior = self if refresh is None else self.refreshing(refresh)
        return scaled_together([posterior], validation, options, likelihood)[0]

    def save(self, path: str | PathLike[str], *, whole: bool = False) -> None:
        """Write tensors and JSON metadata to a safetensors file; it never holds data.

        Conditioned for labels, it is complete. Conditioned for numbers, it needs the training data again after loading
        (see `sample`); `sample(20).save(path)` writes members that need none. The file appears under its name when it
        is complete, and the same posterior gives the same bytes. See docs/files.md.

        Args:
            path: of the file.
            whole: write frozen weights too. Without them the file is for models that have the same ones already, which
                is checked.

        Raises:
            OSError: if it cannot be written; what was there before still is.
            ValueError: if members are conditioned by a likelihood that is not tradi's.
        """
        write(path, "a posterior", [self.packed(whole)])

    def packed(self, whole: bool = False) -> Packed:
        """What a file needs to know, with frozen weights if it is to be whole."""
        return packing.packed(self.model, self._parts, whole)

    @staticmethod
    def unpacked(packed: Packed, model: nn.Module) -> Posterior:
        """The posterior that `packed` was made of; the model gives the architecture."""
        own, parts = packing.unpacked(packed, model)
        return Posterior(own, **vars(parts))


def scaled_together(
    posteriors: Sequence[Posterior],
    validation: Iterable[Any] | None,
    options: SearchOptions,
    likelihood: Likelihood | None = None,
) -> list[Posterior]:
    """Posteriors of several runs with the scale that validation data admits for members of all of them together.

    See `fitting.choose_scale`.
    """
    found = fitting.choose_scale([posterior.run for posterior in posteriors], validation, options, likelihood)
    done = [posterior._with(parts) for posterior, parts in zip(posteriors, found, strict=True)]
    for posterior in done:
        posterior.check_agreement("choose_scale")
    return done


def load_posterior(path: str | PathLike[str], model: nn.Module) -> Posterior:
    """Read a saved posterior; the model gives the architecture and frozen weights, and stays as it is.

    Members are those of the posterior that was saved. Where they depend on data, pass it again: `sample(20,
    refresh=training_batches)`, for BatchNorm's statistics and for members that predict numbers and were conditioned.

    Args:
        path: of the file.
        model: a network of the architecture that was saved, with its frozen weights if the file leaves them out.

    Returns:
        the posterior that was saved, with a network of its own.

    Raises:
        ValueError: if the file is not one posterior, was changed, is of another architecture or format version, or
            leaves out frozen weights and the model has others; it names the file.
        OSError: if there is no file, or it cannot be read.
    """
    packed = read(path, "a posterior", model)
    with naming(path):
        if len(packed) > 1:
            raise ValueError(f"it holds {len(packed)} runs: DeepEnsemble.load reads it")
        return Posterior.unpacked(packed[0], model)
