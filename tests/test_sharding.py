from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard

import tradi
from tradi.sharding import Place, extremes, is_sharded_model, part_of, plain_name


class Mesh:
    """Ten rows for four processes, of which this is one."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def size(self, dimension: int) -> int:
        return (2, 4)[dimension]

    def get_local_rank(self, dimension: int) -> int:
        return (1, self._rank)[dimension]


class Placement:
    def __init__(self, sharded: bool) -> None:
        self._sharded = sharded

    def is_shard(self) -> bool:
        return self._sharded


def place(rank: int, *shape: int) -> Place:
    return Place(torch.Size(shape), Mesh(rank), (Placement(False), Placement(True)))


def test_rows_are_shared_out_as_chunks_and_the_last_ones_may_be_none() -> None:
    for rows in (1, 2, 5, 9, 10, 12):
        chunks = torch.arange(3 * rows).view(rows, 3).chunk(4)
        for rank in range(4):
            here = place(rank, rows, 3)
            expected = chunks[rank] if rank < len(chunks) else torch.empty(0, 3)
            assert here.stop - here.start == expected.numel()
            assert torch.arange(3 * rows)[here.start : here.stop].tolist() == expected.reshape(-1).tolist()
            assert here.part(torch.arange(rows)).tolist() == [row[0] // 3 for row in expected.tolist()]


def test_a_weight_that_is_replicated_is_held_in_whole() -> None:
    assert Place(torch.Size([5, 2]), Mesh(3), (Placement(False),)).rows == (0, 5)


def sharded(mesh: Mesh, *placements: Any, held: int = 9) -> Any:
    """What a process sees of a weight of (10, 3), of which it holds so many values."""
    return SimpleNamespace(
        shape=torch.Size([10, 3]), device_mesh=mesh, placements=placements, to_local=lambda: torch.zeros(held)
    )


def test_weights_that_are_sharded_otherwise_than_by_rows_are_an_error_with_the_remedy() -> None:
    mesh = Mesh(0)
    found = Place.of("w", sharded(mesh, Replicate(), Shard(0)))
    assert found is not None
    assert (found.start, found.stop) == (0, 9)
    for placements in ((Replicate(), Shard(1)), (Shard(0), Shard(0))):
        with pytest.raises(TypeError, match=r"w has placements .* use fully_shard without tensor parallelism"):
            Place.of("w", sharded(mesh, *placements))
    with pytest.raises(TypeError, match="w is sharded into rows in another way than fully_shard does it"):
        Place.of("w", sharded(mesh, Replicate(), Shard(0), held=6))


def test_values_that_are_sharded_otherwise_than_their_weight_are_an_error_with_the_remedy() -> None:
    mesh = Mesh(0)
    by_rows: Tensor = sharded(mesh, Replicate(), Shard(0))
    own = Place.of("w", by_rows)
    assert own is not None
    assert own.part(by_rows).shape == (9,)
    for others in (sharded(mesh, Shard(0), Replicate()), sharded(Mesh(0), Replicate(), Shard(0))):
        with pytest.raises(ValueError, match=r"is sharded by .*torch\.distributed\.checkpoint loads it for other"):
            own.part(others)
    with pytest.raises(ValueError, match="a tensor is sharded, its weight is not"):
        part_of(by_rows, None)


def test_wrappers_of_single_modules_leave_no_trace_in_names() -> None:
    assert plain_name("blocks.0._checkpoint_wrapped_module.mlp._orig_mod.weight") == "blocks.0.mlp.weight"


def test_an_ordinary_model_has_no_places() -> None:
    model = nn.Linear(2, 2)
    assert not is_sharded_model(model)
    assert Place.of("weight", model.weight) is None


def test_extremes_are_those_of_all_weights_and_nan_where_one_is() -> None:
    assert extremes({"a": (0.0, 2.0), "b": (-1.0, 1.0), "empty": (float("inf"), -float("inf"))}, {}) == (-1.0, 2.0)
    low, high = extremes({"a": (0.0, 2.0), "b": (float("nan"), 1.0)}, {})
    assert low != low
    assert high != high


def test_fsdp1_is_an_error_that_names_its_successor() -> None:
    class FullyShardedDataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

    model = nn.Sequential(FullyShardedDataParallel())
    with pytest.raises(TypeError, match="use fully_shard"):
        tradi.TRADI(model, torch.optim.SGD(model.parameters(), 0.1))
