"""Whether processes that train copies of the same weights have tracked the same."""

from __future__ import annotations

from typing import Any

from torch import Tensor, distributed

from tradi.sharding import Place, local
from tradi.storage.tensors import digest


def check_same(state: dict[str, Any], places: dict[str, Place | None]) -> None:
    """Compare what this process and all others have tracked of the same weights. All must call it together.

    Args:
        state: a tracker's `state_dict()`.
        places: of its weights, by name.

    Raises:
        RuntimeError: if something differs, on every process; it names the first weight that does.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    own = {"the counts of steps": digest({}, {"steps": state["steps"], "taken": state["taken"]})}
    for name, saved in state["weights"].items():
        place = places[name]
        held = name if place is None else f"{name}, rows {place.rows[0]} to {place.rows[1]}"
        own[held] = _digest(saved)
    every: list[dict[str, str]] = [{} for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(every, own)
    first: dict[str, int] = {}
    for held in dict.fromkeys(held for one in every for held in one):
        for rank, one in enumerate(every):
            if held in one and one[held] != every[first.setdefault(held, rank)][held]:
                raise RuntimeError(
                    f"processes {first[held]} and {rank} have tracked another state of {held}: copies of a weight must "
                    "take the same steps. Attach on every process before the first step, give every process the same "
                    "initial weights (DistributedDataParallel does), and load the same checkpoint on each"
                )


def _digest(saved: dict[str, Any]) -> str:
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for name, value in _leaves(saved, ""):
        if isinstance(value, Tensor):
            tensors[name] = local(value)
        else:
            numbers[name] = value
    return digest(tensors, numbers)


def _leaves(value: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, f"{name}/{key}")]
    return [(name, value)]
