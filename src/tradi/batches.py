"""What loaders give, how it reaches a model, and how outputs of any form are put together."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def check_reiterable(loader: Iterable[Any], argument: str) -> None:
    """Raise for what cannot be iterated batch by batch, again for every member."""
    if isinstance(loader, Tensor):
        raise TypeError(
            f"{argument} must give batches: pass a DataLoader or a list of batches, such as [x], not a tensor"
        )
    if isinstance(loader, Iterator):
        raise TypeError(
            f"{argument} must be iterable more than once, such as a DataLoader or a list of batches, "
            f"got the one-pass iterator {type(loader).__name__}"
        )


def batches(loader: Iterable[Any], argument: str, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """(inputs, target) of every batch, on the device; the target is None where the loader gives inputs alone."""
    empty = True

    def move(leaf: Any) -> Any:
        return leaf.to(device) if isinstance(leaf, Tensor) else leaf

    for batch in loader:
        empty = False
        # tree_map alone takes a fiftieth of a small network's forward pass.
        moved = move(batch) if isinstance(batch, Tensor) else tree_map(move, batch)
        if isinstance(moved, tuple | list):
            if not 1 <= len(moved) <= 2:
                raise ValueError(f"{argument} gave a batch of {len(moved)} parts: expected inputs or (inputs, target)")
            yield moved[0], moved[1] if len(moved) > 1 else None
        else:
            yield moved, None
    if empty:
        raise ValueError(f"{argument} gave no batches: pass data, or check its length and drop_last")


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How inputs are passed to a model: a mapping by keyword, a tuple or list by position, else as one argument."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def in_parts(data: Iterable[tuple[Any, Any]], most: int) -> Iterator[list[tuple[Any, Any]]]:
    """Batches in lists of `most` bytes or a little more, to go through again without reading them again."""
    part: list[tuple[Any, Any]] = []
    held = 0
    for batch in data:
        part.append(batch)
        held += sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        if held >= most:
            yield part
            part, held = [], 0
    if part:
        yield part


class SameOrder:
    """Watches that a loader gives every member the same samples in the same order: rows are put together by place."""

    def __init__(self, argument: str) -> None:
        self.argument = argument
        self._first: list[list[Any]] = []
        self._complete = False

    def watch(self, data: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """The same (inputs, target) pairs, each compared with what came at its place the first time."""
        number = 0
        for batch in data:
            self._check(number, batch)
            yield batch
            number += 1
        self._end(number)

    def _check(self, number: int, batch: Any) -> None:
        seen = [_fingerprint(leaf) for leaf in tree_leaves(batch)]
        if not self._complete:
            self._first.append(seen)
        elif number >= len(self._first) or not _same(self._first[number], seen):
            self._refuse()

    def _end(self, batches: int) -> None:
        if batches != len(self._first):
            self._refuse()
        self._complete = True

    def _refuse(self) -> None:
        raise ValueError(
            f"{self.argument} gives its samples in another order, number or form every time, and members are compared "
            "sample by sample: pass a loader with shuffle=False and without random augmentation"
        )


def _fingerprint(leaf: Any) -> Any:
    """What tells one batch from another, cheaply: a sum for every sample."""
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    values = torch.view_as_real(leaf) if leaf.is_complex() else leaf
    single = torch.promote_types(values.dtype, torch.float32)  # halves overflow
    return values.reshape(len(values), -1).sum(1, dtype=single) if values.ndim else values


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(_alike(a, b) for a, b in zip(ours, theirs, strict=True))


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()))
    return type(a) is type(b) and a == b


def combined(join: Callable[[Sequence[Tensor]], Tensor], outputs: Sequence[Any]) -> Any:
    """Outputs of one form, their tensors joined: tuples, dicts and dataclasses keep their form, equal constants too."""
    first = outputs[0]
    if all(isinstance(output, Tensor) for output in outputs):
        return join(outputs)
    if any(type(other) is not type(first) for other in outputs):
        raise TypeError(f"outputs differ in form: {sorted({type(output).__name__ for output in outputs})}")
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        fields = dataclasses.fields(first)
        joined = {f.name: combined(join, [getattr(output, f.name) for output in outputs]) for f in fields}
        whole = dataclasses.replace(first, **{f.name: joined[f.name] for f in fields if f.init})
        for field in fields:
            if not field.init:
                object.__setattr__(whole, field.name, joined[field.name])  # frozen or not
        return whole
    if isinstance(first, MutableMapping):
        if any(output.keys() != first.keys() for output in outputs):
            raise TypeError(f"outputs differ in form: keys {sorted({str(sorted(map(str, o))) for o in outputs})}")
        together = copy.copy(first)  # whatever kind of dict it is
        together.update({key: combined(join, [output[key] for output in outputs]) for key in first})
        return together
    if isinstance(first, tuple | list):
        if any(len(output) != len(first) for output in outputs):
            raise TypeError("outputs are lists of different lengths, which cannot be put together")
        parts = [combined(join, parts) for parts in zip(*outputs, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if first is None or (isinstance(first, bool | int | float | str) and all(output == first for output in outputs)):
        return first
    raise TypeError(
        f"an output of type {type(first).__name__} cannot be put together over members or batches: "
        "let the model return tensors, in tuples, dicts or dataclasses if need be"
    )
