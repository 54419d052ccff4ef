"""The measurement update that the filter lacks: members are conditioned on the training data (see docs/method.md).

`LaplaceHead` does it for labels; for numbers `HeadRegression` and `NetworkRegression` do, averaged over scales.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.batches import Caller, Pair, larger, samples_in, thinned
from tradi.ensemble.batchnorm import paired, refreshed, running_layers, statistics_of
from tradi.ensemble.parameter_swap import ParameterSwap
from tradi.posterior.head import Head, Seen, State, by_position, find_head, layer_state, watched
from tradi.posterior.linear_regression import Fit, Sums, fit, most_probable
from tradi.posterior.randomness import Stream
from tradi.prediction.likelihood import Likelihood, target_like

AT_ONCE = (
    1 << 18
)  # bytes of small batches that regressions join: thousands of a table's rows, and few of anything larger
RIDGE = 1e-6  # of further heads, in units of the average eigenvalue: keeps a fit of too many features finite


Draw = Callable[[float], State]  # what is drawn for a member at a scale


class Conditioning(ABC):
    """How the training data enters the members' weights."""

    refreshes = False  # whether what it gives for a member has BatchNorm's statistics among it

    @abstractmethod
    def weights(self, draw: Draw, scale: float, seed: int, member: int) -> State:
        """What a member runs with, by name: a function of the arguments alone.

        Args:
            draw: its weights before the data was seen, at a scale.
            scale: the posterior's own.
            seed: of the random numbers.
            member: its number.
        """

    def rescaled(self, scale: float) -> Conditioning:
        """The same, for members that are drawn at another scale."""
        del scale
        return self

    def module(self, model: nn.Module) -> nn.Module:
        """The architecture of members, around a copy of the network; most are the network itself."""
        return model

    @property
    def network_likelihood(self) -> Likelihood | None:
        """What outputs of the trained network mean, where members have another noise."""
        return None


class Replay:
    """A part of the training data, in memory, and a network that is run over it with any weights.

    Args:
        model: in eval mode, nobody else's.
        data: (inputs, target) pairs.
        total: samples that there are in all.
    """

    def __init__(self, model: nn.Module, data: list[Pair], total: int) -> None:
        self.model, self.data, self.total = model, data, total
        self.weight = total / max(sum(map(samples_in, data)), 1)  # samples that each of those kept stands for
        self.own = {name: parameter.detach() for name, parameter in model.named_parameters()}
        self.caller = Caller(model)
        self._swap = ParameterSwap(model)
        self._trained_fresh: State | None = None

    def over(self, data: list[Pair], total: int | None = None) -> Replay:
        """The same network over other samples, which stand for as many as these unless a number is given."""
        return Replay(self.model, data, self.total if total is None else total)

    def at_once(self) -> Replay:
        """The same rows in fewer batches, which takes less time; BatchNorm keeps those that its statistics are of."""
        return self if running_layers(self.model) else self.over(larger(self.data, AT_ONCE))

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The network's modules, by the first part of their parameters' names."""
        return dict(self.model.named_modules())

    def holding(self, state: State) -> AbstractContextManager[None]:
        """The model with these weights in place of its own, as often as it is entered."""
        return self._swap.with_state(self.own | state)

    def head(self, likelihood: Likelihood, layer: str | None) -> Head:
        """The last linear layer, found on the first batch: see `find_head`."""
        args, kwargs = self.caller.arguments(*self.data[0])
        return find_head(self.model, args, kwargs, likelihood, layer)

    def size_of(self, name: str) -> int:
        """How many weights a parameter has."""
        return self.own[name].numel()

    def check_all_weights(self) -> None:
        """Raise where all weights of a small network cannot be conditioned."""

    @property
    def turns(self) -> range:
        """Numbers of the batches that run here: all of them."""
        return range(len(self.data))

    def added_up(self, sums: Tensor) -> Tensor:
        """Sums over all batches, from those over the batches that run here."""
        return sums

    def in_order(self, parts: list[Tensor]) -> Tensor:
        """Rows of all batches in one tensor, from those of each batch that runs here."""
        return torch.cat(parts)

    @torch.no_grad()
    def run(self, state: State, layers: Iterable[str] = ()) -> Iterator[tuple[Any, Any, dict[str, Seen]]]:
        """(output, target, what these layers saw) of every batch that runs here, with these weights in the model."""
        modules = self.modules
        watch = {name: modules[name] for name in layers}
        member = self.holding(state)
        for number in self.turns:
            inputs, target = self.data[number]
            args, kwargs = self.caller.arguments(inputs, target)
            with member, watched(watch) as seen:
                output = self.model(*args, **kwargs)
            yield output, target, seen

    def refreshed(self, drawn: State) -> State:
        """What was drawn, with the running statistics that belong to it."""
        if not running_layers(self.model):
            return drawn
        trained, (fresh,) = self._trained, self._statistics([self.own | drawn])
        if self._trained_fresh is None:
            (self._trained_fresh,) = self._statistics([self.own])
        return drawn | paired(self.model, fresh, trained, self._trained_fresh)

    @property
    def _trained(self) -> State:
        """The trained network's running statistics."""
        return statistics_of(self.model, {})

    def _statistics(self, states: list[State]) -> list[State]:
        return refreshed(self.model, self._swap, self.caller, states, self.data)


