"""The form that every set of images to classify takes in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

Labelled = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Images:
    """Standardised images as vectors (images, pixels), as an MLP takes them, and their classes from 0.

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


def standardised(parts: Sequence[Labelled], ood: Mapping[str, Tensor], classes: int) -> Images:
    """Flatten the images of training, validation, test and `ood`, with the training pixels' mean 0 and deviation 1."""
    pixels = parts[0][0].float()
    mean, std = pixels.mean(), pixels.std()

    def same(images: Tensor) -> Tensor:
        return images.flatten(1).float().sub(mean).div_(std)

    train, validation, test = ((same(images), labels) for images, labels in parts)
    return Images(train, validation, test, {kind: same(images) for kind, images in ood.items()}, classes)
