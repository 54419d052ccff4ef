"""Many networks in the room of one: lazy, seeded members that share a module."""

from __future__ import annotations

import copy
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tradi import at_once
from tradi.batches import SameOrder, arguments, batches, check_reiterable, combined, in_parts
from tradi.batchnorm import refreshed, running_layers
from tradi.progress import track
from tradi.weights import Held, Slots

KEEP_BYTES = 1 << 28  # members are kept once drawn where all of them fit in this; of larger ones only as many at a time

State = dict[str, Tensor]


class Ensemble:
    """Members of one architecture with weights of their own, run one after another; an MLP's, for few samples, at once.

    Args:
        model: gives the architecture and whatever a member does not draw. It must be the ensemble's alone.
        draw: weights of member i, by parameter name: a function of i and nothing else.
        size: number of members.
        moved: the members' weights are not those that BatchNorm's statistics belong to, so `refresh` is due.
    """

    def __init__(self, model: nn.Module, draw: Callable[[int], State], size: int, *, moved: bool = False) -> None:
        size = operator.index(size)
        if size < 1:
            raise ValueError(f"an ensemble needs at least 1 member, got {size}")
        self._model = model.eval()
        self._draw = draw
        self._size = size
        self._stale = moved and bool(running_layers(model))
        self._shared = {name: p.detach() for name, p in model.named_parameters()}
        self._buffers = dict(model.named_buffers())
        self._statistics: dict[int, State] = {}
        self._kept: dict[int, State] = {}
        self._stacked: State = {}
        self._slots = Slots(model)
        self._fit = KEEP_BYTES // max(sum(t.nbytes for t in self._shared.values()), 1)
        self._lock = threading.Lock()  # members take turns in one module

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which a copy gets anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[i] for i in range(self._size))

    def __getitem__(self, i: int) -> nn.Module:
        """Member i as an ordinary module of its own, in eval mode."""
        i = self._index(i)
        with torch.inference_mode(False), torch.no_grad():
            with self._lock:
                module = copy.deepcopy(self._model)
            tensors = dict(module.named_parameters()) | dict(module.named_buffers())
            for name, value in {**self._weights(i), **self._statistics.get(i, {})}.items():
                tensors[name].copy_(value)
        return module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of all members, stacked along a new first axis: (members, batch, ...).

        Tuples, dicts and dataclasses keep their form, with every tensor in them stacked. Gradients flow to the inputs
        alone. The model must return new tensors: one that it fills again at every call is the last member's for all.
        """
        self._warn_if_stale()
        if 1 < self._size <= self._fit // 2 and at_once.pays(self._model, args, kwargs):
            return self._together(args[0])
        return combined(torch.stack, [self._run(self._held(i), args, kwargs) for i in range(self._size)])  # type: ignore[arg-type]

    def _together(self, x: Tensor) -> Tensor:
        with self._lock:
            if not self._stacked:
                with torch.inference_mode(False), torch.no_grad():
                    self._stacked = at_once.stacked([self._state(i) for i in range(self._size)])
            return at_once.run(self._model, self._stacked, x)

    def predict(self, loader: Iterable[Any]) -> Any:
        """Outputs for a whole data set, (members, samples, ...): each member is drawn once and sees all batches.

        The loader must give the same samples in the same order every time (shuffle=False).
        """
        check_reiterable(loader, "loader")
        order = None if _at_hand(loader) else SameOrder("loader")
        everything: Any = None  # made for all members as soon as the first has shown its form, and filled in place
        for i in track(range(self._size), "predicting", self._size):
            member = combined(_join, [output for output, _ in self.outputs(i, loader, order)])
            if i == 0:
                everything = combined(partial(_room, self._size), [member])
            combined(partial(_put, i), [everything, member])
        return everything

    def outputs(self, i: int, loader: Iterable[Any], order: SameOrder | None = None) -> Iterator[tuple[Any, Any]]:
        """(output of member i, target) for every batch of the loader: evaluation that keeps nothing in memory.

        Pass one `SameOrder` to the calls of all members to be sure that they see the same samples.
        """
        return self._outputs(self._index(i), self._watched(loader, order))

    def walk(self, loader: Iterable[Any], order: SameOrder) -> Iterator[tuple[int, int, Any, Any]]:
        """(member, batch, output, target), keeping no outputs and reading the data once.

        Members take turns over as many batches as fit in memory: of every batch the last member is seen before the
        first of the next ones.
        """
        number = 0
        for part in in_parts(self._watched(loader, None if _at_hand(loader) else order), KEEP_BYTES):
            for i in range(self._size):
                for place, (output, target) in enumerate(self._outputs(i, part)):
                    yield i, number + place, output, target
            number += len(part)

    def _watched(self, loader: Iterable[Any], order: SameOrder | None) -> Iterable[tuple[Any, Any]]:
        if order is None:
            return batches(loader, "loader", self._device)
        return order.watch(batches(loader, order.argument, self._device))

    def _outputs(self, i: int, data: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        self._warn_if_stale()
        member = self._held(i)
        for inputs, target in data:
            args, kwargs = arguments(inputs)
            with torch.no_grad():
                output = self._run(member, args, kwargs)
            yield output, target

    def refresh(self, loader: Iterable[Any], argument: str = "loader") -> Ensemble:
        """Recompute every member's BatchNorm statistics on the (training) data; returns the ensemble itself.

        Pass shuffled, representative data; some thousand samples are as good as millions. Without such layers nothing
        is read and nothing happens. Errors speak of the loader as `argument`.
        """
        if running_layers(self._model):
            check_reiterable(loader, argument)
            statistics: dict[int, State] = {}
            for members in track(self._groups(loader), "refreshing BatchNorm"):
                with self._lock, torch.inference_mode(False):
                    states = [self._state(i) for i in members]
                    fresh = refreshed(self._model, self._slots, states, batches(loader, argument, self._device))
                statistics |= zip(members, fresh, strict=True)
            with self._lock:  # or a call under way might keep a stack of the old statistics
                self._statistics, self._stacked, self._stale = statistics, {}, False
        return self

    def _groups(self, loader: Iterable[Any]) -> list[range]:
        """Members that read the data together: those that fit in memory, if it is only one.

        Where the data is at hand, each by itself: the weights of one then stay in the cache from batch to batch.
        """
        step = 1 if _at_hand(loader) else min(max(self._fit, 1), self._size)
        return [range(i, min(i + step, self._size)) for i in range(0, self._size, step)]

    @property
    def _device(self) -> torch.device:
        return next(iter(self._shared.values())).device

    def _index(self, i: int) -> int:
        if not -self._size <= i < self._size:
            raise IndexError(f"member {i} of an ensemble of {self._size}")
        return i % self._size

    def _run(self, member: Held, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock, member:
            return self._model(*args, **kwargs)

    def _held(self, i: int) -> Held:
        return self._slots.holding(self._state(i))

    def _state(self, i: int) -> State:
        # Detached weights stand in for those not drawn, so that no graph is built behind a user's back, and copies of
        # buffers, so that a forward that writes to them leaves nothing behind for the next member.
        state = self._shared | self._buffers | self._weights(i) | self._statistics.get(i, {})
        return state | {name: state[name].clone() for name in self._buffers}

    def _weights(self, i: int) -> State:
        if i in self._kept:
            return self._kept[i]
        with torch.inference_mode(False), torch.no_grad():  # what is kept must serve in any mode later
            weights = self._draw(i)
        if self._fit >= self._size:
            self._kept[i] = weights
        return weights

    def _warn_if_stale(self) -> None:
        if self._stale:
            self._stale = False
            warnings.warn(
                "members have other weights than those that BatchNorm's statistics were collected with: "
                "call refresh(training data) before predicting",
                stacklevel=3,
            )


def _at_hand(loader: Iterable[Any]) -> bool:
    """Whether reading it again costs nothing and gives the same by itself."""
    return type(loader) in (list, tuple)


def _join(outputs: Sequence[Tensor]) -> Tensor:
    """All batches in one."""
    if outputs[0].ndim == 0:
        raise TypeError("predict joins outputs along their first axis, and this model's has none: use ensemble(x)")
    return torch.cat(list(outputs))


def _room(members: int, only: Sequence[Tensor]) -> Tensor:
    """Room for so many of what one member gave."""
    return only[0].new_empty((members, *only[0].shape))


@torch.no_grad()
def _put(i: int, pair: Sequence[Tensor]) -> Tensor:
    """The second into row i of the first."""
    rows, row = pair
    if (row.shape, row.dtype) != (rows.shape[1:], rows.dtype):
        one, other = (f"{tuple(tensor.shape)}, {tensor.dtype}" for tensor in (rows[0], row))
        raise TypeError(f"outputs differ in form: {one} of member 0 and {other} of member {i}")
    return rows[i].copy_(row)
