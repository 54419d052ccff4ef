"""TRADI: the mean and variance of every weight, Kalman-tracked through one training run."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from ctypes import c_float
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tradi.ensemble.copying import copied
from tradi.filter.equations import Gains, Rate
from tradi.filter.kalman import Kalman, Observation, State, observe
from tradi.posterior.covariance import Covariance, FourierFeatures
from tradi.posterior.layers import Layer, by_layer, share_out, with_prior
from tradi.posterior.posterior import Posterior
from tradi.posterior.sharded import posterior_of_shards
from tradi.sharding import all_of, part_of, plain_name
from tradi.tracking.prior import Prior
from tradi.tracking.selection import Select, Weight, check_trackable, except_normalisation, flat
from tradi.tracking.tracker import Rates, Tracker
from tradi.tracking.usable import norms

PriorSource = Posterior | str | PathLike[str] | None

SETTLED = 10  # steps of other weights: more than any round of several optimizers


@dataclass(eq=False)
class Block:
    """Weights that are tracked together: one parameter, or those of a layer under a joint covariance."""

    weights: list[Weight]
    state: State

    @property
    def sizes(self) -> list[int]:
        return [weight.local.numel() for weight in self.weights]

    def by_name(self, values: Tensor) -> dict[str, Tensor]:
        """A copy of flat values, by parameter name and in the shapes of what this process holds."""
        pieces = zip(self.weights, values.split(self.sizes), strict=True)
        return {weight.name: piece.clone().view(weight.local.shape) for weight, piece in pieces}

    def saved(self, gradients: dict[Weight, float], moved_at: dict[Weight, int], joint: bool) -> dict[str, Any]:
        """What a checkpoint holds of it; tensors are sharded as the weights are."""
        places = {weight.name: weight.place for weight in self.weights}
        mean, second = self.by_name(self.state.mean), self.state.second.clone()
        if not joint:
            ((name, second),) = self.by_name(second).items()
            second = all_of(second, places[name])
        return {
            "mean": {name: all_of(own, places[name]) for name, own in mean.items()},
            "second": second,
            "step": self.state.step,
            "observed": self.state.observed,
            "moved": {weight.name: moved_at.get(weight, 0) for weight in self.weights},
            "gradient": {w.name: all_of(_by_row(w, gradients.get(w)), places[w.name]) for w in self.weights},
        }

    def seen(self, kalman: Kalman, moved: Rates) -> Observation:
        """The block after a step that moved some of its weights; the others kept their place."""
        state = self.state
        values = [weight.local for weight in self.weights]
        device = values[0].device
        if state.mean.device != device:
            state.mean, state.second = state.mean.to(device), state.second.to(device)
        weight = _row(values, state)
        if not kalman.equations.needs_gradient:
            return Observation(state.mean, state.second, weight, None, 0.0)
        gradients = [weight.local_gradient for weight in self.weights]
        found = [torch.zeros_like(v) if g is None else g for v, g in zip(values, gradients, strict=True)]
        gradient = _row(found, state)
        each = [float(moved.get(weight, 0.0)) for weight in self.weights]
        lr: Rate = each[0]
        if state.second.ndim == 2:
            lr = torch.cat([state.mean.new_full((n,), rate) for n, rate in zip(self.sizes, each, strict=True)])
        return Observation(state.mean, state.second, weight, gradient, lr)


def _row(tensors: Sequence[Tensor], state: State) -> Tensor:
    """The block's values in one row; a single tensor is not copied, its chunks are converted one by one."""
    if len(tensors) == 1:
        return flat(tensors[0])
    return torch.cat([flat(tensor) for tensor in tensors]).to(state.mean.dtype)


