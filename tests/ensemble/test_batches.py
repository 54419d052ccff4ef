from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tradi.ensemble.batches import (
    Caller,
    Pair,
    as_loader,
    batches,
    bytes_in,
    check_reiterable,
    evenly,
    every_kth,
    larger,
    samples_in,
    thinned,
)


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


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (torch.ones(2, 3), r"data must give batches: pass a DataLoader or a list of batches, such as \[x\]"),
        (np.ones((2, 3)), "not a tensor or array"),
        (TensorDataset(torch.ones(2, 3)), r"a data set gives single samples: pass DataLoader\(dataset"),
        ((torch.ones(2, 3), torch.ones(2)), "data is a tuple, which could be one batch or several"),
        ({"x": torch.ones(2, 3)}, "data must give batches, such as a DataLoader or a list, got dict"),
        (3, "got int"),
        (iter([torch.ones(2, 3)]), "must be iterable more than once, .* got the one-pass iterator list_iterator"),
    ],
)
def test_what_cannot_be_read_batch_by_batch_for_every_member_is_refused(loader: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_reiterable(loader, "data")


def test_a_single_batch_may_be_given_where_data_is_read_once() -> None:
    x = torch.ones(2, 3)
    assert as_loader(x, "data") == [x]
    assert as_loader({"x": x}, "data") == [{"x": x}]
    data = [x, x]
    assert as_loader(data, "data") is data
    with pytest.raises(TypeError, match="could be one batch or several"):
        as_loader((x, x), "data")


def test_batches_of_other_forms_and_no_batches_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"data gave a batch of 3 parts: expected inputs or \(inputs, target\)"):
        list(batches([(torch.ones(1),) * 3], "data", torch.zeros(1)))
    with pytest.raises(ValueError, match="data gave no batches: pass data, or check its length and drop_last"):
        list(batches([], "data", torch.zeros(1)))
    assert list(batches([(torch.ones(1),)], "data", torch.zeros(1))) == [(torch.ones(1), None)]


class Two(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x if mask is None else x * mask


class Images(nn.Module):
    """As detectors take them."""

    def forward(self, images: list[Tensor]) -> list[Tensor]:
        return images


class Unreadable(nn.Module):
    """Its forward has no signature that Python could read, as functions that are written in C have not."""

    forward = Tensor.relu


def test_inputs_are_passed_as_the_models_signature_says() -> None:
    x, y = torch.ones(3, 2), torch.zeros(3)
    two, images = Caller(Two()), Caller(Images())
    assert two.arguments(x) == ((x,), {})
    assert two.arguments((x, x)) == ((x, x), {})
    assert two.arguments([x, x], y) == ((x, x), {})  # both have the target's length: they are parts of one batch
    texts = [torch.ones(4), torch.ones(5)]
    assert two.arguments(texts, y[:2]) == ((texts,), {})  # two samples, none of length two
    assert two.arguments(texts, y) == two.arguments(texts) == (tuple(texts), {})
    assert two.arguments({"x": x, "mask": x}) == ((), {"x": x, "mask": x})
    assert images.arguments([x, x, x], y) == (([x, x, x],), {})
    with pytest.raises(TypeError, match=r"cannot be called with 3 input\(s\): a batch is \(inputs, target\)"):
        two.arguments((x, x, x))
    with pytest.raises(TypeError, match=r"cannot be called with inputs \['ids'\]"):
        two.arguments({"ids": x})


def test_a_model_whose_signature_cannot_be_read_is_called_with_what_there_is() -> None:
    x = torch.ones(3, 2)
    assert Caller(Unreadable()).arguments((x, x, x)) == ((x, x, x), {})


def test_a_part_that_was_begun_is_given_too() -> None:
    found, total = evenly(numbered(10, 2), 4, 1 << 20)
    assert total == 10
    assert sum(map(samples_in, found)) <= 4
    assert larger([], 1 << 20) == []
