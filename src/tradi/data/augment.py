"""Random augmentation of whole batches."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


def crop_and_flip(images: Tensor, padding: int = 4, generator: Generator | None = None) -> Tensor:
    """Shift every image by up to `padding` pixels each way, filling with 0, and mirror it with probability 1/2.

    Args:
        images: (images, channels, height, width), of any dtype; if they are standardised, 0 is their mean.
        padding: the largest shift.
        generator: random number generator; torch's default if None.

    Returns:
        as many images of the same size.
    """
    count, _, height, width = images.shape
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator)
    windows = F.pad(images, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
    cropped = windows[torch.arange(count), :, top, left]
    return _mirrored(cropped, _coins(count, generator))


def flip(images: Tensor, labels: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
    """Mirror each image together with its pixel labels, with probability 1/2.

    Args:
        images: (images, channels, height, width).
        labels: (images, height, width).
        generator: random number generator; torch's default if None.

    Returns:
        images and labels, of the same sizes.
    """
    coins = _coins(len(images), generator)
    return _mirrored(images, coins), _mirrored(labels, coins)


def _coins(count: int, generator: Generator | None) -> Tensor:
    return torch.rand(count, generator=generator) < 0.5


def _mirrored(images: Tensor, chosen: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, *[1] * (images.dim() - 1)), images.flip(-1), images)
