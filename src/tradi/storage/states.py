"""A training state, nested dictionaries of tensors and numbers, in one safetensors file."""

from __future__ import annotations

import math
from os import PathLike
from typing import Any

from torch import Tensor

from tradi.storage.tensors import check_digest, read_tensors, write_tensors

HOLDS, VERSION = "a training state", 1
# Objects of one key stand for what JSON does not have; dictionaries are lists of pairs.
TENSOR, NUMBER = "tensor", "number"


def write_state(path: str | PathLike[str], state: dict[Any, Any]) -> None:
    """Write a state, such as a tracker's `state_dict()`.

    Args:
        path: of the file.
        state: dictionaries, whose keys are strings or whole numbers, of tensors, strings and numbers.

    Raises:
        TypeError: if it holds anything else.
        OSError: if it cannot be written; what was there before still is.
    """
    tensors: dict[str, Tensor] = {}
    write_tensors(path, tensors, {"holds": HOLDS, "version": VERSION, "state": _packed(state, "", tensors)})


def read_state(path: str | PathLike[str]) -> dict[Any, Any]:
    """What `write_state` was given: order, types and bits are the same; tensors are on the CPU.

    Raises:
        ValueError: if the file holds something else, or was changed; it names the file.
        OSError: if there is no file, or it cannot be read.
    """
    try:
        tensors, about = read_tensors(path)
        if about is None or (about.get("holds"), about.get("version")) != (HOLDS, VERSION):
            raise ValueError(f"it is not {HOLDS} that this version of tradi wrote")
        check_digest(tensors, about)
        state = _unpacked(about.get("state"), tensors)
        if not isinstance(state, dict):
            raise ValueError("its state is no list of pairs")
    except (LookupError, TypeError, RecursionError) as error:  # forged, with a hash of its own
        raise ValueError(f"{path} cannot be loaded: its state is damaged: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    return state


def _packed(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """JSON, with the tensors put aside; pairs keep the order and the types of keys, which JSON objects would lose."""
    if isinstance(value, dict):
        if not all(isinstance(key, str | int) for key in value):
            raise TypeError(f"keys must be strings or whole numbers, got {list(value)} at {place or 'the top'}")
        return [[key, _packed(item, f"{place}/{key}", tensors)] for key, item in value.items()]
    if isinstance(value, Tensor):
        name = f"{len(tensors)}{place}"
        tensors[name] = value
        return {TENSOR: name}
    if not isinstance(value, str | int | float):
        raise TypeError(f"a state holds tensors, strings and numbers, got {type(value).__name__} at {place}")
    return {NUMBER: str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _unpacked(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return {key: _unpacked(item, tensors) for key, item in value}
    if isinstance(value, dict):
        return tensors[value[TENSOR]] if TENSOR in value else float(value[NUMBER])
    return value
