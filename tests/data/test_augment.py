from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from tests.data.samples import random_bytes
from tradi.data import crop_and_flip, flip


def test_every_crop_is_a_window_of_the_padded_image_mirrored_or_not() -> None:
    images = torch.rand(400, 2, 5, 6, generator=torch.Generator().manual_seed(0)) + 1
    cropped = crop_and_flip(images, padding=1, generator=torch.Generator().manual_seed(1))
    assert cropped.shape == images.shape
    padded = F.pad(images, (1, 1, 1, 1))
    seen = set()
    for image, whole in zip(cropped, padded, strict=True):
        windows = {
            (top, left, mirrored): whole[:, top : top + 5, left : left + 6].flip(-1 if mirrored else ())
            for top in range(3)
            for left in range(3)
            for mirrored in (False, True)
        }
        (found,) = [place for place, window in windows.items() if torch.equal(window, image)]
        seen.add(found)
    assert len(seen) == 18  # each with probability 1/18: one is missed in 400 with probability 2e-9


def test_half_of_the_images_are_flipped_and_their_labels_with_them() -> None:
    images, count = random_bytes(1000, 3, 4, 6), 1000
    labels = images[:, 0].long() - 1
    flipped, flipped_labels = flip(images, labels, torch.Generator().manual_seed(0))
    assert (flipped.dtype, flipped_labels.dtype) == (torch.uint8, torch.int64)
    assert torch.equal(flipped[:, 0].long() - 1, flipped_labels)
    mirrored = torch.tensor([torch.equal(a, b.flip(-1)) for a, b in zip(flipped, images, strict=True)])
    same = torch.tensor([torch.equal(a, b) for a, b in zip(flipped, images, strict=True)])
    assert torch.equal(mirrored, ~same)
    assert abs(int(mirrored.sum()) - count / 2) < 4 * (count / 4) ** 0.5  # four standard errors


@pytest.mark.parametrize(
    "augment", [lambda x, g: crop_and_flip(x, generator=g), lambda x, g: flip(x, x[:, 0], g)[0]], ids=["crop", "flip"]
)
def test_a_seed_of_either_kind_gives_the_same_again(augment: Callable[[Tensor, Generator | None], Tensor]) -> None:
    images = random_bytes(20, 3, 8, 8)
    one, other = (augment(images, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)
    torch.manual_seed(3)
    first = augment(images, None)
    torch.manual_seed(3)
    assert torch.equal(first, augment(images, None))
    assert not torch.equal(first, augment(images, None))


def test_no_padding_crops_nothing() -> None:
    images = random_bytes(50, 3, 4, 4)
    cropped = crop_and_flip(images, padding=0)
    for image, before in zip(cropped, images, strict=True):
        assert torch.equal(image, before) or torch.equal(image, before.flip(-1))
