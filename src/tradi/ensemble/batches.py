"""What loaders give, and how it reaches a model."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from tradi._torch import tree_leaves, tree_map

Pair = tuple[Any, Any]  # inputs and target

LABELS = "labels"  # the target in a batch that is a dict, as Hugging Face's collators name it


def check_reiterable(loader: Iterable[Any], argument: str) -> None:
    """Raise for what cannot be iterated batch by batch, again for every member.

    Raises:
        TypeError: for a tensor, an array, a data set or a one-pass iterator.
    """
    if isinstance(loader, Tensor | np.ndarray):
        raise TypeError(
            f"{argument} must give batches: pass a DataLoader or a list of batches, such as [x], not a tensor or array"
        )
    _check_loader(loader, argument)
    if isinstance(loader, Iterator):
        raise TypeError(
            f"{argument} must be iterable more than once, such as a DataLoader or a list of batches, "
            f"got the one-pass iterator {type(loader).__name__}"
        )


def _check_loader(loader: Iterable[Any], argument: str) -> None:
    if isinstance(loader, Dataset):
        raise TypeError(
            f"{argument} must give batches, and a data set gives single samples: pass "
            "DataLoader(dataset, batch_size=...)"
        )
    if isinstance(loader, tuple):
        raise TypeError(
            f"{argument} is a tuple, which could be one batch or several: pass a list of batches, such as [(x, y)], or "
            "call ensemble(x, ...) with several inputs"
        )
    if isinstance(loader, Mapping) or not isinstance(loader, Iterable):
        raise TypeError(f"{argument} must give batches, such as a DataLoader or a list, got {type(loader).__name__}")


def as_loader(data: Any, argument: str) -> Iterable[Any]:
    """A loader as it is; a tensor, an array or a dict of them as one batch.

    Raises:
        TypeError: for what is neither.
    """
    if isinstance(data, Tensor | np.ndarray | Mapping):
        return [data]
    _check_loader(data, argument)
    loader: Iterable[Any] = data
    return loader


def batches(loader: Iterable[Any], argument: str, like: Tensor) -> Iterator[Pair]:
    """(inputs, target) of every batch, on the device of `like`; the target is None where a batch is inputs alone.

    A tuple or list of two is (inputs, target). A dict is inputs, and its "labels", if any, are the target. Arrays
    become tensors, floating-point inputs in the type of `like`.

    Raises:
        ValueError: for a batch of another form, or no batch at all.
    """
    empty = True
    for batch in loader:
        empty = False
        inputs, target = parts_of(batch, argument)
        yield _moved(inputs, like, convert=True), _moved(target, like, convert=False)
    if empty:
        raise ValueError(f"{argument} gave no batches: pass data, or check its length and drop_last")


def parts_of(batch: Any, argument: str) -> Pair:
    """The inputs and the target of a batch, as a loader gives them.

    Raises:
        ValueError: for a batch of another form.
    """
    if isinstance(batch, tuple | list):
        if not 1 <= len(batch) <= 2:
            raise ValueError(
                f"{argument} gave a batch of {len(batch)} parts: expected inputs or (inputs, target), several inputs "
                "as ((x, mask), target), a list of images as ([image, ...], target)"
            )
        return batch[0], batch[1] if len(batch) > 1 else None
    if isinstance(batch, Mapping) and LABELS in batch:
        return {key: value for key, value in batch.items() if key != LABELS}, batch[LABELS]
    return batch, None


def _moved(part: Any, like: Tensor, convert: bool) -> Any:
    def move(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            leaf = torch.as_tensor(leaf)
            if convert and leaf.is_floating_point():
                leaf = leaf.to(like.dtype)
        return leaf.to(like.device) if isinstance(leaf, Tensor) else leaf

    # tree_map alone takes a fiftieth of a small network's forward pass.
    return move(part) if isinstance(part, Tensor) else tree_map(move, dict(part) if isinstance(part, Mapping) else part)


@contextmanager
def naming_types(inputs: Any, like: Tensor) -> Iterator[None]:
    """Say so where a model fails on tensors that are float64 and its weights are not.

    Args:
        inputs: of a batch.
        like: a weight of the model.

    Raises:
        TypeError: in place of what the model raised.
    """
    try:
        yield
    except RuntimeError as error:
        double = any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(inputs))
        if double and like.dtype != torch.float64:
            raise TypeError(
                f"inputs are torch.float64 and the model's weights {like.dtype}: pass inputs.to({like.dtype}) ({error})"
            ) from error
        raise


class Caller:
    """How inputs are passed to a model: a mapping by keyword, several parts by position, else as one argument.

    Args:
        model: whose signature decides.
    """

    def __init__(self, model: nn.Module) -> None:
        try:
            self._signature: inspect.Signature | None = inspect.signature(model.forward)
        except (TypeError, ValueError):
            self._signature = None

    def arguments(self, inputs: Any, target: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments.

        Raises:
            TypeError: if the model needs other arguments than the inputs give.
        """
        args: tuple[Any, ...] = (inputs,)
        kwargs: dict[str, Any] = {}
        if isinstance(inputs, Mapping):
            args, kwargs = (), dict(inputs)
        elif isinstance(inputs, tuple) or (isinstance(inputs, list) and not self._is_list_of_samples(inputs, target)):
            args = tuple(inputs)
        if not self._binds(args, kwargs):
            given = f"{len(args)} input(s)" if args else f"inputs {sorted(map(str, kwargs))}"
            raise TypeError(
                f"the model's forward{self._signature} cannot be called with {given}: a batch is (inputs, target), and "
                "several inputs are a tuple, ((x, mask), target), or a dict by their names"
            )
        return args, kwargs

    def _is_list_of_samples(self, inputs: list[Any], target: Any) -> bool:
        """Whether a list is one argument, such as images of different sizes: its parts are samples and not batches."""
        if not self._binds(tuple(inputs), {}):
            return self._binds((inputs,), {})
        if not isinstance(target, Tensor | list | tuple) or (isinstance(target, Tensor) and target.ndim == 0):
            return False
        lengths = {len(part) for part in inputs if isinstance(part, Tensor) and part.ndim}
        return len(inputs) == len(target) and lengths != {len(target)}

    def _binds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self._signature is None:
            return True
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True


