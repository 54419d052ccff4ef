"""The form that every set of images with a class for each pixel takes, in memory or on disk."""

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
    """Images and labels as they were decoded, in bytes; a slice is fewer of them.

    Args:
        records: with the fields `image` (3, height, width) and `label` (height, width), mostly mapped from a file.
        meaning: of each of the 256 values of a label: a class, IGNORED or OOD.
    """

    records: NDArray[np.void]
    meaning: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, part: slice) -> Frames:
        return Frames(self.records[part], self.meaning)

    def read(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images and labels in bytes, every pixel of no class IGNORED, and which of these pixels are OOD."""
        records = self.records[index.numpy()]
        labels = torch.from_numpy(np.take(self.meaning, records["label"]))
        return torch.from_numpy(records["image"]), labels.clamp_min(IGNORED), labels == OOD


@dataclass(frozen=True, eq=False)
class Batches:
    """Standardised images and labels, in the same order every time."""

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
    """Standardised images and (labels, which pixels are OOD), in the same order every time."""

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
    """Standardised images and labels, shuffled and flipped afresh every time; a last batch of one image is left out."""

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
        train, validation, test: images and labels in bytes.
        names: of the classes.
        colours: of the classes, (classes, 3), in bytes.
        class_weights: that let rare classes count as much as frequent ones, by median frequency balancing.
        standardise: by the mean and deviation of each channel of the training images.
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
        """How many there are."""
        return len(self.names)

    def training(self, batch: int, generator: Generator | None = None) -> TrainingBatches:
        """Batches to train on, in an order of the generator's or of torch's own."""
        return TrainingBatches(self.train, self.standardise, batch, generator)

    def batches(self, frames: Frames, batch: int) -> Batches:
        """Batches of `train`, `validation` or `test`, as they are: to choose a scale or to refresh on."""
        return Batches(frames, self.standardise, batch)

    def testing(self, batch: int) -> OODBatches:
        """Batches of `test` with their masks of OOD pixels."""
        return OODBatches(self.test, self.standardise, batch)
