"""The form of every segmentation set, in memory or on disk: images with a class for each pixel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from tradi.data.augment import flip
from tradi.data.images import Labelled, Standardise

IGNORED = -1  # the label of a pixel that counts neither in training nor in testing
OOD = -2  # in `Frames.meaning` only


@dataclass(frozen=True, eq=False)
class Frames:
    """Decoded images and labels, in bytes; slicing gives a subset.

    Args:
        records: array with the fields `image` (3, height, width) and `label` (height, width), usually memory-mapped.
        meaning: the meaning of each of the 256 label values: a class, IGNORED or OOD.
    """

    records: NDArray[np.void]
    meaning: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, part: slice) -> Frames:
        return Frames(self.records[part], self.meaning)

    def read(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images and labels in bytes, with pixels of no class IGNORED, and a mask of the OOD pixels.

        Args:
            index: of the frames, a vector of whole numbers.

        Returns:
            images (n, 3, height, width), labels (n, height, width), and a mask of the labels' shape.
        """
        records = self.records[index.numpy()]
        labels = torch.from_numpy(np.take(self.meaning, records["label"]))
        return torch.from_numpy(records["image"]), labels.clamp_min(IGNORED), labels == OOD


@dataclass(frozen=True, eq=False)
class Batches:
    """Standardised images and labels, in a fixed order."""

    frames: Frames
    standardise: Standardise
    batch: int

    def __len__(self) -> int:
        return math.ceil(len(self.frames) / self.batch)

    def __iter__(self) -> Iterator[Labelled]:
        for index in torch.arange(len(self.frames)).split(self.batch):
            images, labels, _ = self.frames.read(index)
            yield self.standardise(images), labels.long()


@dataclass(frozen=True, eq=False)
class OODBatches:
    """Standardised images and (labels, mask of OOD pixels), in a fixed order."""

    frames: Frames
    standardise: Standardise
    batch: int

    def __len__(self) -> int:
        return math.ceil(len(self.frames) / self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Labelled]]:
        for index in torch.arange(len(self.frames)).split(self.batch):
            images, labels, ood = self.frames.read(index)
            yield self.standardise(images), (labels.long(), ood)


@dataclass(frozen=True, eq=False)
class TrainingBatches:
    """Standardised images and labels, reshuffled and randomly flipped in each pass; a last batch of one is dropped."""

    frames: Frames
    standardise: Standardise
    batch: int
    generator: Generator | None = None

    def __len__(self) -> int:
        return len(self.frames) // self.batch + (len(self.frames) % self.batch > 1)

    def __iter__(self) -> Iterator[Labelled]:
        order = torch.randperm(len(self.frames), generator=self.generator)
        for index in order.split(self.batch)[: len(self)]:
            images, labels, _ = self.frames.read(index)
            images, labels = flip(images, labels, self.generator)
            yield self.standardise(images), labels.long()


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Images with a class from 0, or -1 for none, for each pixel.

    Args:
        train: images and labels in bytes.
        validation: the same, of the validation images.
        test: the same, of the test images.
        names: names of the classes.
        colours: colours of the classes, (classes, 3), in bytes.
        class_weights: weights by median frequency balancing, so that rare classes count as much as frequent ones.
        standardise: standardises images by the mean and standard deviation of each channel of the training images.
    """

    train: Frames
    validation: Frames
    test: Frames
    names: tuple[str, ...]
    colours: Tensor
    class_weights: Tensor
    standardise: Standardise

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.names)

    def training(self, batch: int, generator: Generator | None = None) -> TrainingBatches:
        """Training batches, shuffled by the generator (torch's default if None).

        Args:
            batch: images in a batch.
            generator: of the order and of flips.

        Returns:
            an iterable of (images, labels) batches, in a new order every time.
        """
        return TrainingBatches(self.train, self.standardise, batch, generator)

    def batches(self, frames: Frames, batch: int) -> Batches:
        """Batches of `train`, `validation` or `test`, unshuffled, unflipped: to choose a scale or refresh BatchNorm.

        Args:
            frames: of one part.
            batch: images in a batch.

        Returns:
            an iterable of (images, labels) batches, the same every time.
        """
        return Batches(frames, self.standardise, batch)

    def testing(self, batch: int) -> OODBatches:
        """Batches of `test` with masks of OOD pixels.

        Args:
            batch: images in a batch.

        Returns:
            an iterable of (images, (labels, mask)) batches, the same every time.
        """
        return OODBatches(self.test, self.standardise, batch)