class TRADI(Tracker):
    """Attach to a model and its optimizer; train as ever; then take the `posterior()`.

    A weight that was frozen, and is, while others took more than ten further steps has its final value for a mean,
    since that is what the others were trained with. Its variance stays that of its own steps.

    With a prior, the posterior is that of the run added to what was not known before (see docs/transfer.md). A weight
    that training does not move keeps the prior's variance, around the value that it has; a frozen one too, if `select`
    names it.

    Args:
        model: any module, also compiled or wrapped for data-parallel training. It is never modified.
        optimizer: any torch optimizer, or several that share the model.
        kalman: the filter. The default needs no tuning; `TRADI.paper` and `TRADI.released` pair the faithful ones.
        covariance: how noise is correlated within a layer, used when sampling. By default the task decides, once the
            posterior is conditioned: `Activations` for labels, `Independent` for numbers.
        select: which weights to track: a name pattern, a module type, a function of (name, module, parameter), or
            several of these. Default: all trainable ones, save those of normalisation layers.
        prior: the posterior of an earlier training that the model's weights come from, or the path of its file.
            Weights are matched by name and shape; others, such as a new head, start fresh.

    Raises:
        TypeError: if an argument is of another type, or a weight cannot be tracked.
        ValueError: if there is nothing to track, or the prior matches no weight.
    """

    takes_shards = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        kalman: Kalman = Kalman(),
        covariance: Covariance | None = None,
        select: Select = except_normalisation,
        prior: PriorSource = None,
    ) -> None:
        for name, value, kind in (("kalman", kalman, Kalman), ("covariance", covariance, Covariance)):
            if value is not None and not isinstance(value, kind):
                raise TypeError(
                    f"{name} must be an instance of {kind.__name__}, such as {kind.__name__}(...), got {value!r}"
                )
        self.kalman = kalman
        self.covariance = covariance
        self._joint = covariance is not None and covariance.joint
        self._blocks: dict[Weight, Block] = {}
        self._gradients: dict[Weight, float] = {}  # the average square of a weight's gradient
        self._moved_at: dict[Weight, int] = {}  # the last step that moved a weight
        self._gains = lru_cache(maxsize=2)(kalman.gains)  # mostly, all weights count the same steps
        super().__init__(model, optimizer, select)
        try:  # what cannot be tracked is an error now, not at the first step
            self._units(self.tracked)
            self.prior = None if prior is None else Prior.of(prior, self.model, self.selected)
        except Exception:
            with warnings.catch_warnings():  # that nothing was seen is no news
                warnings.simplefilter("ignore")
                self.detach()
            raise

    @classmethod
    def paper(cls, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], *, prior: PriorSource = None) -> TRADI:
        """The paper to the letter: Algorithm 1 on all weights, with its Fourier features. Leave the scale at 1.

        Args:
            model: any module; it is never modified.
            optimizer: of any kind, or several that share the weights.
            prior: as in `TRADI`.

        Returns:
            a tracker, attached to the optimizer.
        """
        return cls(model, optimizer, kalman=Kalman.paper(), covariance=FourierFeatures.paper(), select="*", prior=prior)

    @classmethod
    def released(
        cls, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], *, prior: PriorSource = None
    ) -> TRADI:
        """The authors' released script: its filter, a phase for every weight, normalisation layers left as trained.

        Args:
            model: any module; it is never modified.
            optimizer: of any kind, or several that share the weights.
            prior: as in `TRADI`.

        Returns:
            a tracker, attached to the optimizer.
        """
        return cls(model, optimizer, kalman=Kalman.released(), covariance=FourierFeatures.released(), prior=prior)

    @property
    def options(self) -> dict[str, Any]:
        own = {} if self.prior is None else {"prior": self.prior.sha256}
        return _as_numbers(self.kalman) | {"joint": self._joint} | own

    def __repr__(self) -> str:
        return super().__repr__() if self.prior is None else f"{super().__repr__()[:-1]}, {self.prior})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_gains"}  # for steps alone

    def snapshot(self) -> Posterior:
        blocks = [*self._current(), *self._unmoved()]
        mean: dict[str, Tensor] = {}
        variance: dict[str, Tensor] = {}
        covariance = {}
        for block in blocks:
            spread = block.state.second.clone()
            if self.prior is not None:
                spread += self.prior.second(block.weights, spread)
            mean |= block.by_name(block.state.mean)
            settled = [w for w in block.weights if self._is_settled(w)]
            mean |= {w.name: w.local.detach().to(block.state.mean, copy=True) for w in settled}
            variance |= block.by_name(spread.diagonal() if self._joint else spread)
            if self._joint:
                covariance[tuple(weight.name for weight in block.weights)] = spread
        gradient = self._average_squares(blocks)
        if self.is_sharded:
            return posterior_of_shards(self.model, mean, variance, gradient, self.covariance, self._shared_out)
        model = copied(self.model, own=mean)
        final = {name: parameter.detach() for name, parameter in model.named_parameters()}
        layers = by_layer(final, mean, variance, covariance, gradient=gradient)
        return Posterior(model, self._shared_out(layers), self.covariance)

    def _shared_out(self, layers: list[Layer]) -> list[Layer]:
        if self.prior is not None:
            moved = {plain_name(weight.name) for weight in self._moved_at}
            layers = with_prior(layers, self.prior.layers, moved)
        return share_out(layers)

    def _unmoved(self) -> list[Block]:
        """Weights that no step has moved and the prior knows, as they are now."""
        if self.prior is None:
            return []
        left = [w for w in self.selected.values() if w not in self._blocks and self.prior.knows(w)]
        return [self._fresh(members) for members in self._units(left)]

    def _fresh(self, members: list[Weight]) -> Block:
        return Block(members, _started(self.kalman, members, self._joint, self.prior))

    def _average_squares(self, blocks: list[Block]) -> dict[str, float]:
        """The average squared gradient of every weight it is known of, by name."""
        found = {}
        for weight in (weight for block in blocks for weight in block.weights):
            here = self._gradients.get(weight, math.nan)
            found[weight.name] = here if weight.place is None else math.fsum(weight.place.of_all(here))
        return {name: value for name, value in found.items() if not math.isnan(value)}

    def tracked_state(self) -> dict[str, Any]:
        started = self._current()
        known = {weight for block in started for weight in block.weights}
        units = self._units([weight for weight in self.tracked if weight not in known])
        # torch.distributed.checkpoint loads what a state has an entry for: weights that have not moved have one too.
        blocks = [*started, *map(self._fresh, units)]
        return {
            "started": len(known),
            "weights": {b.weights[0].name: b.saved(self._gradients, self._moved_at, self._joint) for b in blocks},
        }

    def load_tracked_state(self, state: dict[str, Any]) -> None:
        own = self.selected
        blocks: dict[Weight, Block] = {}
        gradients: dict[Weight, float] = {}
        moved_at: dict[Weight, int] = {}
        try:
            for saved in state["weights"].values():
                block = _saved_block(saved, own, self._joint)
                if block.state.step:
                    blocks |= dict.fromkeys(block.weights, block)
                    moved_at |= {own[name]: operator.index(step) for name, step in saved["moved"].items()}
                    squares = {own[name]: _saved_gradient(rows, own[name]) for name, rows in saved["gradient"].items()}
                    gradients |= {weight: square for weight, square in squares.items() if not math.isnan(square)}
            started = operator.index(state["started"])
        except (AttributeError, LookupError, TypeError, RuntimeError) as error:
            raise ValueError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error
        if started != len(blocks):
            raise ValueError(
                f"the checkpoint is damaged: it says that {started} weights were tracked and holds {len(blocks)}. If "
                "torch.distributed.checkpoint loaded it, these are frozen here and were not there"
            )
        self._blocks, self._gradients, self._moved_at = blocks, gradients, moved_at

    def observe(self, moved: Rates) -> None:
        self._moved_at |= dict.fromkeys(moved, self.steps)
        if not moved.keys() <= self._blocks.keys():
            if not self.usable(moved):
                return  # there is nothing to begin with
            self._start(moved)
        due: dict[Gains, list[Block]] = {}
        for block in dict.fromkeys(map(self._blocks.__getitem__, moved)):
            now = block.state.advance(self._gains)
            if now is not None:
                due.setdefault(now, []).append(block)
        if not due:
            return
        seen = [w for blocks in due.values() for block in blocks for w in block.weights if w in moved]
        gradients = _gradient_norms(seen)
        if not self.usable(seen, gradients.values()):
            return
        for now, blocks in due.items():
            for block in blocks:
                block.state.observed = block.state.step
            observe(self.kalman.equations, [block.seen(self.kalman, moved) for block in blocks], now)
            known = [weight for block in blocks for weight in block.weights if weight in gradients]
            self._average_gradients({weight: gradients[weight] for weight in known}, now.variance)

    def _average_gradients(self, sizes: dict[Weight, float], gain: float) -> None:
        """Average the squared gradients over the filter's memory: how much a layer's weights matter to the loss.

        Of a sharded weight that is what the part here adds to the average; only a posterior needs the sum.
        """
        for weight, size in sizes.items():
            square = size * size / weight.parameter.numel()
            before = self._gradients.get(weight, square)
            self._gradients[weight] = _rounded(before + gain * (square - before), weight)

    def _is_settled(self, weight: Weight) -> bool:
        """Whether a weight was frozen well before the end; all are frozen, perhaps, when training is over."""
        if weight not in self._moved_at:
            return True
        return not weight.parameter.requires_grad and self.steps - self._moved_at[weight] > SETTLED

    def _current(self) -> list[Block]:
        """The blocks whose weights are still in the model."""
        own = self.selected
        return [b for b in dict.fromkeys(self._blocks.values()) if all(own.get(w.name) is w for w in b.weights)]

    def _start(self, moved: Rates) -> None:
        """Begin with what is not tracked yet, and let go of what is no longer in the model."""
        self._blocks = {weight: block for block in self._current() for weight in block.weights}
        for members in self._units([weight for weight in moved if weight not in self._blocks]):
            self._blocks |= dict.fromkeys(members, self._fresh(members))

    def _units(self, weights: list[Weight]) -> list[list[Weight]]:
        """The weights in the groups that they are tracked in, all checked to be trackable and to fit in memory."""
        units: dict[str, list[Weight]] = {}
        for weight in weights:
            check_trackable(weight)
            if self._joint and weight.place is not None:
                raise TypeError(
                    f"{weight.name} is sharded over processes, and {self.covariance!r} needs all weights of a layer in "
                    "one: use Independent() or FourierFeatures()"
                )
            units.setdefault(weight.layer if self._joint else weight.name, []).append(weight)
        sizes = {name: sum(weight.parameter.numel() for weight in members) for name, members in units.items()}
        itemsize = max((_state_dtype(weight.parameter).itemsize for weight in weights), default=4)
        if self.covariance is not None:
            self.covariance.check(sizes, itemsize)
        return list(units.values())


