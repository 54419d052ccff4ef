"""Whether a checkpoint is that of a tracker, and of one like this one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tradi.tracking.recognition import row_shape
from tradi.tracking.selection import Weight

KINDS = {
    "steps": int,
    "skipped": int,
    "taken": dict,
    "options": dict,
    "selected": dict,
    "fingerprint": dict,
    "weights": dict,
}


def check_state(state: Any, options: dict[str, Any], own: Mapping[str, Weight], optimizers: int) -> None:
    """Check what all trackers share, before anything is taken over.

    Args:
        state: what is said to be the `state_dict()` of a tracker.
        options: those of the tracker that is to resume.
        own: the weights that it follows.
        optimizers: how many it follows.

    Raises:
        ValueError: if the state is damaged, or of another tracker; the message lists both sides.
    """
    if not isinstance(state, dict) or not KINDS.keys() <= state.keys():
        raise ValueError(
            f"this is not the state_dict() of a tracker: got {list(state) if isinstance(state, dict) else state!r}"
        )
    for name, kind in KINDS.items():
        if not isinstance(state[name], kind):
            raise ValueError(f"the checkpoint is damaged: {name} is {state[name]!r}, not of type {kind.__name__}")
    for number in (state["steps"], state["skipped"], *state["taken"].values()):
        if not isinstance(number, int) or number < 0:
            raise ValueError(f"the checkpoint is damaged: {number!r} is no count of steps")
    try:
        same = state["options"] == options
    except RuntimeError:  # there are tensors in place of numbers
        same = False
    if not same:
        raise ValueError(f"the checkpoint was written with {state['options']}, this tracker has {options}")
    theirs, ours = saved_shapes(state), shapes(own)
    if theirs != ours:
        raise ValueError(f"the checkpoint is of weights {theirs}, this tracker follows {ours}")
    if len(state["taken"]) != optimizers:
        raise ValueError(f"the checkpoint is of {len(state['taken'])} optimizers, this tracker has {optimizers}")
    _check_fingerprint(state["fingerprint"], own)


def _check_fingerprint(fingerprint: dict[str, Any], own: Mapping[str, Weight]) -> None:
    drift, values = fingerprint.get("drift"), fingerprint.get("values")
    known = isinstance(drift, float) and -1 <= drift < math.inf
    rows = values if known and isinstance(values, dict) and values.keys() <= own.keys() else None
    if rows is None or not all(isinstance(r, Tensor) and r.shape == row_shape(own[name]) for name, r in rows.items()):
        raise ValueError(f"the checkpoint is damaged: fingerprint is {fingerprint!r}"[:1000])


def saved_shapes(state: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights that a tracker followed when its state was saved.

    Raises:
        ValueError: if something else is in their place.
    """
    try:
        return {name: tuple(shape.tolist()) for name, shape in state["selected"].items()}
    except (AttributeError, TypeError) as error:
        raise ValueError(f"the checkpoint is damaged: shapes are {state['selected']!r}"[:1000]) from error


def shapes(own: Mapping[str, Weight]) -> dict[str, tuple[int, ...]]:
    """The shapes of weights."""
    return {name: tuple(weight.parameter.shape) for name, weight in own.items()}
