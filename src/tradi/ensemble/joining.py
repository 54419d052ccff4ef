"""Outputs of any form, their tensors joined over members or batches."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tradi._torch import tree_flatten, tree_unflatten

Join = Callable[[Sequence[Tensor]], Tensor]


def joined(join: Join, outputs: Sequence[Any]) -> Any:
    """Outputs of one form with their tensors joined: tuples, dicts and dataclasses keep their form, constants too.

    Raises:
        TypeError: if the outputs differ in form, or hold what cannot be joined.
    """
    first = outputs[0]
    if isinstance(first, Tensor) or any(type(other) is not type(first) for other in outputs):
        return _leaf(join, outputs)
    leaves, form = tree_flatten(first)
    if leaves and leaves[0] is first:  # torch does not look inside
        return _leaf(join, outputs)
    others = [tree_flatten(output) for output in outputs[1:]]
    if any(form != other for _, other in others):
        raise TypeError(f"outputs differ in form: {form} and {next(other for _, other in others if other != form)}")
    rows = zip(leaves, *(own for own, _ in others), strict=True)
    return tree_unflatten([joined(join, row) for row in rows], form)


def _leaf(join: Join, outputs: Sequence[Any]) -> Any:
    first = outputs[0]
    if all(isinstance(output, Tensor) for output in outputs):
        return join(outputs)
    if any(type(other) is not type(first) for other in outputs):
        raise TypeError(f"outputs differ in form: {sorted({type(output).__name__ for output in outputs})}")
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        fields = dataclasses.fields(first)
        parts = {f.name: joined(join, [getattr(output, f.name) for output in outputs]) for f in fields}
        whole = dataclasses.replace(first, **{f.name: parts[f.name] for f in fields if f.init})
        for field in fields:
            if not field.init:
                object.__setattr__(whole, field.name, parts[field.name])  # frozen or not
        return whole
    if isinstance(first, MutableMapping):
        if any(output.keys() != first.keys() for output in outputs):
            raise TypeError(f"outputs differ in form: keys {sorted({str(sorted(map(str, o))) for o in outputs})}")
        together = copy.copy(first)  # whatever kind of mapping it is
        together.update({key: joined(join, [output[key] for output in outputs]) for key in first})
        return together
    if first is None or (isinstance(first, bool | int | float | str) and all(output == first for output in outputs)):
        return first
    raise TypeError(
        f"an output of type {type(first).__name__} cannot be joined over members or batches: let the model return "
        "tensors, in tuples, dicts or dataclasses, or call predict, which takes the logits alone"
    )


def concatenated(outputs: Sequence[Tensor]) -> Tensor:
    """All batches in one.

    Raises:
        TypeError: if they have no first axis, or differ in another one.
    """
    if any(output.ndim == 0 for output in outputs):
        raise TypeError(
            "outputs of a data set are joined along their first axis, and this model returns a single number, such as "
            "a loss: call predict, which takes the logits alone, or ensemble(x)"
        )
    shapes = {tuple(output.shape[1:]) for output in outputs}
    if len(shapes) > 1:
        raise TypeError(
            f"outputs of batches differ in shape beside their first axis, {sorted(shapes)}: pad all batches to one "
            "length, or predict them one by one"
        )
    return torch.cat(list(outputs))


def stacked(outputs: Sequence[Tensor]) -> Tensor:
    """Outputs of members along a new first axis."""
    return torch.stack(list(outputs))


def appended(parts: Sequence[Tensor]) -> Tensor:
    """Parts of a data set in one, each (members, samples, ...).

    Raises:
        TypeError: if they differ in another axis than the samples'.
    """
    shapes = {tuple(part.shape[2:]) for part in parts}
    if len(shapes) > 1:
        raise TypeError(f"outputs of batches differ in shape beside their first axis, {sorted(shapes)}")
    return torch.cat(list(parts), 1)


def room(members: int, only: Sequence[Tensor]) -> Tensor:
    """Room for so many of what one member gave."""
    return only[0].new_empty((members, *only[0].shape))


@torch.no_grad()
def put(i: int, pair: Sequence[Tensor]) -> Tensor:
    """The second into row i of the first.

    Raises:
        TypeError: if it is of another form.
    """
    rows, row = pair
    if (row.shape, row.dtype) != (rows.shape[1:], rows.dtype):
        one, other = (f"{tuple(tensor.shape)}, {tensor.dtype}" for tensor in (rows[0], row))
        raise TypeError(f"outputs differ in form: {one} of member 0 and {other} of member {i}")
    return rows[i].copy_(row)
