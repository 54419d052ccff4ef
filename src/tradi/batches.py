"""What loaders give, and how it reaches a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def check_reiterable(loader: Iterable[Any], argument: str) -> None:
    """Raise for an iterator: members are run one after another, each over all of the data."""
    if isinstance(loader, Iterator):
        raise TypeError(
            f"{argument} must be iterable more than once, such as a DataLoader or a list of batches, "
            f"got the one-pass iterator {type(loader).__name__}"
        )


def batches(loader: Iterable[Any], argument: str, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """(inputs, target) of every batch, on the device; the target is None where the loader gives inputs alone."""
    empty = True
    for batch in loader:
        empty = False
        moved = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch)
        if isinstance(moved, tuple | list):
            if not moved:
                raise ValueError(f"{argument} gave an empty batch: expected inputs or (inputs, target)")
            yield moved[0], moved[1] if len(moved) > 1 else None
        else:
            yield moved, None
    if empty:
        raise ValueError(f"{argument} gave no batches: pass data, or check its length and drop_last")


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How inputs are passed to a model: a mapping as keyword arguments, anything else as the one argument."""
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})


def batch_size(inputs: Any) -> int:
    """Length of the first tensor's first axis."""
    return next(len(leaf) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor))
