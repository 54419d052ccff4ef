from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.data.samples import random_bytes
from tradi.data import Frames, Segmentation
from tradi.data.images import Standardise
from tradi.data.segmentation import IGNORED, OOD
from tradi.ensemble.batches import batches
from tradi.likelihoods import Classification
from tradi.metrics.segmentation import confusion

SIZE = (4, 6)
MEANING = np.array([0, 1, IGNORED, OOD] + [IGNORED] * 252, np.int8)


def frames(count: int, seed: int) -> Frames:
    records = np.zeros(count, np.dtype([("image", np.uint8, (3, *SIZE)), ("label", np.uint8, SIZE)]))
    records["image"] = random_bytes(count, 3, *SIZE, seed=seed).numpy()
    records["label"] = random_bytes(count, *SIZE, high=4, seed=seed).numpy()
    records["label"][:, 0, 0] = np.arange(count) % 2
    return Frames(records, MEANING)


@pytest.fixture
def data() -> Segmentation:
    standardise = Standardise(torch.tensor([10.0, 20.0, 30.0]).view(3, 1, 1), torch.tensor([2.0]).view(1, 1, 1))
    colours = torch.zeros(2, 3, dtype=torch.uint8)
    return Segmentation(
        frames(11, 0), frames(5, 1), frames(7, 2), ("here", "there"), colours, torch.ones(2), standardise
    )


def expected(part: Frames) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and masks, pixel by pixel."""
    raw = torch.from_numpy(part.records["label"].copy())
    labels = torch.where(raw < 2, raw.long(), -1)
    pixels = torch.from_numpy(part.records["image"].copy()).float()
    mean = torch.tensor([10.0, 20.0, 30.0])[None, :, None, None]
    return (pixels - mean) / 2, labels, raw == 3


def test_batches_give_standardised_images_and_labels_in_order(data: Segmentation) -> None:
    for part in (data.train, data.validation, data.test):
        loader = data.batches(part, 3)
        pairs = list(loader)
        assert len(loader) == len(pairs) == -(-len(part) // 3)
        images, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        torch.testing.assert_close(images, expected(part)[0])
        assert torch.equal(labels, expected(part)[1])


def test_testing_gives_a_mask_where_held_out_pixels_are_ood_and_void_ones_are_not(data: Segmentation) -> None:
    loader = data.testing(4)
    assert len(loader) == len(list(loader)) == 2
    labels = torch.cat([target[0] for _, target in loader])
    ood = torch.cat([target[1] for _, target in loader])
    assert ood.dtype == torch.bool
    assert torch.equal(labels, expected(data.test)[1])
    assert torch.equal(ood, expected(data.test)[2])
    assert (labels[ood] == IGNORED).all()
    assert ((labels == IGNORED) & ~ood).any()
    # As an ensemble takes them.
    targets = [target for _, target in batches(loader, "test", torch.zeros(()))]
    assert torch.equal(torch.cat([is_ood for _, is_ood in targets]), ood)


def test_training_batches_are_every_image_once_shuffled_and_flipped_with_its_labels(data: Segmentation) -> None:
    images, labels, _ = expected(data.train)
    loader = data.training(4, torch.Generator().manual_seed(0))
    assert [len(x) for x, _ in loader] == [4, 4, 3]
    orders = []
    for _ in range(2):
        order = []
        for x, y in zip(*(torch.cat(parts) for parts in zip(*loader, strict=True)), strict=True):
            matches = [
                number
                for number in range(11)
                for turn in ((), (-1,))
                if torch.equal(x, images[number].flip(turn)) and torch.equal(y, labels[number].flip(turn))
            ]
            order += matches
        assert sorted(order) == list(range(11))
        orders.append(order)
    assert orders[0] != orders[1]


def test_a_last_training_batch_of_one_image_is_left_out(data: Segmentation) -> None:
    loader = data.training(5)
    assert len(loader) == len(list(loader)) == 2
    assert len(list(data.training(1))) == 11


def test_training_batches_of_a_seed_are_the_same_again(data: Segmentation) -> None:
    def epoch(generator: torch.Generator | None) -> Tensor:
        return torch.cat([x for x, _ in data.training(4, generator)])

    assert torch.equal(epoch(torch.Generator().manual_seed(1)), epoch(torch.Generator().manual_seed(1)))
    torch.manual_seed(1)
    first = epoch(None)
    torch.manual_seed(1)
    assert torch.equal(first, epoch(None))
    assert not torch.equal(first, epoch(None))


def test_a_slice_is_fewer_frames(data: Segmentation) -> None:
    few = data.train[2:4]
    assert len(few) == 2
    assert torch.equal(few.read(torch.tensor([1]))[0], data.train.read(torch.tensor([3]))[0])


def test_what_is_read_is_a_copy(data: Segmentation) -> None:
    images, _, _ = data.train.read(torch.tensor([0]))
    before = images.clone()
    images.zero_()
    assert torch.equal(data.train.read(torch.tensor([0]))[0], before)


def test_the_rest_of_the_library_leaves_ignored_pixels_out(data: Segmentation) -> None:
    _, labels = next(iter(data.batches(data.test, 7)))
    logits = torch.randn(7, 2, *SIZE, generator=torch.Generator().manual_seed(0))
    counted = int((labels >= 0).sum())
    assert int(confusion(logits.argmax(1), labels, 2).matrix.sum()) == counted
    values = Classification().log_prob(logits, labels)
    assert int(values.isfinite().sum()) == counted
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED)
    torch.testing.assert_close(loss, -values.nanmean())