@dataclass(frozen=True, eq=False)
class Fitted:
    """The weights that were drawn for a member, and what the training rows say about the conditioned ones there."""

    state: State
    fits: list[Fit]

    @property
    def noise(self) -> float:
        """The noise factor tau that this member finds, over all outputs."""
        rows = [fit.rows for fit in self.fits]
        return sum(fit.noise * n for fit, n in zip(self.fits, rows, strict=True)) / sum(rows)

    @property
    def log_evidence(self) -> float:
        """Log marginal likelihood of the training rows, but for a constant."""
        return sum(fit.log_evidence for fit in self.fits)


class Regression(ABC):
    r"""Bayesian linear regression of the targets on features that depend on a member's weights.

    $$ y_i = f(x_i; \omega) + \phi_i^\top (\theta - \theta_\omega) + \mathcal N(0, \tau v_i), \qquad
       \theta \sim \mathcal N(0, \tau / \kappa) $$

    with $v$ the noise variance at the tracked mean.

    Args:
        replay: the training data.
        head: the layer that gives the mean.
        likelihood: of the task.
        centre: the tracked mean, by parameter name.
        noise: $\tau$; None takes every member's own.

    `what` names the weights that are conditioned, `rows` says on how many rows; `with_precision_at` finds the most
    probable `precisions`, $\kappa$.
    """

    what: str

    def __init__(
        self, replay: Replay, head: Head, likelihood: Likelihood, centre: State, noise: float | None = None
    ) -> None:
        self.replay, self.head, self.likelihood = replay, head, likelihood
        own = {name: value.to(replay.own[name].dtype) for name, value in centre.items() if name in replay.own}
        self.centre, self.noise = replay.refreshed(own), noise
        self.precisions: list[float] = []
        self._observed = list(self._observations())
        here = torch.tensor(float(sum(y.numel() for y, _ in self._observed)), device=self._observed[0][0].device)
        self.rows = replay.weight * replay.added_up(here).item()  # those that were left out included

    def _observations(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Targets and relative noise variances of every batch, (rows, outputs)."""
        for output, target, _ in self.replay.run(self.centre):
            prediction: Any = self.likelihood.predict(_of_one_member(self.likelihood.output(output)))
            y = target_like(target, self.likelihood.linear(output))
            yield self.as_rows(y), self.as_rows(prediction.variances[0])

    def as_rows(self, values: Tensor) -> Tensor:
        """Outputs of the network, or targets like them, as (samples * positions, outputs)."""
        return self.head.by_position(values).flatten(0, 1)

    @abstractmethod
    def sums(self, state: State) -> list[Sums]:
        """What the training rows say about the conditioned weights, one for each regression."""

    @abstractmethod
    def placed(self, fitted: Fitted, seed: int, member: int) -> State:
        """A member's weights, with the conditioned ones drawn from their posterior."""

    def fitted(self, drawn: State) -> Fitted:
        """The conditioned weights' posterior where a member was drawn."""
        state = self.replay.refreshed(drawn)
        return Fitted(state, [fit(sums, k) for sums, k in zip(self.sums(state), self.precisions, strict=True)])

    def module(self, model: nn.Module) -> nn.Module:
        """The architecture of members, around a copy of the network."""
        return model

    def with_precision_at(self, drawn: State) -> Regression:
        """The same with the prior precisions of the highest evidence where a member was drawn."""
        sums = self.sums(self.replay.refreshed(drawn))
        near: list[float | None] = [*self.precisions] or [None] * len(sums)
        return self._changed(precisions=[most_probable(*pair) for pair in zip(sums, near, strict=True)])

    def with_noise(self, noise: float) -> Regression:
        """The same with another tau."""
        return self._changed(noise=noise)

    def with_prior(self, noise: float | None, precisions: Sequence[float]) -> Regression:
        """The same with another tau and other prior precisions."""
        return self._changed(noise=noise, precisions=[*precisions])

    def thinned(self, rows: int) -> Regression:
        """The same, conditioned on about so many rows, evenly spread, which stand for all of them."""
        if sum(map(samples_in, self.replay.data)) <= rows:
            return self
        return self._with_replay(self.replay.over(thinned(self.replay.data, rows)))

    def joined_by(self, more: list[Pair]) -> Regression:
        """The same, conditioned on further rows too."""
        total = self.replay.total + sum(map(samples_in, more))
        return self._with_replay(self.replay.over([*self.replay.data, *more], total))

    def _with_replay(self, replay: Replay) -> Regression:
        other = type(self)(replay, self.head, self.likelihood, self.centre)
        return other.with_prior(self.noise, self.precisions)

    def _changed(self, **changes: Any) -> Regression:
        other = object.__new__(type(self))
        other.__dict__ |= self.__dict__ | changes
        return other

    def drawn_theta(self, fitted: Fitted, number: int, seed: int, member: int) -> Tensor:
        """The conditioned weights of one regression."""
        one = fitted.fits[number]
        z = Stream(seed, member, f"{self.head.name}/theta/{number}").normal(0, len(one.mean), one.mean.device)
        return one.draw(z, one.noise if self.noise is None else self.noise)


class HeadRegression(Regression):
    """The last layer alone, whose features are the network's: members stay plain networks."""

    what = "last layer"

    def __init__(self, replay: Replay, head: Head, *more: Any, **options: Any) -> None:
        self._layers = {name: replay.modules[name] for name in (head.name, *head.siblings)}
        self.own_names = {name for prefix in self._layers for name in _names(prefix, self._layers[prefix])}
        super().__init__(replay, head, *more, **options)
        # What further heads on the same features, such as a variance's, give at the centre.
        self._others = [self._further(seen) for _, _, seen in replay.run(self.centre, self._layers)]
        # Where members differ in these layers alone, what comes before runs once for all of them.
        self._still = self._sums({}) if self.centre.keys() <= self.own_names else None

    def sums(self, state: State) -> list[Sums]:
        return self._still or self._sums(state)

    def _sums(self, state: State) -> list[Sums]:
        found: list[Sums] = []
        for (_, _, seen), (y, v) in zip(self.replay.run(state, self._layers), self._observed, strict=True):
            phi = self.head.features(seen[self.head.name])
            here = [Sums.of(phi, y[:, k], v[:, k]) for k in range(y.shape[1])]
            found = [a + b for a, b in zip(found, here, strict=True)] if found else here
        return [sums.summed(self.replay.added_up).times(self.replay.weight) for sums in found]

    def placed(self, fitted: Fitted, seed: int, member: int) -> State:
        theta = [self.drawn_theta(fitted, k, seed, member) for k in range(len(fitted.fits))]
        return fitted.state | self._with_heads(fitted.state, torch.stack(theta))

    def _with_heads(self, state: State, theta: Tensor) -> State:
        """The heads' weights: the task's as given, the others as least squares fit them to what they gave before."""
        outputs, inputs = _width(self.head.module), theta.shape[1]
        others = self._least_squares(state) if self._others[0].shape[1] else theta.new_zeros(0, inputs)
        before, after = self.head.first, outputs - self.head.first - self.head.outputs
        whole = torch.cat([others[:before], theta, others[before : before + after]])
        heads = layer_state(self.head.name, self.head.module, whole)
        left = others[before + after :]
        for name in self.head.siblings:
            module = self._layers[name]
            rows, left = left[: module.out_features], left[module.out_features :]
            heads |= layer_state(name, module, rows[:, :inputs])
        return heads

    def _least_squares(self, state: State) -> Tensor:
        """Weights of the further heads, (outputs, inputs)."""
        gram: Any = 0
        cross: Any = 0
        for (_, _, seen), wanted in zip(self.replay.run(state, self._layers), self._others, strict=True):
            phi = self.head.features(seen[self.head.name]).double()
            gram, cross = gram + phi.T @ phi, cross + phi.T @ wanted
        gram, cross = self.replay.added_up(gram), self.replay.added_up(cross)
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        return torch.linalg.solve(gram, cross).T

    def _further(self, seen: dict[str, Seen]) -> Tensor:
        """Outputs of further heads, (rows, outputs): the rest of the task's own layer, then other layers."""
        head = self.head
        whole = {name: by_position(seen[name].output, module, _width(module)) for name, module in self._layers.items()}
        own = whole.pop(head.name)
        parts = [own[..., : head.first], own[..., head.first + head.outputs :], *whole.values()]
        return torch.cat(parts, 2).flatten(0, 1).double()


def _names(prefix: str, module: nn.Module) -> list[str]:
    return [f"{prefix}.{name}" if prefix else name for name, _ in module.named_parameters(recurse=False)]


def _width(module: nn.Module) -> int:
    return module.out_features if isinstance(module, nn.Linear) else module.out_channels  # type: ignore[return-value]


def _of_one_member(output: Any) -> Any:
    return tuple(part[None] for part in output) if isinstance(output, tuple) else output[None]