def _started(kalman: Kalman, weights: list[Weight], joint: bool, prior: Prior | None) -> State:
    """The state before the first step: the equations' own or, of the run's displacement, the prior's mean exactly."""
    means, variances = [], []
    for weight in weights:
        parameter = weight.parameter
        values = weight.local.detach().to(_state_dtype(parameter))
        mean, variance = kalman.equations.start(values, weight.fan_in, weight.rows)
        if prior is not None and prior.knows(weight):
            mean, variance = prior.mean[weight].to(values, copy=True), torch.zeros_like(values)
        means.append(mean.reshape(-1))
        variances.append(variance.reshape(-1))
    if joint:
        return State(torch.cat(means), torch.cat(variances).diag())
    return State(means[0], variances[0])  # one weight a block, whose memory these are


def _by_row(weight: Weight, square: float | None) -> Tensor:
    """What the weights here add to the average squared gradient, at the first row of them; NaN where it is not known.

    Cut and joined by rows, as weights are for other processes, the numbers keep their sum.
    """
    rows = weight.rows if weight.place is None else len(range(*weight.place.rows))
    column = weight.local.new_full((rows,), math.nan if square is None else 0.0, dtype=_state_dtype(weight.parameter))
    column[:1] = math.nan if square is None else square
    return column


def _rounded(square: float, weight: Weight) -> float:
    """As a checkpoint holds it, so that a run goes on from one bit for bit."""
    return square if weight.parameter.dtype == torch.float64 else c_float(square).value


