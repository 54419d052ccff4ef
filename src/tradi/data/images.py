"""The form that every set of images to classify takes in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Images:
    """Standardised images, as vectors (images, pixels) or (images, channels, height, width), and classes from 0.

    Args:
        train, validation, test: images and classes.
        ood: images of none of the classes, by what they are.
        classes: how many there are.
    """

    train: Labelled
    validation: Labelled
    test: Labelled
    ood: Mapping[str, Tensor]
    classes: int


@dataclass(frozen=True, eq=False)
class Standardise:
    """Gives training pixels the mean 0 and the deviation 1, and all others the same treatment.

    Args:
        mean, std: of training pixels, in a shape that images broadcast with.
    """

    mean: Tensor
    std: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(torch.float32, copy=True).sub_(self.mean).div_(self.std)


def standardised(parts: Sequence[Labelled], ood: Mapping[str, Tensor], classes: int, over: tuple[int, ...]) -> Images:
    """Training, validation, test and `ood`, standardised by the training pixels.

    Args:
        parts: images and classes for training, validation and test.
        ood: images of none of the classes.
        classes: how many there are.
        over: dimensions of the images that share one mean and one deviation.
    """
    pixels = parts[0][0].float()
    same = Standardise(pixels.mean(over, keepdim=True), pixels.std(over, keepdim=True))
    train, validation, test = ((same(images), labels) for images, labels in parts)
    return Images(train, validation, test, {kind: same(images) for kind, images in ood.items()}, classes)


def kept(classes: Collection[str], held_out: Collection[str]) -> list[str]:
    """The classes that are not held out, in their order."""
    if isinstance(held_out, str):
        raise TypeError(f"held_out must be several names, such as ({held_out!r},), got the text {held_out!r}")
    unknown = [name for name in held_out if name not in classes]
    if unknown:
        raise ValueError(f"held_out names {', '.join(unknown)}: there are {', '.join(classes)}")
    return [name for name in classes if name not in held_out]
