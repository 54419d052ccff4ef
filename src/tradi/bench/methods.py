"""The methods as a benchmark names them: what each needs of training, and how it comes to an ensemble."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from tradi.bench.problem import Problem
from tradi.bench.recipe import Recipe
from tradi.bench.row import Detector, Notes, Row
from tradi.bench.training import Attach, Run
from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import Ensemble
from tradi.filter.kalman import Kalman
from tradi.methods import (
    SWAG,
    TRADI,
    DeepEnsemble,
    GaussianPerturbation,
    LastLayerLaplace,
    MCDropout,
    SingleNetwork,
)
from tradi.posterior.covariance import Covariance, FourierFeatures
from tradi.posterior.layers import by_layer
from tradi.posterior.posterior import Posterior
from tradi.posterior.recalibration import recalibrated
from tradi.tracking.selection import Select, as_predicate, except_normalisation, named_weights
from tradi.tracking.tracker import Tracker

SampledT = TypeVar("SampledT", bound="Sampled")
DrawnFrom = Posterior | DeepEnsemble


class Method(Protocol):
    """One row of a table.

    `runs` is the number of trainings it needs, `dropout` the rate of a network of its own (None: the benchmark's).
    """

    @property
    def runs(self) -> int: ...
    @property
    def dropout(self) -> float | None: ...
    def recipe(self, usual: Recipe) -> Recipe:
        """How it is trained: the benchmark's recipe, or another one, under which no other method's runs are trained."""
        ...

    def attach(self) -> dict[str, Attach]:
        """The trackers it needs during training, by a name that says what they do."""
        ...

    def ensemble(self, runs: Sequence[Run], data: Problem, seed: int) -> tuple[Ensemble | Detector, Notes]:
        """The ensemble, ready to predict, or a score of inputs alone."""
        ...

    def quick(self) -> Method:
        """The same, as small as can be."""
        ...


@dataclass(frozen=True)
class Single(Row):
    """The network itself."""

    def ensemble(self, runs: Sequence[Run], data: Problem, seed: int) -> tuple[Ensemble, Notes]:
        del data, seed
        return SingleNetwork(runs[0].model).sample(1), {}


@dataclass(frozen=True)
class Deep(Single):
    """A Deep Ensemble of so many runs."""

    runs: int = 5

    def ensemble(self, runs: Sequence[Run], data: Problem, seed: int) -> tuple[Ensemble, Notes]:
        del data, seed
        return DeepEnsemble([run.model for run in runs[: self.runs]]).sample(), {}

    def quick(self) -> Deep:
        return replace(self, runs=2)


@dataclass(frozen=True)
class Dropout(Single):
    """MC Dropout."""

    members: int = 20

    def ensemble(self, runs: Sequence[Run], data: Problem, seed: int) -> tuple[Ensemble, Notes]:
        del data
        return MCDropout(runs[0].model).sample(self.members, seed), {}

    def quick(self) -> Dropout:
        return replace(self, members=2)


@dataclass(frozen=True, kw_only=True)
class Sampled(Single, ABC):
    """Members drawn from a posterior; with several runs, from the posteriors of all of them in turn.

    Args:
        members: networks.
        tolerance: of the choice of the scale on validation data; None leaves the scale at 1.
        searched: networks that a scale is judged by.
    """

    members: int = 20
    tolerance: float | None = None
    searched: int = 20

    @abstractmethod
    def posterior(self, run: Run) -> Posterior:
        """The posterior of one run, before the choice of a scale."""

    def prepared(self, drawn_from: DrawnFrom, data: Problem, seed: int) -> DrawnFrom:
        """What members are drawn from, with its noise as loud as validation data admits."""
        if self.tolerance is None:
            return drawn_from
        return drawn_from.choose_scale(
            data.validation_batches,
            refresh=data.refresh_batches,
            likelihood=data.likelihood,
            members=self.searched,
            tolerance=self.tolerance,
            seed=seed,
        )

    def ensemble(self, runs: Sequence[Run], data: Problem, seed: int) -> tuple[Ensemble, Notes]:
        with warnings.catch_warnings():  # the result file says which scale, and why
            warnings.filterwarnings("ignore", "scale 0|no noise up to|all members are (the )?trained network")
            posteriors = [self.posterior(run) for run in runs[: self.runs]]
            whole = posteriors[0] if self.runs == 1 else DeepEnsemble(posteriors)
            ready = self.prepared(whole, data, seed)
        prepared = ready.runs if isinstance(ready, DeepEnsemble) else [ready]
        refresh = data.refresh_batches if prepared[0].refresh is None else None
        ensemble = ready.sample(self.members, seed + 1, refresh=refresh)
        return ensemble, {"searches": [_searched(posterior) for posterior in prepared if posterior.scale_search]}

    def quick(self: SampledT) -> SampledT:
        return replace(self, runs=min(self.runs, 2), members=2, searched=1)


@dataclass(frozen=True, kw_only=True)
class Perturbed(Sampled):
    """Gaussian perturbation, its deviation chosen on validation data as TRADI's."""

    tolerance: float | None = 0.001

    def posterior(self, run: Run) -> Posterior:
        return GaussianPerturbation(run.model)


@dataclass(frozen=True, kw_only=True)
class Following(Sampled):
    """A method whose tracker follows training. `Tracked` is such a row for any tracker with fixed options."""

    @property
    @abstractmethod
    def tracker_name(self) -> str:
        """What is tracked, whatever is made of it: methods that share the name share the tracker."""

    @abstractmethod
    def build(self, model: nn.Module, optimizer: Optimizer, steps: int, recipe: Recipe) -> Tracker:
        """Attach the tracker, given how many steps an epoch has and the recipe."""

    def attach(self) -> dict[str, Attach]:
        return {self.tracker_name: self.build}

    def posterior(self, run: Run) -> Posterior:
        return run.posteriors[self.tracker_name]


@dataclass(frozen=True, kw_only=True)
class Tracked(Following):
    """Any tracker.

    Args:
        tracker: its class.
        options: keyword arguments for it, besides the model and the optimizer.
    """

    tracker: type[Tracker]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def tracker_name(self) -> str:
        return f"{self.tracker.__name__}, {self.options}"

    def build(self, model: nn.Module, optimizer: Optimizer, steps: int, recipe: Recipe) -> Tracker:
        del steps, recipe
        return self.tracker(model, optimizer, **self.options)


@dataclass(frozen=True, kw_only=True)
class Swag(Following):
    """SWAG over the last `share` of a run (`Recipe.late`): once an epoch or `collections` times, whichever is more."""

    share: float = 0.25
    rank: int = 20
    collections: int = 40

    @property
    def tracker_name(self) -> str:
        return f"SWAG, share={self.share:g}, rank={self.rank}, collections={self.collections}"

    def build(self, model: nn.Module, optimizer: Optimizer, steps: int, recipe: Recipe) -> SWAG:
        start, late = recipe.late(steps, self.share)
        every = max(1, min(steps, late // self.collections))
        return SWAG(model, optimizer, every=every, start=start, rank=self.rank)

    def quick(self) -> Swag:
        return replace(super().quick(), share=1.0)


@dataclass(frozen=True, kw_only=True)
class Tradi(Following):
    """TRADI.

    Args:
        kalman: the filter.
        covariance: of the noise; None is the default of the task.
        select: which weights are tracked.
        conditioned: whether members are conditioned on the training data before the scale is chosen.
    """

    kalman: Kalman = field(default_factory=Kalman)
    covariance: Covariance | None = None
    select: Select = except_normalisation
    tolerance: float | None = 0.001
    conditioned: bool = True
    searched: int = 5

    @classmethod
    def paper(cls) -> Tradi:
        """The paper to the letter, with no choice of a scale."""
        covariance = FourierFeatures.paper()
        return cls(kalman=Kalman.paper(), covariance=covariance, select="*", tolerance=None, conditioned=False)

    @classmethod
    def released(cls) -> Tradi:
        """As the authors' script has it, with no choice of a scale."""
        covariance = FourierFeatures.released()
        return cls(kalman=Kalman.released(), covariance=covariance, tolerance=None, conditioned=False)

    @property
    def tracker_name(self) -> str:
        selected = self.select if isinstance(self.select, str) else "all but normalisation"
        joint = self.covariance is not None and self.covariance.joint
        return f"{self.kalman!r}, joint={joint}, select={selected}"

    def build(self, model: nn.Module, optimizer: Optimizer, steps: int, recipe: Recipe) -> TRADI:
        del steps, recipe
        return TRADI(model, optimizer, kalman=self.kalman, covariance=self.covariance, select=self.select)

    def posterior(self, run: Run) -> Posterior:
        tracked = super().posterior(run)
        return tracked if self.covariance is None else tracked.with_covariance(self.covariance)

    def prepared(self, drawn_from: DrawnFrom, data: Problem, seed: int) -> DrawnFrom:
        if self.conditioned:
            drawn_from = drawn_from.condition(data.training_batches, likelihood=data.likelihood)
        return super().prepared(drawn_from, data, seed)


@dataclass(frozen=True, kw_only=True)
class Untracked(Tradi):
    """The control: the same steps around the trained weights, every deviation a tenth of its layer's spread.

    Tracked deviations are of about that size, so that the same scales are in reach.
    """

    def attach(self) -> dict[str, Attach]:
        return {}

    def posterior(self, run: Run) -> Posterior:
        model = copied(run.model)
        selected = as_predicate(self.select)
        weights = [weight for weight in named_weights(model).values() if weight.parameter.requires_grad]
        final = {weight.name: weight.parameter.detach() for weight in weights if selected(weight)}
        layers = by_layer(
            final, {n: w.clone() for n, w in final.items()}, {n: torch.ones_like(w) for n, w in final.items()}
        )
        for layer in layers:
            layer.variance = {name: torch.full_like(w, (layer.spread / 10) ** 2) for name, w in layer.weights.items()}
        return Posterior(model, layers, self.covariance)


@dataclass(frozen=True, kw_only=True)
class Laplace(Sampled):
    """The last layer alone, by Laplace's approximation or, of numbers, by Bayesian linear regression."""

    searched: int = 5

    def posterior(self, run: Run) -> Posterior:
        return LastLayerLaplace(run.model)

    def prepared(self, drawn_from: DrawnFrom, data: Problem, seed: int) -> DrawnFrom:
        return drawn_from.fit(data.training_batches, data.validation_batches, likelihood=data.likelihood, seed=seed)


@dataclass(frozen=True)
class Recalibrated(Single):
    """Another method, with one number estimated on validation data: a temperature, or a factor on the variance."""

    method: Single = field(default_factory=Single)

    def recipe(self, usual: Recipe) -> Recipe:
        return self.method.recipe(usual)

    def attach(self) -> dict[str, Attach]:
        return self.method.attach()

    def ensemble(self, runs: Sequence[Run], data: Problem, seed: int) -> tuple[Ensemble, Notes]:
        ensemble, notes = self.method.ensemble(runs, data, seed)
        task = ensemble.likelihood or data.likelihood
        ensemble.likelihood = recalibrated(ensemble, task, data.validation_batches)
        return ensemble, notes | {"likelihood": repr(ensemble.likelihood)}

    def quick(self) -> Recalibrated:
        small = self.method.quick()
        return replace(self, method=small, runs=small.runs)


def usual_methods(
    *, members: int = 20, searched: int = 20, deep: int = 5, multi: int = 0, dropout: float | None = None
) -> dict[str, Method]:
    """The rows of a benchmark's tables, in their order.

    Args:
        members: networks of every method but the Deep Ensemble.
        searched: networks that the scale of Gaussian perturbation is judged by.
        deep: trainings of the Deep Ensemble.
        multi: trainings of multi-TRADI; 0 leaves it out.
        dropout: of the network that MC Dropout trains for itself; None where the benchmark's own has dropout.
    """
    tradi, ensemble = Tradi(members=members), Deep(runs=deep)
    methods: dict[str, Method] = {
        "Single network": Single(),
        "Single network, recalibrated": Recalibrated(),
        "MC Dropout": Dropout(members=members, dropout=dropout),
        "Gaussian perturbation": Perturbed(members=members, searched=searched),
        "SWAG": Swag(members=members),
        "Laplace, last layer": Laplace(members=members),
        f"Deep Ensemble of {deep}": ensemble,
        f"Deep Ensemble of {deep}, recalibrated": Recalibrated(runs=deep, method=ensemble),
        "TRADI": tradi,
        "TRADI, nothing tracked": Untracked(members=members),
    }
    return methods | ({f"multi-TRADI of {multi}": replace(tradi, runs=multi)} if multi else {})


def _searched(posterior: Posterior) -> Notes:
    search = posterior.scale_search
    assert search is not None
    nll = {f"{scale:g}": value for scale, value in sorted(search.nll.items())}
    own = {"scale": search.scale, "head": search.head, "conditioned": str(posterior.conditioning)}
    return own | {"seconds": search.seconds, "passes": search.passes, "nll": nll}
