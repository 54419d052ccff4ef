"""Following a training run from outside: an optimizer hook, and which weights it moved."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tradi.ensemble.copying import check_copyable, copied, unwrap
from tradi.posterior.posterior import Posterior
from tradi.sharding import Place, holds_everywhere, is_sharded_model, reshard
from tradi.tracking.checkpoint import check_state, saved_shapes, shapes
from tradi.tracking.recognition import MARKED_OTHERS, OTHER_WEIGHTS, Fingerprint, is_same, values_of
from tradi.tracking.replicas import check_same
from tradi.tracking.selection import Select, Weight, as_predicate, check_trackable, is_among, named_weights
from tradi.tracking.step_lock import StepLock
from tradi.tracking.unseen import Unseen
from tradi.tracking.unwrapping import check_train_mode, unwrapped
from tradi.tracking.usable import norms

UNSEEN = (
    "no optimizer step was seen: attach before training, to the optimizer that is stepped. A deep-copied or "
    "unpickled optimizer loses its hooks: attach to the copy"
)


COPY = (
    "the model's weights are not those of the last step that was seen: this tracker is a copy that follows no "
    "optimizer; to train its model, attach a new tracker"
)

# What a pickle of a tracker leaves behind: that is detached.
OF_THIS_PROCESS = ("_lock", "_handles", "_unseen")

# The weights that an optimizer step has just moved, each with its group's learning rate (negative if it maximises).
Rates = dict[Weight, float]


class Tracker(ABC):
    """Sees every step of the optimizers and passes on which of the selected weights moved.

    The model and the training loop stay as they are. Use it as a context manager, or call `detach`, to stop.

    A method that follows training derives from this class and implements what is abstract here. For that it is given:

    - `selected` and `tracked`, the weights;
    - `steps` and `rounds`, counts of optimizer steps;
    - `usable(weights)`, to be asked before weights are read in `observe`: whether all values are finite and small
      enough to be squared (1e18 in float32). A step where they are not is left out, counted in `skipped`, and warned
      about once.

    A snapshot may be taken in another thread than the one that trains: it waits for the end of an optimizer step.
    A pickled tracker is a copy of this moment, with its model, and detached: `posterior()` works in another process,
    and no step is seen there.

    Args:
        model: also compiled, or wrapped for data-parallel training or by Fabric.
        optimizer: one, or several that share the model; also as accelerate, Lightning and Fabric hand them out.
        select: which weights, as `selection.as_predicate` explains.
    """

    takes_shards = False  # whether `observe` reads weights by `Weight.local`, and `posterior` makes one of shards

    def __init__(self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], select: Select) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        optimizers = unwrapped(optimizer)
        self.model = unwrap(model)
        self.steps = 0
        self.skipped = (
            0  # steps that were left out, since weights or gradients were NaN, infinite or too large to be squared
        )
        self.is_sharded = is_sharded_model(self.model)
        if not self.is_sharded:
            check_copyable(self.model)
        elif not self.takes_shards:
            raise TypeError(
                f"the model's weights are sharded over processes (fully_shard), which {type(self).__name__} cannot "
                "follow: use TRADI, or DistributedDataParallel"
            )
        for name, parameter in self.model.named_parameters() if self.is_sharded else ():
            Place.of(name, parameter)  # what no posterior could be made of is an error now
        self._lock = StepLock()
        self._fingerprint = Fingerprint()
        self._best: dict[str, Any] | None = None
        self._is_selected = as_predicate(select)
        self._weights: dict[nn.Parameter, Weight | None] = {}
        self._look_up_weights()
        self._check_attached([p for one in optimizers for group in one.param_groups for p in group["params"]])
        self._taken = dict.fromkeys(optimizers, 0)
        self._unseen = Unseen(self.tracked)
        # The compiler cannot look into locks.
        before, after = torch.compiler.disable(self._before_step), torch.compiler.disable(self._after_step)
        self._handles = [one.register_step_pre_hook(before) for one in optimizers]
        self._handles += [one.register_step_post_hook(after) for one in optimizers]

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
    def snapshot(self) -> Posterior:
        """The posterior of what was tracked so far, from copies of the model and of the state."""

    @abstractmethod
    def tracked_state(self) -> dict[str, Any]:
        """Under "weights", a copy of what was tracked: tensors and numbers only, by parameter name."""

    @abstractmethod
    def load_tracked_state(self, state: dict[str, Any]) -> None:
        """Take over what `tracked_state()` gave, if all of it is as it should be.

        Raises:
            ValueError: if it is not; then nothing has changed.
        """

    def posterior(self) -> Posterior:
        """A frozen snapshot of what was tracked up to the weights that the model has now.

        These are those of the last step, or those that `mark_best()` marked. Training may go on and changes nothing in
        the snapshot. In another thread than the one that trains, the weights are those between two steps; buffers, such
        as the statistics of BatchNorm, are copied as they are. Of a model that `fully_shard` sharded it is a
        `ShardedPosterior`; all processes must ask for it, and mark the best weights, together.

        Raises:
            RuntimeError: if nothing was seen, or if the model has other weights; the message names the remedies.
        """
        with self._lock.between_steps():
            best = self._state_of_these_weights()
            if best is None:
                return self.snapshot()
            with self._holding(best):
                return self.snapshot()

    def mark_best(self) -> None:
        """Keep a copy of what was tracked up to now, beside a checkpoint of the best weights.

        When these weights are put back, `posterior()` belongs to them. One copy is kept, in memory and in
        `state_dict()`: that of the last call.

        Raises:
            RuntimeError: if nothing was seen, or if what was tracked does not belong to the model's weights.
        """
        with self._lock.between_steps():
            best = self._state_of_these_weights() or self._state()
            self._best = best | {"fingerprint": values_of(best["fingerprint"], self.selected)}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers only, by parameter name: what a restarted run needs to go on bit for bit.

        Of sharded weights they are DTensors, which torch.distributed.checkpoint saves and loads; what `mark_best()` has
        marked of these is not among them.
        """
        with self._lock.between_steps():
            if self.is_sharded:
                return self._state() | {"fingerprint": self._fingerprint.unknown(self.selected)}
            return self._state() | ({} if self._best is None else {"best": copy.deepcopy(self._best)})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved `state_dict()`; after an error everything is as before.

        Raises:
            ValueError: if the state is damaged, or that of other weights or options; the message lists both sides.
        """
        with self._lock.between_steps():
            self._check(state)
            best = state.get("best")
            if best is not None:
                self._check(best)
                with self._holding(best):
                    pass  # one that is damaged is an error now
            self.load_tracked_state(state)
            self.steps, self.skipped = state["steps"], state["skipped"]
            self._taken = dict(zip(self._taken, state["taken"].values(), strict=True))
            nothing = {"drift": 0.0, "values": {}}
            self._fingerprint.load_state_dict(nothing if self.is_sharded else state["fingerprint"], self.selected)
            self._best = copy.deepcopy(best)

    def __repr__(self) -> str:
        weights = self.tracked
        size = sum(weight.parameter.numel() for weight in weights)
        layers = len({weight.layer for weight in weights})
        state = f"{self.steps:,} steps seen"
        state += f", {self.skipped:,} left out (not finite)" if self.skipped else ""
        state += "" if self._handles else ", detached"
        return f"{type(self).__name__}({type(self.model).__name__}: {size:,} weights in {layers} layers, {state})"

    def detach(self) -> None:
        """Stop following the optimizers; what was tracked stays."""
        with self._lock.between_steps():
            for handle in self._handles:
                handle.remove()
            self._fingerprint.forget_places()
            if self._handles:
                self._unseen.stop()
        if self._handles and not self.steps:
            warnings.warn(UNSEEN, stacklevel=2)
        self._handles = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Tracker:
        """Itself: a tracker follows one run, and a copy of a model that holds it is not another run."""
        del memo
        return self

    def __getstate__(self) -> dict[str, Any]:
        """A copy of what was tracked, of the model and of the options, which no later step changes.

        Optimizers and what follows them in this process stay here, and weights are selected by name.
        """
        if self.is_sharded:
            raise TypeError(
                "the weights are sharded over processes, and so is what was tracked: save tracker.state_dict() with "
                "torch.distributed.checkpoint"
            )
        with self._lock.between_steps():
            names = frozenset(self.selected)
            memo: dict[int, Any] = {}
            copied(self.model, own=dict(self.model.named_parameters()), memo=memo)  # multiprocessing shares memory
            kept = {name: value for name, value in vars(self).items() if name not in OF_THIS_PROCESS}
            kept |= {"_is_selected": partial(is_among, names), "_taken": dict(enumerate(self._taken.values()))}
            return copy.deepcopy(kept, memo)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock, self._handles = StepLock(), []

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
        with self._lock.between_steps():
            self._look_up_weights()
            return {weight.name: weight for weight in self._weights.values() if weight}

    @property
    def tracked(self) -> list[Weight]:
        """Those of the selected weights that are trainable now."""
        return [weight for weight in self.selected.values() if weight.parameter.requires_grad]

    def assert_synchronised(self) -> None:
        """Check that all processes have tracked the same of the weights that they hold copies of.

        Under DistributedDataParallel that is everything, under `fully_shard` with replicas every shard, and in one
        process there is nothing to compare. All processes must call it together.

        Raises:
            RuntimeError: if something differs; it names the first weight that does, and the processes.
        """
        check_same(self.state_dict(), {name: weight.place for name, weight in self.selected.items()})

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        if self._lock.begin(optimizer):
            self._fingerprint.before_step(self.steps)

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args, kwargs
        if not self._lock.ends(optimizer):
            return
        try:
            moved = self._moved(optimizer)
            if moved:
                self.steps += 1
                self._unseen.stop()
                self._taken[optimizer] += 1
                self.observe(moved)
                self._fingerprint.take(list(moved))
        finally:
            self._lock.end(optimizer)

    def _moved(self, optimizer: Optimizer) -> Rates:
        """The weights that a step of the optimizer moved, none if it was skipped."""
        # A fused optimizer under a GradScaler runs its hooks for skipped steps too.
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return {}
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
        return moved

    def usable(self, weights: Iterable[Weight], also: Iterable[float] = ()) -> bool:
        """Whether all values of the weights are finite and can be squared; if not, the step is counted in `skipped`.

        Args:
            weights: those that are about to be read.
            also: other numbers that must be finite, such as norms of gradients.
        """
        weights = list(weights)
        sizes = norms([weight.local for weight in weights])
        if all(map(isfinite, sizes)) and all(map(isfinite, also)):
            return True
        self.skipped += 1
        if self.skipped == 1:
            named = [w.name for w, size in zip(weights, sizes, strict=True) if not isfinite(size)] or ["a gradient"]
            warnings.warn(
                f"{named[0]} is NaN, infinite or too large to be squared after step {self.steps}: such steps are left "
                "out of what is tracked, and counted in tracker.skipped. Lower the learning rate, or clip gradients",
                stacklevel=2,
            )
        return False

    @property
    def rounds(self) -> int:
        """Steps that every one of the optimizers has taken: training steps, where each takes one of them."""
        return min(self._taken.values())

    def _state(self) -> dict[str, Any]:
        own = self.selected
        return {
            "steps": self.steps,
            "skipped": self.skipped,
            "taken": {str(number): taken for number, taken in enumerate(self._taken.values())},
            "options": self.options,
            "selected": {name: torch.tensor(weight.parameter.shape) for name, weight in own.items()},
            "fingerprint": self._fingerprint.state_dict(own),
        } | self.tracked_state()

    def _check(self, state: dict[str, Any]) -> None:
        check_state(state, self.options, self.selected, len(self._taken))

    def _state_of_these_weights(self) -> dict[str, Any] | None:
        """What was marked, if the model has the marked weights; None if it has those of the last step."""
        if not self.steps:
            raise RuntimeError(UNSEEN)
        check_train_mode(one for one in self._taken if isinstance(one, Optimizer))  # a pickle has their numbers
        own, best = self.selected, self._best
        marked = best is not None and saved_shapes(best) == shapes(own) and is_same(best["fingerprint"], own)
        if best is not None and holds_everywhere(marked, self.model):
            return best
        if not holds_everywhere(not self._fingerprint.change(own), self.model):
            if not any(isinstance(one, Optimizer) for one in self._taken):
                raise RuntimeError(COPY)
            raise RuntimeError(OTHER_WEIGHTS + (MARKED_OTHERS if best is not None else ""))
        return None

    @contextmanager
    def _holding(self, state: dict[str, Any]) -> Iterator[None]:
        now = self._state()
        self.load_tracked_state(state)
        try:
            yield
        finally:
            self.load_tracked_state(now)

    def _look_up_weights(self) -> None:
        if self.is_sharded:
            reshard(self.model)
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
