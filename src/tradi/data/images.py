"""The in-memory form of every image classification set."""

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
        train: images and classes.
        validation: the same, of held-back training images.
        test: the same, of the test images.
        ood: OOD images by name.
        classes: number of classes.
    """

    train: Labelled
    validation: Labelled
    test: Labelled
    ood: Mapping[str, Tensor]
    classes: int


@dataclass(frozen=True, eq=False)
class Standardise:
    """Shift and scale images so that training pixels have mean 0 and standard deviation 1.

    Args:
        mean: of the training pixels, in a shape that broadcasts with images.
        std: their standard deviation, in the same shape.
    """

    mean: Tensor
    std: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        return images.to(torch.float32, copy=True).sub_(self.mean).div_(self.std)


def standardised(parts: Sequence[Labelled], ood: Mapping[str, Tensor], classes: int, over: tuple[int, ...]) -> Images:
    """Training, validation, test and OOD images, standardised by the training pixels.

    Args:
        parts: images and classes for training, validation and test.
        ood: OOD images by name.
        classes: number of classes.
        over: dimensions that share one mean and one standard deviation.
    """
    pixels = parts[0][0].float()
    same = Standardise(pixels.mean(over, keepdim=True), pixels.std(over, keepdim=True))
    train, validation, test = ((same(images), labels) for images, labels in parts)
    return Images(train, validation, test, {kind: same(images) for kind, images in ood.items()}, classes)


def kept(classes: Collection[str], held_out: Collection[str]) -> list[str]:
    """The classes that are not held out, in their order.

    Raises:
        TypeError: if `held_out` is a string.
        ValueError: if it has an unknown class.
    """
    if isinstance(held_out, str):
        raise TypeError(f"held_out must be a collection, such as ({held_out!r},), got the string {held_out!r}")
    unknown = [name for name in held_out if name not in classes]
    if unknown:
        raise ValueError(f"unknown classes in held_out: {', '.join(unknown)}; choose from {', '.join(classes)}")
    return [name for name in classes if name not in held_out]
