"""Following a training run from outside: an optimizer hook, and which weights it moved."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tradi._torch import version_of
from tradi.ensemble.copying import check_copyable, unwrap
from tradi.posterior.posterior import Posterior
from tradi.tracking.selection import Select, Weight, as_predicate, check_trackable, named_weights

UNSEEN = (
    "no optimizer step was seen: attach before training, to the optimizer that is stepped. A deep-copied or "
    "unpickled optimizer loses its hooks: attach to the copy"
)


# The weights that an optimizer step has just moved, each with its group's learning rate (negative if it maximises).
Rates = dict[Weight, float]


class Tracker(ABC):
    """Sees every step of the optimizers and passes on which of the selected weights moved.

    The model and the training loop stay as they are. Use it as a context manager, or call `detach`, to stop.

    A method that follows training derives from this class and implements what is abstract here. For that it is given:

    - `selected` and `tracked`, the weights;
    - `steps` and `rounds`, counts of optimizer steps;
    - `check_up_to_date()`, to be called first in `posterior()`;
    - `common_state()`, `check_common_state(state)` and `load_common_state(state)`, the part of a checkpoint that all
      trackers share.

    Args:
        model: also compiled or wrapped for data-parallel training.
        optimizer: one, or several that share the model.
        select: which weights, as `selection.as_predicate` explains.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], select: Select) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        optimizers = list(dict.fromkeys(_optimizers(optimizer)))
        self.model = unwrap(model)
        self.steps = 0
        check_copyable(self.model)
        self._last: list[tuple[nn.Parameter, int]] = []
        self._is_selected = as_predicate(select)
        self._weights: dict[nn.Parameter, Weight | None] = {}
        self._look_up_weights()
        self._check_attached([p for one in optimizers for group in one.param_groups for p in group["params"]])
        self._taken = dict.fromkeys(optimizers, 0)
        self._handles = [one.register_step_post_hook(self._after_step) for one in optimizers]

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What a checkpoint must have been written with to be resumed from: dictionaries of numbers."""

    @abstractmethod
    def observe(self, moved: Rates) -> None:
        """Take note of the weights that one optimizer step moved, each with its learning rate.

        Skipped steps, frozen weights, tied weights and layers that were added late are dealt with before it is called.
        """

    @abstractmethod
    def posterior(self) -> Posterior:
        """A frozen snapshot of what was tracked so far; training may go on and changes nothing in it."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """`common_state()` and, under "weights", what was tracked: tensors and numbers only, by parameter name."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved `state_dict()`: `check_common_state` first, `load_common_state` when all is checked."""

    def __repr__(self) -> str:
        weights = self.tracked
        size = sum(weight.parameter.numel() for weight in weights)
        layers = len({weight.layer for weight in weights})
        state = f"{self.steps:,} steps seen" + ("" if self._handles else ", detached")
        return f"{type(self).__name__}({type(self.model).__name__}: {size:,} weights in {layers} layers, {state})"

    def detach(self) -> None:
        """Stop following the optimizers; what was tracked stays."""
        for handle in self._handles:
            handle.remove()
        if self._handles and not self.steps:
            warnings.warn(UNSEEN, stacklevel=2)
        self._handles = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracker:
        """Itself: a tracker follows one run, and a copy of a model that holds it is not another run."""
        del memo
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.detach()
        else:  # whatever went wrong is the news, not that nothing was seen
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.detach()

    @property
    def selected(self) -> dict[str, Weight]:
        """All selected weights that are in the model now, by name and in the model's order; frozen ones too."""
        self._look_up_weights()
        return {weight.name: weight for weight in self._weights.values() if weight}

    @property
    def tracked(self) -> list[Weight]:
        """Those of the selected weights that are trainable now."""
        return [weight for weight in self.selected.values() if weight.parameter.requires_grad]

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        # A fused optimizer under a GradScaler runs its hooks for skipped steps too.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return
        moved: Rates = {}
        for group in optimizer.param_groups:
            lr = group.get("lr", 0.0)
            lr = -lr if group.get("maximize") else lr
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                try:
                    weight = self._weights[parameter]
                except KeyError:  # a layer or param group added since we last looked
                    self._look_up_weights()
                    weight = self._weights.setdefault(parameter, None)
                if weight is not None:
                    moved[weight] = lr
        if moved:
            self.steps += 1
            self._taken[optimizer] += 1
            self.observe(moved)
            self._last = [(weight.parameter, version_of(weight.parameter)) for weight in moved]

    @property
    def rounds(self) -> int:
        """Steps that every one of the optimizers has taken: training steps, where each takes one of them."""
        return min(self._taken.values())

    def common_state(self) -> dict[str, Any]:
        """What the state of any tracker begins with: counts, options, and the shapes of the selected weights."""
        return {
            "steps": self.steps,
            "taken": dict(enumerate(self._taken.values())),
            "options": self.options,
            "selected": {name: torch.tensor(weight.parameter.shape) for name, weight in self.selected.items()},
        }

    def check_common_state(self, state: dict[str, Any]) -> None:
        """Check that a checkpoint is of a tracker like this one.

        Raises:
            ValueError: if it is not; the message lists both sides.
        """
        if not isinstance(state, dict) or not {"steps", "taken", "options", "selected", "weights"} <= state.keys():
            raise ValueError(
                f"this is not the state_dict() of a tracker: got {list(state) if isinstance(state, dict) else state!r}"
            )
        if state["options"] != self.options:
            raise ValueError(f"the checkpoint was written with {state['options']}, this tracker has {self.options}")
        theirs = {name: tuple(shape.tolist()) for name, shape in state["selected"].items()}
        ours = {name: tuple(weight.parameter.shape) for name, weight in self.selected.items()}
        if theirs != ours:
            raise ValueError(f"the checkpoint is of weights {theirs}, this tracker follows {ours}")
        if len(state["taken"]) != len(self._taken):
            raise ValueError(
                f"the checkpoint is of {len(state['taken'])} optimizers, this tracker has {len(self._taken)}"
            )

    def load_common_state(self, state: dict[str, Any]) -> None:
        """Take over the counts of a checkpoint that was checked."""
        self.steps, self._taken = state["steps"], dict(zip(self._taken, state["taken"].values(), strict=True))

    def check_up_to_date(self) -> None:
        """Raise if nothing was seen, and warn if the weights have changed behind the tracker's back since."""
        if not self.steps:
            raise RuntimeError(UNSEEN)
        # A clamp after every step or weights swapped out and in again change a tensor once or twice.
        if self._handles and any(version_of(parameter) > version + 10 for parameter, version in self._last):
            warnings.warn(
                "the weights have changed many times since the last step that was seen: another optimizer moves them, "
                "perhaps a copy, which loses its hooks, and what was tracked does not belong to them",
                stacklevel=3,
            )

    def _look_up_weights(self) -> None:
        known = self._weights
        self._weights = {p: None for p, weight in known.items() if weight is None}  # nothing to us, and no need to look
        for weight in named_weights(self.model).values():
            selected = self._is_selected(weight) and not weight.is_empty
            if selected and weight.parameter.requires_grad and weight.parameter not in known:
                check_trackable(weight)
            same = known.get(weight.parameter)
            if same is not None:  # it keeps its object, and with it what was tracked of it, under whatever name
                same.name, same.modules = weight.name, weight.modules
            self._weights[weight.parameter] = (same or weight) if selected else None

    def _check_attached(self, parameters: list[torch.Tensor]) -> None:
        own = set(self.model.parameters())
        if not any(p in own for p in parameters):
            raise ValueError(
                "the optimizer holds none of this model's parameters: build it from model.parameters(), "
                "after any step that replaces them"
            )
        if not any(self._weights.get(p) for p in parameters):  # type: ignore[call-overload]
            names = [name for name, _ in self.model.named_parameters()]
            raise ValueError(f"select= leaves nothing to track of the optimizer's weights; the model has {names}")


def _optimizers(given: Optimizer | Sequence[Optimizer]) -> list[Optimizer]:
    several = [given] if isinstance(given, Optimizer) or not isinstance(given, Iterable) else list(given)
    for one in several:
        if not isinstance(one, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer or several of them, got {type(one).__name__}")
    return several
