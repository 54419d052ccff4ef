"""Weights that are sharded over processes by FSDP2's `fully_shard`: what one process holds, and sums over all of them.

Enters: a model or its parameters. Leaves: local tensors, where they lie in the whole, and numbers that all processes
agree on. Who may call it: whatever reads or writes weights, from `ensemble` on; no other module knows of meshes.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

# Names that wrappers of single modules add to the names of the parameters inside.
WRAPPED = ("_checkpoint_wrapped_module", "_orig_mod")


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which this process holds a part."""
    return hasattr(tensor, "to_local")  # as importing its type takes a second


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, unless it is sharded. It shares its memory."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        held: Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return held


def is_sharded_model(model: nn.Module) -> bool:
    """Whether a model has sharded weights.

    Raises:
        TypeError: if it is FSDP1's.
    """
    if any(kind.__name__ == "FullyShardedDataParallel" for module in model.modules() for kind in type(module).__mro__):
        raise TypeError("FullyShardedDataParallel (FSDP1) hides which weights a process holds: use fully_shard (FSDP2)")
    reshard(model)
    return any(is_sharded(parameter) for parameter in model.parameters())


def reshard(model: nn.Module) -> None:
    """Let go of weights that a forward pass gathered: its modules hold their own part of them again."""
    for module in model.modules():
        if is_fully_sharded(module):
            module.reshard()  # type: ignore[operator]


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` was applied to this very module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # unless somebody has imported it, nothing is sharded
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def plain_name(name: str) -> str:
    """The name of a parameter in the model without activation checkpointing or compiled blocks around it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPED)


@dataclass(frozen=True, eq=False)
class Place:
    """Where the part of a sharded weight that this process holds lies in the whole: some of its rows.

    Args:
        shape: of the whole.
        mesh: the processes.
        placements: how the weight lies on every dimension of the mesh: `Shard(0)` on one at the most, or replicated.
    """

    shape: torch.Size
    mesh: Any
    placements: tuple[Any, ...]

    @classmethod
    def of(cls, name: str, parameter: Tensor) -> Place | None:
        """The place of a parameter, None if it is not sharded.

        Raises:
            TypeError: if it is sharded otherwise than by rows.
        """
        if not is_sharded(parameter):
            return None
        mesh, placements = parameter.device_mesh, tuple(parameter.placements)  # type: ignore[attr-defined]
        place = cls(parameter.shape, mesh, placements)
        by_rows = [one for one in placements if not one.is_replicate()]
        if len(by_rows) > 1 or any(type(one).__name__ != "Shard" or one.dim != 0 for one in by_rows):
            raise TypeError(
                f"{name} has placements {placements}, and only weights that one dimension of the mesh shards by rows, "
                "Shard(0), and others replicate can be tracked: use fully_shard without tensor parallelism"
            )
        if local(parameter).numel() != place.stop - place.start:
            raise TypeError(f"{name} is sharded into rows in another way than fully_shard does it")
        return place

    @cached_property
    def _dimensions(self) -> list[int]:
        """Dimensions of the mesh that rows are shared out over."""
        return [i for i, one in enumerate(self.placements) if one.is_shard()]

    @cached_property
    def rows(self) -> tuple[int, int]:
        """The rows that are held here, first and one past the last: equal parts, of which the last may be empty."""
        count = self.shape[0] if self.shape else 1
        if not self._dimensions:
            return 0, count
        dimension = self._dimensions[0]
        each = math.ceil(count / self.mesh.size(dimension))
        first = min(self.mesh.get_local_rank(dimension) * each, count)
        return first, min(first + each, count)

    @cached_property
    def _width(self) -> int:
        return self.shape[1:].numel()

    @cached_property
    def start(self) -> int:
        """Number of the first weight that is held here, counted through the whole."""
        return self.rows[0] * self._width

    @cached_property
    def stop(self) -> int:
        """Number of the weight after the last one that is held here."""
        return self.rows[1] * self._width

    def whole(self, values: Tensor) -> Tensor:
        """What the processes hold together, of values for the weights (or the rows) that are held here: a DTensor."""
        from torch.distributed.tensor import DTensor

        count = self.shape[0] if self.shape else 1
        shape = torch.Size([count, *values.shape[1:]])
        stride = torch.empty(shape, device="meta").stride()
        found: Tensor = DTensor.from_local(
            values, self.mesh, self.placements, run_check=False, shape=shape, stride=stride
        )
        return found

    def part(self, values: Tensor) -> Tensor:
        """What belongs here of values for all weights or rows, whole or sharded in the same way; memory is shared.

        Raises:
            ValueError: if they are sharded in another way.
        """
        if not is_sharded(values):
            return values[slice(*self.rows)]
        if values.device_mesh != self.mesh or tuple(values.placements) != self.placements:  # type: ignore[attr-defined]
            raise ValueError(
                f"a tensor is sharded by {values.placements}, its weight by {self.placements}: "  # type: ignore[attr-defined]
                "torch.distributed.checkpoint loads it for other processes"
            )
        return local(values)

    def held(self, values: Tensor) -> Tensor:
        """What belongs here of values for the whole weight; as it is, what is no more than that already."""
        return self.part(values).contiguous() if values.shape == self.shape else values

    def everywhere(self, values: Tensor) -> Tensor:
        """Values for the whole weight on every process, from those for the weights held here. All must call it."""
        found: Tensor = self.whole(values).full_tensor()  # type: ignore[attr-defined]
        return found

    def bytes_of(self, values: Tensor) -> int:
        """Bytes that a process holds at the most of a weight in the type of these values: the same number on all."""
        processes = math.prod(self.mesh.size(dimension) for dimension in self._dimensions)
        return math.ceil(self.shape.numel() / processes) * values.element_size()

    def of_all(self, number: float) -> list[float]:
        """A number of every process that holds other rows, in the order of the rows. All must call it together."""
        found = torch.tensor([number], dtype=torch.float64, device=self.mesh.device_type)
        for dimension in self._dimensions:
            group = self.mesh.get_group(dimension)
            parts = [torch.empty_like(found) for _ in range(self.mesh.size(dimension))]
            torch.distributed.all_gather(parts, found, group=group)
            found = torch.cat(parts)
        numbers: list[float] = found.tolist()
        return numbers

    def sum(self, number: int) -> int:
        """The sum of whole numbers over the processes that hold other rows. All must call it together."""
        found = torch.tensor([number], dtype=torch.int64, device=self.mesh.device_type)
        for dimension in self._dimensions:
            torch.distributed.all_reduce(found, group=self.mesh.get_group(dimension))
        return int(found.item())

    def agree(self, problem: str | None) -> str | None:
        """The same on every process of the mesh: one of their problems, if any has one. All must call it together."""
        troubled = torch.tensor([problem is not None], dtype=torch.int64, device=self.mesh.device_type)
        for dimension in range(self.mesh.ndim):
            torch.distributed.all_reduce(troubled, group=self.mesh.get_group(dimension))
        if not troubled.item():
            return None
        return problem or "another process has found a problem, and says which"

    @property
    def is_first(self) -> bool:
        """Whether this process is the first one of the mesh."""
        return not any(self.mesh.get_coordinate())


def holds_everywhere(here: bool, model: nn.Module) -> bool:
    """Whether something holds on all processes that a model is sharded over, which must ask together."""
    for name, parameter in model.named_parameters():
        place = Place.of(name, parameter)
        if place is not None:
            return place.agree(None if here else name) is None
    return here


def part_of(values: Tensor, place: Place | None) -> Tensor:
    """As `Place.part`, of weights that may not be sharded.

    Raises:
        ValueError: if the values are sharded, and the weight is not, or in another way.
    """
    if place is not None:
        return place.part(values)
    if is_sharded(values):
        raise ValueError(
            "a tensor is sharded, its weight is not: torch.distributed.checkpoint loads it for other processes"
        )
    return values


def all_of(values: Tensor, place: Place | None) -> Tensor:
    """As `Place.whole`, of weights that may not be sharded."""
    return values if place is None else place.whole(values)


def gathered(values: Tensor, place: Place | None) -> Tensor:
    """All values in the memory of the mesh's first process; nothing on others. All must call it together."""
    if place is None:
        return values.cpu()
    found = place.everywhere(values)
    return found.cpu() if place.is_first else found.new_empty(0, device="cpu")


def sum_over_shards(numbers: dict[str, int], places: dict[str, Place]) -> int:
    """The sum of whole numbers by weight, exact whoever holds what."""
    return sum(places[name].sum(own) if name in places else own for name, own in numbers.items())


def extremes(ends: dict[str, tuple[float, float]], places: dict[str, Place]) -> tuple[float, float]:
    """The lowest and the highest value of all, from the lowest and highest of every weight here; NaN if one is NaN."""

    def everywhere(end: int) -> list[float]:
        found = (places[name].of_all(own[end]) if name in places else [own[end]] for name, own in ends.items())
        return [number for numbers in found for number in numbers]

    lows, highs = everywhere(0), everywhere(1)
    return (math.nan, math.nan) if any(map(math.isnan, lows + highs)) else (min(lows), max(highs))