def in_parts(data: Iterable[Pair], most: int) -> Iterator[list[Pair]]:
    """Batches in lists of `most` bytes or a little more, to go through again without reading them again."""
    part: list[Pair] = []
    held = 0
    for batch in data:
        part.append(batch)
        held += bytes_in(batch)
        if held >= most:
            yield part
            part, held = [], 0
    if part:
        yield part


def larger(data: list[Pair], most: int) -> list[Pair]:
    """The same samples in fewer batches: neighbours become one of about `most` bytes, where they are plain tensors."""
    found: list[Pair] = []
    for part in in_parts(data, most):
        same = {(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in part if _are_rows(x, y)}
        if len(same) == 1 and all(_are_rows(x, y) for x, y in part):
            found.append((torch.cat([x for x, _ in part]), torch.cat([y for _, y in part])))
        else:
            found += part
    return found


def _are_rows(inputs: Any, target: Any) -> bool:
    return all(isinstance(part, Tensor) and part.ndim > 0 for part in (inputs, target))


def evenly(data: Iterable[Pair], samples: int, most: int) -> tuple[list[Pair], int]:
    """A part of the data that fits in memory, spread evenly over all of it, and how many samples there are in all.

    Every k-th batch is kept, with the smallest power of 2 for k that stays within both limits; of a batch that is
    too large by itself, every k-th sample.

    Args:
        data: (inputs, target) pairs, read once.
        samples: to keep, at the most.
        most: bytes to keep, at the most.
    """
    kept: list[Pair] = []
    every, total = 1, 0
    count = size = 0  # samples and bytes that are kept
    for number, batch in enumerate(data):
        total += samples_in(batch)
        if number % every:
            continue
        kept.append(_thinned(batch, samples, most))
        count, size = count + samples_in(kept[-1]), size + bytes_in(kept[-1])
        while len(kept) > 1 and (count > samples or size > most):
            kept, every = kept[::2], 2 * every
            count, size = sum(map(samples_in, kept)), sum(map(bytes_in, kept))
    return kept, total


def samples_in(batch: Pair) -> int:
    """Length of the first axis of a batch's inputs, or of its target where it has one."""
    inputs, target = batch
    for leaf in (*tree_leaves(target), *tree_leaves(inputs)):
        if isinstance(leaf, Tensor) and leaf.ndim:
            return len(leaf)
    return 1


def bytes_in(batch: Pair) -> int:
    """Size of all tensors in a batch."""
    return sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))


def _thinned(batch: Pair, samples: int, most: int) -> Pair:
    return every_kth(batch, max(-(-samples_in(batch) // samples), -(-bytes_in(batch) // most)))


def thinned(data: list[Pair], samples: int) -> list[Pair]:
    """About so many samples at the most, evenly spread: every k-th of each batch."""
    k = -(-sum(map(samples_in, data)) // samples)
    return [every_kth(batch, k) for batch in data]


def every_kth(batch: Pair, k: int) -> Pair:
    """Every k-th sample of a batch, in memory of its own."""
    return chosen(batch, slice(None, None, k)) if k > 1 else batch


def chosen(batch: Pair, samples: slice | Tensor) -> Pair:
    """Some samples of a batch, in memory of their own."""
    size = samples_in(batch)

    def some(leaf: Any) -> Any:
        return leaf[samples].clone() if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == size else leaf

    part: Pair = tree_map(some, batch)
    return part
