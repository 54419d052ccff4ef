"""Many networks in the room of one: lazy, seeded members that share a module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from tradi.batches import arguments, batches, check_reiterable
from tradi.batchnorm import refreshed, running_layers
from tradi.progress import track

KEEP_BYTES = 1 << 28  # members are kept once drawn where all of them fit in this; larger ones are drawn again

State = dict[str, Tensor]


class Ensemble:
    """Members of one architecture with weights of their own, run one after another.

    Args:
        model: gives the architecture and whatever a member does not draw. It must be the ensemble's alone.
        draw: weights of member i, by parameter name: a function of i and nothing else.
        size: number of members.
    """

    def __init__(self, model: nn.Module, draw: Callable[[int], State], size: int) -> None:
        if size < 1:
            raise ValueError(f"an ensemble needs at least 1 member, got {size}")
        self._model = model.eval()
        self._draw = draw
        self._size = size
        self._shared = {name: p.detach() for name, p in model.named_parameters()}
        self._statistics: dict[int, State] = {}
        self._kept: dict[int, State] = {}
        self._keep = size * sum(t.nbytes for t in self._shared.values()) <= KEEP_BYTES

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[i] for i in range(self._size))

    def __getitem__(self, i: int) -> nn.Module:
        """Member i as an ordinary module of its own, in eval mode."""
        if not -self._size <= i < self._size:
            raise IndexError(f"member {i} of an ensemble of {self._size}")
        i %= self._size
        module = copy.deepcopy(self._model)
        with torch.no_grad():
            tensors = dict(module.named_parameters()) | dict(module.named_buffers())
            for name, value in {**self._weights(i), **self._statistics.get(i, {})}.items():
                tensors[name].copy_(value)
        return module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of all members, stacked along a new first axis: (members, batch, ...).

        Tuples and dicts keep their form, with every tensor in them stacked. Gradients flow to the inputs alone.
        """
        outputs = [functional_call(self._model, self._state(i), args, kwargs) for i in range(self._size)]
        return tree_map(_stack, *outputs)

    def predict(self, loader: Iterable[Any]) -> Any:
        """Outputs for a whole data set, (members, samples, ...): each member is drawn once and sees all batches."""
        check_reiterable(loader, "loader")
        members = track(range(self._size), "predicting", self._size)
        outputs = [tree_map(_join, *(output for output, _ in self.outputs(i, loader))) for i in members]
        return tree_map(_stack, *outputs)

    @torch.no_grad()
    def outputs(self, i: int, loader: Iterable[Any], argument: str = "loader") -> Iterator[tuple[Any, Any]]:
        """(output of member i, target) for every batch of the loader: evaluation that keeps nothing in memory."""
        state = self._state(i)
        for inputs, target in batches(loader, argument, self._device):
            yield functional_call(self._model, state, *arguments(inputs)), target

    def refresh(self, loader: Iterable[Any]) -> Ensemble:
        """Recompute every member's BatchNorm statistics on the (training) data; returns the ensemble itself.

        Pass shuffled, representative data. Without such layers nothing is read and nothing happens.
        """
        if running_layers(self._model):
            check_reiterable(loader, "loader")
            self._statistics = {
                i: refreshed(self._model, self._state(i), batches(loader, "loader", self._device))
                for i in track(range(self._size), "refreshing BatchNorm", self._size)
            }
        return self

    @property
    def _device(self) -> torch.device:
        return next(iter(self._shared.values())).device

    def _state(self, i: int) -> State:
        # Detached weights of the model stand in for those not drawn, so that no graph is built behind a user's back.
        return self._shared | self._weights(i) | self._statistics.get(i, {})

    def _weights(self, i: int) -> State:
        if i in self._kept:
            return self._kept[i]
        weights = self._draw(i)
        if self._keep:
            self._kept[i] = weights
        return weights


def _stack(*leaves: Any) -> Any:
    return torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0]


def _join(*leaves: Any) -> Any:
    return torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0]
