"""The tracked distribution of a network's weights: sample it, scale it, keep it."""

from __future__ import annotations

import copy
import operator
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import nn

from tradi.ensemble.batches import Caller, Pair, batches, check_reiterable, evenly
from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import KEEP_BYTES, Ensemble, State
from tradi.posterior.activations import Activations
from tradi.posterior.conditioning import Conditioning, Regression, Replay
from tradi.posterior.covariance import Covariance, Independent, covariance_from_options
from tradi.posterior.files import Packed, fill, model_tensors, read, write
from tradi.posterior.fisher import fisher
from tradi.posterior.fitting import REFRESHED, conditionings, first_samples, inferred, kept_rows, with_moments
from tradi.posterior.laplace import LaplaceHead, head_rows
from tradi.posterior.layers import Layer, by_layer
from tradi.posterior.loudness import Judged, judged, search_loudness
from tradi.posterior.randomness import key
from tradi.posterior.scale_search import Judge, ScaleSearch, find_scale
from tradi.prediction.likelihoods import KINDS, Likelihood, infer, likelihood_from_options


class Posterior:
    """A Gaussian over the weights of a network, independent of the run it came from.

    Args:
        model: a network of its own, holding the final weights and everything that was not tracked.
        layers: what was tracked.
        covariance: how noise is correlated within a layer; None leaves it to `condition`, by the task: `Activations` for
            labels, `Independent` for numbers.
        scale: factor on the noise.
        scale_search: how the scale was chosen, if it was.
        likelihood: what outputs mean, if that is known.
        refresh: training data that members recompute BatchNorm's statistics on, if that is known; it is not saved.
        conditionings: ways in which training data enters the members' weights; the first one is taken.

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
        conditionings: tuple[Conditioning, ...] = (),
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
        self.scale_search = scale_search
        self.likelihood = likelihood
        self.refresh = refresh
        self._conditionings = conditionings
        self._rows: list[Pair] = []
        self._layers = layers

    def __repr__(self) -> str:
        weights = sum(mean.numel() for mean in self.mean.values())
        chosen = "chosen on validation data" if self.scale_search else "not chosen: see choose_scale"
        parts = [f"{weights:,} weights in {len(self._layers)} layers", repr(self.covariance)]
        parts.append(f"scale {self.scale:g} ({chosen})")
        parts.append(f"likelihood {self.likelihood!r}")
        if running_layers(self.model):
            parts.append(f"BatchNorm {'is refreshed by members' if self.refresh is not None else 'needs refresh='}")
        return f"Posterior({', '.join(parts)})"

    @property
    def mean(self) -> State:
        """Tracked means by parameter name."""
        return {name: value for layer in self._layers for name, value in layer.mean.items()}

    @property
    def variance(self) -> State:
        """Tracked variances by parameter name, before scale and shrinkage; the paper's may be negative."""
        return {name: value for layer in self._layers for name, value in layer.variance.items()}

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
                `choose_scale` was given.
            likelihood: what outputs mean; by default what `choose_scale` found.

        Raises:
            ValueError: if `members` is below 1.
        """
        seed = operator.index(seed)
        with torch.inference_mode(False):
            model = copy.deepcopy(self.model)
        conditioning = self._conditioning
        return Ensemble(
            model if conditioning is None else conditioning.module(model),
            lambda i: self.draw(i, seed),
            members,
            moved=bool(self._layers) and not isinstance(conditioning, Regression),  # which refreshes by itself
            refresh=self.refresh if refresh is None else refresh,
            likelihood=likelihood or self.likelihood,
        )

    @property
    def _conditioning(self) -> Conditioning | None:
        return self._conditionings[0] if self._conditionings else None

    def draw(self, member: int, seed: int = 0) -> State:
        """The weights of one member by parameter name."""
        weights: State = {}
        with self._in_full_precision():
            for layer in self._layers:
                weights |= _as_weights(layer, self._onto(layer, layer.mean, self.scale, member, seed))
        return weights if self._conditioning is None else self._conditioning.weights(weights, seed, member)

    def at(self, noise: State) -> State:
        """The weights, by parameter name, that this noise leads to."""
        weights: State = {}
        for layer in self._layers:
            sums = {name: torch.add(mean, noise[name], alpha=self.scale) for name, mean in layer.mean.items()}
            weights |= _as_weights(layer, sums)
        return weights

    def final(self) -> Ensemble:
        """The network as training left it, as an ensemble of one: what everything is compared with."""
        return Ensemble(copy.deepcopy(self.model), lambda _: {}, 1, likelihood=self.likelihood)

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
        for name, part, noise in (self.covariance or Independent()).noise(layer, seed, member):
            torch.add(rows[name][part], noise, alpha=scale, out=sums[name][part])
        return {name: sums[name].view(value.shape) for name, value in start.items()}

    def rescaled(self, scale: float) -> Posterior:
        """The same posterior with another factor on its noise; 0 leaves the mean network alone."""
        return self._changed(scale=scale, scale_search=None)

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
        own |= {"conditionings": self._conditionings}
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
        given = conditioned._rows if validation is None else validation
        return conditioned.choose_scale(given, temperature=temperature, passes=passes, seed=seed)

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
            ValueError: if nothing was tracked, there are no batches, or the network does not end in a linear layer.
        """
        if not self._layers:
            raise ValueError("there is nothing to condition: nothing was tracked")
        check_reiterable(train, "train")
        _check_likelihood(likelihood or self.likelihood)
        data, total = kept_rows(train, next(self.model.parameters()).detach())
        task = inferred(self.model, data, likelihood or self.likelihood)
        refresh = first_samples(data, REFRESHED)
        mean = self.rescaled(0).sample(1, refresh=refresh)
        task = task.fitted((output, target) for _, _, output, target in mean.iterate(data))
        ways = conditionings(self.model, data, total, task, self.mean, layer)
        covariance = self.covariance
        if covariance is None:
            covariance = Activations() if isinstance(ways[0], LaplaceHead) else Independent()
        layers = with_moments(self.model, self._layers, data) if covariance.needs_moments else self._layers
        conditioned = self._changed(
            layers=layers, covariance=covariance, likelihood=task, refresh=refresh, conditionings=ways
        )
        conditioned._rows = data
        return conditioned

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
            passes: over the validation data, at the most: the search ends early there.
            seed: of the search's own random stream.

        Raises:
            TypeError: if a loader or the likelihood is not one, or the likelihood cannot be inferred.
            ValueError: if nothing was tracked, options are out of range, or no scale has a finite NLL.
        """
        refresh = self.refresh if refresh is None else refresh
        self._check_search(validation, refresh, members, tolerance)
        task = self._task(validation, likelihood or self.likelihood, refresh)
        posterior = self._changed(likelihood=task, refresh=refresh)
        return posterior._searched(validation, members, tolerance, seed)

    def _searched(self, validation: Iterable[Any], members: int, tolerance: float, seed: int) -> Posterior:
        posterior, task = self, self.likelihood
        assert task is not None
        if isinstance(self._conditioning, Regression):
            return self._searched_regression(validation, members, seed)
        if self.covariance is not None and self.covariance.prior_samples is not None:
            found = fisher(self.model, self._layers, validation, task)
            layers = [replace(layer, fisher=known) for layer, known in zip(self._layers, found, strict=True)]
            posterior = posterior._changed(layers=layers)
        if isinstance(self._conditioning, LaplaceHead):
            head = self._conditioning
            like = next(self.model.parameters()).detach()
            data, total = evenly(batches(validation, "validation", like), 5000, 1 << 27)
            rows = head_rows(Replay(copied(self.model).eval(), data, total), head.head, task)
            posterior = posterior._changed(conditionings=(head.best_spread(rows, members, key("spread", seed)),))
        judge = Judge(posterior._judged(members, seed), task, validation, members)
        search = find_scale(judge, tolerance, members)
        return posterior._changed(scale=search.scale, scale_search=search)

    def _searched_regression(self, validation: Iterable[Any], members: int, seed: int) -> Posterior:
        task = self.likelihood
        assert task is not None
        stream = key("scale search", operator.index(seed))
        noise = [self.noise(i, stream) for i in range(members)]
        like = next(self.model.parameters()).detach()
        pairs = list(batches(validation, "validation", like))
        calls = [0]
        started = time.perf_counter()

        def judge(conditioning: Regression, scale: float) -> Judged:
            calls[0] += members
            scaled = self.rescaled(scale)
            fitted = [conditioning.fitted(scaled.at(one)) for one in noise]
            tau = sum(one.noise for one in fitted) / members
            placed = conditioning.with_noise(tau)
            ensemble = Ensemble(
                placed.module(copied(self.model)), lambda i: placed.placed(fitted[i], stream, i), members
            )
            return judged(placed, scale, task.tempered(tau), ensemble, pairs)

        ways = [way for way in self._conditionings if isinstance(way, Regression)]
        best, tried = search_loudness(judge, ways, lambda: True)
        nll = {one.scale: min(o.nll for o in tried if o.scale == one.scale) for one in tried}
        search = ScaleSearch(best.scale, nll, 0.0, members, calls[0], time.perf_counter() - started)
        final = task.tempered(best.conditioning.noise)
        return self._changed(
            scale=best.scale, scale_search=search, likelihood=final, conditionings=(best.conditioning.joined_by(pairs),)
        )

    def _check_search(
        self, validation: Iterable[Any], refresh: Iterable[Any] | None, members: int, tolerance: float
    ) -> None:
        """Raise for what no search can work with."""
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        if not 0 <= tolerance < float("inf"):
            raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
        if not self._layers:
            raise ValueError("this posterior has no noise to scale: nothing was tracked")
        check_reiterable(validation, "validation")
        if refresh is not None:
            check_reiterable(refresh, "refresh")
        if refresh is None and running_layers(self.model):
            raise ValueError("the network has BatchNorm: pass refresh=, training data to recompute its statistics on")

    def _task(self, validation: Iterable[Any], given: Likelihood | None, refresh: Iterable[Any] | None) -> Likelihood:
        """The likelihood, inferred from the final network's outputs if need be, with what it estimates."""
        _check_likelihood(given)
        if given is None:
            caller, like = Caller(self.model), next(self.model.parameters()).detach()
            inputs, target = next(batches(validation, "validation", like))
            args, kwargs = caller.arguments(inputs, target)
            with torch.no_grad():
                given = infer(self.model(*args, **kwargs), target)
        mean = self.rescaled(0).sample(1, refresh=refresh)
        return given.fitted((output, target) for _, _, output, target in mean.iterate(validation))

    def _judged(self, members: int, seed: int) -> Callable[[float, int], Ensemble]:
        """Ensembles at any scale, of the same noise, which is drawn once where all of it fits in memory."""
        stream = key("scale search", operator.index(seed))  # no member that a user samples was judged here
        model = copied(self.model)
        keep = members * sum(mean.nbytes for mean in self.mean.values()) <= KEEP_BYTES
        drawn: dict[int, State] = {}

        def noise(member: int) -> State:
            found = drawn.get(member) or self.noise(member, stream)
            if keep:
                drawn[member] = found
            return found

        def draw(i: int, scaled: Posterior) -> State:
            weights = scaled.at(noise(i))
            return weights if self._conditioning is None else self._conditioning.weights(weights, stream, i)

        def at(scale: float, size: int) -> Ensemble:
            scaled = self.rescaled(scale)
            return Ensemble(model, lambda i: draw(i, scaled), size, moved=True, refresh=self.refresh)

        return at

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
            "covariance": type(self.covariance).__name__,
            "options": self.covariance.options(),
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
        covariance = covariance_from_options(about["covariance"], about["options"])
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


def _as_weights(layer: Layer, values: State) -> State:
    """In the weights' own dtype, which what was tracked need not have."""
    return {name: values[name].to(weight.dtype) for name, weight in layer.weights.items()}


def load_posterior(path: str | PathLike[str], model: nn.Module) -> Posterior:
    """Read a saved posterior; the model gives the architecture, and its own weights stay as they are."""
    packed = read(path, model)
    if len(packed) > 1:
        raise ValueError(f"{path} holds {len(packed)} runs: DeepEnsemble.load reads it")
    return Posterior.unpacked(packed[0], copied(model))
