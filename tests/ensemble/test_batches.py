from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tradi.ensemble.batches import Pair, batches, bytes_in, evenly, every_kth, larger, samples_in, thinned


def numbered(samples: int, batch: int) -> list[Pair]:
    """Batches whose inputs and targets say which sample they are."""
    x = torch.arange(samples)
    return [(part[:, None].float(), part) for part in x.split(batch)]


def kept(data: list[Pair], samples: int, most: int = 1 << 30) -> tuple[Tensor, int]:
    found, total = evenly(data, samples, most)
    for x, y in found:
        assert torch.equal(x[:, 0].long(), y)
    return torch.cat([y for _, y in found]), total


def test_what_fits_is_kept_as_it_is() -> None:
    data = numbered(100, 7)
    found, total = evenly(data, 100, 1 << 30)
    assert total == 100
    assert all(a is b for a, b in zip(found, data, strict=True))


@pytest.mark.parametrize("batch", [1, 7, 64, 999, 10_000])
@pytest.mark.parametrize("samples", [100, 1000, 3000])
def test_samples_are_spread_evenly_over_all_of_the_data(samples: int, batch: int) -> None:
    found, total = kept(numbered(10_000, batch), samples)
    assert total == 10_000
    assert len(found) <= max(samples, batch if batch <= samples else 0)
    if batch * 8 <= samples:  # enough batches to choose from: half of what is allowed at the least, from everywhere
        assert len(found) >= samples / 2 - batch
        assert found.float().mean() == pytest.approx(5000, rel=0.1)
        gaps = found.diff().max()
        assert gaps <= 2 * 10_000 / samples * batch + batch
    if batch == 10_000:  # one giant batch: every k-th sample
        assert torch.equal(found, torch.arange(0, 10_000, -(-10_000 // samples)))


def test_memory_is_bounded_by_bytes_too() -> None:
    data = numbered(4096, 16)
    size = bytes_in(data[0])
    found, total = evenly(iter(data), 1 << 30, 10 * size)
    held = sum(map(bytes_in, found))
    assert total == 4096
    assert 5 * size <= held <= 10 * size
    (only,), _ = evenly([data[0]], 1 << 30, size // 3)
    assert bytes_in(only) <= size // 3 + 12
    assert only[0].untyped_storage().nbytes() < data[0][0].untyped_storage().nbytes()  # memory of its own


def test_data_sorted_by_class_keeps_all_classes_in_their_shares() -> None:
    labels = torch.arange(10).repeat_interleave(600)
    data = [(part[:, None].float(), part) for part in labels.split(32)]
    found, _ = evenly(data, 1000, 1 << 30)
    counts = torch.cat([y for _, y in found]).bincount(minlength=10)
    assert counts.sum() <= 1000
    assert (counts.float() / counts.sum() - 0.1).abs().max() < 0.05


def test_every_kth_sample_of_all_parts_of_a_batch() -> None:
    x = torch.arange(10)
    batch: Pair = ({"a": x, "b": (x[:, None], "name")}, [x, torch.tensor(3.0), torch.zeros(4)])
    inputs, target = every_kth(batch, 4)
    assert inputs["a"].tolist() == [0, 4, 8]
    assert inputs["b"][0].tolist() == [[0], [4], [8]]
    assert inputs["b"][1] == "name"
    assert target[0].tolist() == [0, 4, 8]
    assert target[1] == 3  # what is not a part for every sample stays
    assert len(target[2]) == 4
    assert every_kth(batch, 1) is batch


@pytest.mark.parametrize("batch", [1, 7, 64, 999, 1000])
def test_a_list_is_thinned_sample_by_sample(batch: int) -> None:
    found = torch.cat([y for _, y in thinned(numbered(1000, batch), 100)])
    if batch > 1:  # of single samples nothing can be left out
        assert 90 <= len(found) <= 100 + -(-1000 // batch)
        assert found.diff().max() <= 10
    data = numbered(1000, batch)
    assert all(a is b for a, b in zip(thinned(data, 1000), data, strict=True))


def test_small_batches_are_joined_up_to_a_size_and_nothing_else_is() -> None:
    found = larger(numbered(100, 7), 4 * 2 * 30)
    assert torch.cat([y for _, y in found]).tolist() == list(range(100))
    assert 2 <= len(found) <= 8
    assert all(len(x) == len(y) for x, y in found)
    assert len(larger(numbered(100, 7), 1 << 20)) == 1
    lengths = [(torch.zeros(2, n), torch.zeros(2)) for n in (3, 4)]
    masked = [((torch.zeros(2, 3), torch.ones(2, 3)), torch.zeros(2))] * 2
    without = [(torch.zeros(2, 3), None)] * 2
    single = [(torch.tensor(1.0), torch.tensor(2.0))] * 2
    for rows in (lengths, masked, without, single):
        assert all(a is b for a, b in zip(larger(rows, 1 << 20), rows, strict=True))


def test_samples_are_counted_by_the_target_or_else_by_the_inputs() -> None:
    assert samples_in((torch.zeros(7, 2), torch.zeros(5))) == 5
    assert samples_in(({"x": torch.zeros(7, 2)}, None)) == 7
    assert samples_in((None, None)) == 1


def test_arrays_become_tensors_of_the_models_type() -> None:
    ((x, y),) = batches([(np.zeros((3, 2)), np.zeros(3, dtype=np.int64))], "data", torch.zeros(1))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    ((_, y),) = batches([(np.zeros((3, 2)), np.zeros(3))], "data", torch.zeros(1))
    assert y.dtype == torch.float64
