"""TRADI: the mean and variance of every weight, Kalman-tracked through one training run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tradi._torch import foreach_lerp_, foreach_mul, foreach_norm
from tradi.ensemble.copying import copied
from tradi.filter.equations import Gains, Rate
from tradi.filter.kalman import Kalman, Observation, State, observe
from tradi.posterior.covariance import Covariance, FourierFeatures
from tradi.posterior.layers import by_layer, share_out
from tradi.posterior.posterior import Posterior
from tradi.tracking.selection import Select, Weight, check_trackable, except_normalisation, flat
from tradi.tracking.tracker import Rates, Tracker


@dataclass(eq=False)
class Block:
    """Weights that are tracked together: one parameter, or those of a layer under a joint covariance."""

    weights: list[Weight]
    state: State

    @property
    def sizes(self) -> list[int]:
        return [weight.parameter.numel() for weight in self.weights]

    def by_name(self, values: Tensor) -> dict[str, Tensor]:
        """A copy of flat values, by parameter name and in the parameters' shapes."""
        pieces = zip(self.weights, values.split(self.sizes), strict=True)
        return {weight.name: piece.clone().view(weight.parameter.shape) for weight, piece in pieces}

    def seen(self, kalman: Kalman, moved: Rates) -> Observation:
        """The block after a step that moved some of its weights; the others kept their place."""
        state = self.state
        parameters = [weight.parameter for weight in self.weights]
        device = parameters[0].device
        if state.mean.device != device:
            state.mean, state.second = state.mean.to(device), state.second.to(device)
        weight = _row(parameters, state)
        if not kalman.equations.needs_gradient:
            return Observation(state.mean, state.second, weight, None, 0.0)
        gradient = _row([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters], state)
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

    Args:
        model: any module, also compiled or wrapped for data-parallel training. It is never modified.
        optimizer: any torch optimizer, or several that share the model.
        kalman: the filter. The default needs no tuning; `TRADI.paper` and `TRADI.released` pair the faithful ones.
        covariance: how noise is correlated within a layer, used when sampling. By default the task decides, once the
            posterior is conditioned: `Activations` for labels, `Independent` for numbers.
        select: which weights to track: a name pattern, a module type, a function of (name, module, parameter), or
            several of these. Default: all trainable ones, save those of normalisation layers.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        kalman: Kalman = Kalman(),
        covariance: Covariance | None = None,
        select: Select = except_normalisation,
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
        self._gradients: dict[Weight, Tensor] = {}  # the average square of a weight's gradient, one number
        self._gains = lru_cache(maxsize=2)(kalman.gains)  # mostly, all weights count the same steps
        super().__init__(model, optimizer, select)
        self._units(self.tracked)  # what cannot be tracked is an error now, not at the first step

    @classmethod
    def paper(cls, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> TRADI:
        """The paper to the letter: Algorithm 1 on all weights, with its Fourier features. Leave the scale at 1."""
        return cls(model, optimizer, kalman=Kalman.paper(), covariance=FourierFeatures.paper(), select="*")

    @classmethod
    def released(cls, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]) -> TRADI:
        """The authors' released script: its filter, a phase for every weight, normalisation layers left as trained."""
        return cls(model, optimizer, kalman=Kalman.released(), covariance=FourierFeatures.released())

    @property
    def options(self) -> dict[str, Any]:
        return _as_numbers(self.kalman) | {"joint": self._joint}

    def posterior(self) -> Posterior:
        """A frozen snapshot of what was tracked so far; training may go on and changes nothing in it."""
        self.check_up_to_date()
        model = copied(self.model)
        final = {name: parameter.detach() for name, parameter in model.named_parameters()}
        mean: dict[str, Tensor] = {}
        variance: dict[str, Tensor] = {}
        covariance = {}
        for block in self._current():
            spread = block.state.second.clone()
            mean |= block.by_name(block.state.mean)
            variance |= block.by_name(spread.diagonal() if self._joint else spread)
            if self._joint:
                covariance[tuple(weight.name for weight in block.weights)] = spread
        gradient = {weight.name: value.item() for weight, value in self._gradients.items()}
        layers = by_layer(final, mean, variance, covariance, gradient=gradient)
        return Posterior(model, share_out(layers), self.covariance)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers only, by parameter name: what a restarted run needs to go on bit for bit."""
        return self.common_state() | {
            "weights": {
                block.weights[0].name: {
                    "mean": block.by_name(block.state.mean),
                    "second": block.state.second.clone(),
                    "step": block.state.step,
                    "observed": block.state.observed,
                    "gradient": {w.name: self._gradients[w].clone() for w in block.weights if w in self._gradients},
                }
                for block in self._current()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved `state_dict()`."""
        self.check_common_state(state)
        own = self.selected
        blocks: dict[Weight, Block] = {}
        gradients: dict[Weight, Tensor] = {}
        for saved in state["weights"].values():
            weights = [own[name] for name in saved["mean"]]
            shapes = {weight.name: weight.parameter.shape for weight in weights}
            size = sum(shape.numel() for shape in shapes.values())
            second = saved["second"]
            square = (size, size) if self._joint else (size,)
            if any(saved["mean"][name].shape != shape for name, shape in shapes.items()) or second.shape != square:
                raise ValueError(f"the checkpoint is damaged: what it holds of {list(shapes)} has other shapes")
            row = torch.cat([value.reshape(-1) for value in saved["mean"].values()])
            device, dtype = weights[0].parameter.device, _state_dtype(weights[0].parameter)
            mean, second = row.to(device, dtype), second.to(device, dtype, copy=True)
            now = State(mean, second, saved["step"], saved["observed"])
            blocks |= dict.fromkeys(weights, Block(weights, now))
            gradients |= {own[name]: value.to(device, copy=True) for name, value in saved["gradient"].items()}
        if state["steps"] and not blocks:
            raise ValueError(f"the checkpoint is damaged: it is of {state['steps']} steps and holds no weights")
        self.load_common_state(state)
        self._blocks, self._gradients = blocks, gradients

    def observe(self, moved: Rates) -> None:
        if not moved.keys() <= self._blocks.keys():
            self._start(moved)
        due: dict[Gains, list[Block]] = {}
        for block in dict.fromkeys(map(self._blocks.__getitem__, moved)):
            now = block.state.advance(self._gains)
            if now is not None:
                due.setdefault(now, []).append(block)
        for now, blocks in due.items():
            observe(self.kalman.equations, [block.seen(self.kalman, moved) for block in blocks], now)
            self._observe_gradients([w for block in blocks for w in block.weights if w in moved], now.variance)

    @torch.no_grad()
    def _observe_gradients(self, weights: list[Weight], gain: float) -> None:
        """Average the squared gradients over the filter's memory: how much a layer's weights matter to the loss."""
        pairs = [(w, w.parameter.grad) for w in weights]
        known = [(w, g) for w, g in pairs if g is not None and g.layout == torch.strided and g.numel()]
        if not known:
            return
        norms = foreach_norm([gradient.to(_state_dtype(gradient)) for _, gradient in known], 2)
        squares = foreach_mul(foreach_mul(norms, norms), [1 / gradient.numel() for _, gradient in known])
        fresh = {w: square for (w, _), square in zip(known, squares, strict=True) if not self._is_tracked(w, square)}
        self._gradients |= fresh
        if len(fresh) < len(known):
            foreach_lerp_([self._gradients[w] for w, _ in known], squares, gain)

    def _is_tracked(self, weight: Weight, square: Tensor) -> bool:
        return weight in self._gradients and self._gradients[weight].device == square.device

    def _current(self) -> list[Block]:
        """The blocks whose weights are still in the model."""
        own = self.selected
        return [b for b in dict.fromkeys(self._blocks.values()) if all(own.get(w.name) is w for w in b.weights)]

    def _start(self, moved: Rates) -> None:
        """Begin with what is not tracked yet, and let go of what is no longer in the model."""
        self._blocks = {weight: block for block in self._current() for weight in block.weights}
        for members in self._units([weight for weight in moved if weight not in self._blocks]):
            state = _started(self.kalman, members, self._joint)
            self._blocks |= dict.fromkeys(members, Block(members, state))

    def _units(self, weights: list[Weight]) -> list[list[Weight]]:
        """The weights in the groups that they are tracked in, all checked to be trackable and to fit in memory."""
        units: dict[str, list[Weight]] = {}
        for weight in weights:
            check_trackable(weight)
            units.setdefault(weight.layer if self._joint else weight.name, []).append(weight)
        sizes = {name: sum(weight.parameter.numel() for weight in members) for name, members in units.items()}
        itemsize = max((_state_dtype(weight.parameter).itemsize for weight in weights), default=4)
        if self.covariance is not None:
            self.covariance.check(sizes, itemsize)
        return list(units.values())


def _started(kalman: Kalman, weights: list[Weight], joint: bool) -> State:
    means, variances = [], []
    for weight in weights:
        parameter = weight.parameter
        mean, variance = kalman.equations.start(parameter.detach().to(_state_dtype(parameter)), weight.fan_in)
        means.append(mean.reshape(-1))
        variances.append(variance.reshape(-1))
    if joint:
        return State(torch.cat(means), torch.cat(variances).diag())
    return State(means[0], variances[0])  # one weight a block, whose memory these are


def _state_dtype(parameter: Tensor) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


def _as_numbers(options: Any) -> Any:
    """Frozen options as dictionaries of numbers, under the names of their types."""
    if not is_dataclass(options):
        return options
    return {
        type(options).__name__: {field.name: _as_numbers(getattr(options, field.name)) for field in fields(options)}
    }