def _gradient_norms(weights: list[Weight]) -> dict[Weight, float]:
    """The Euclidean norm of each weight's gradient, where it has a dense one."""
    pairs = [(w, w.local_gradient) for w in weights]
    known = [(w, g) for w, g in pairs if g is not None and g.layout == torch.strided]
    return dict(zip([w for w, _ in known], norms([g for _, g in known]), strict=True))


def _saved_block(saved: dict[str, Any], own: dict[str, Weight], joint: bool) -> Block:
    """The block that `Block.saved` was called of.

    Raises:
        ValueError: if its tensors have other shapes than the weights, or other shards, or its counts are none.
    """
    weights = [own[name] for name in saved["mean"]]
    shapes = {weight.name: weight.parameter.shape for weight in weights}
    size = sum(shape.numel() for shape in shapes.values())
    second, expected = saved["second"], (size, size) if joint else shapes[weights[0].name]
    if any(saved["mean"][name].shape != shape for name, shape in shapes.items()) or second.shape != expected:
        raise ValueError(f"the checkpoint is damaged: what it holds of {list(shapes)} has other shapes")
    step, observed = operator.index(saved["step"]), operator.index(saved["observed"])
    if not 0 <= observed <= step:
        raise ValueError(f"the checkpoint is damaged: {list(shapes)} were observed at {observed} of {step} steps")
    device, dtype = weights[0].local.device, _state_dtype(weights[0].parameter)
    row = torch.cat([part_of(saved["mean"][weight.name], weight.place).reshape(-1) for weight in weights])
    if not joint:
        second = part_of(second, weights[0].place).reshape(-1)
    return Block(weights, State(row.to(device, dtype), second.to(device, dtype, copy=True), step, observed))


def _saved_gradient(rows: Tensor, weight: Weight) -> float:
    if rows.shape != (weight.rows,):
        raise ValueError(f"the checkpoint is damaged: the gradient of {weight.name} has shape {tuple(rows.shape)}")
    return part_of(rows, weight.place).sum().item()


def _state_dtype(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _as_numbers(options: Any) -> Any:
    """Frozen options as dictionaries of numbers, under the names of their types."""
    if not is_dataclass(options):
        return options
    return {
        type(options).__name__: {field.name: _as_numbers(getattr(options, field.name)) for field in fields(options)}
    }
