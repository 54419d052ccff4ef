"""Images with boxes, as the methods of a benchmark are given them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tradi.bench.identity import fingerprint, some
from tradi.data.boxes import Boxed, BoxedFrames
from tradi.data.images import Standardise
from tradi.models.detector import DetectorLikelihood, detector_loss, detector_target

SHOWN = 4  # test images that pictures are kept of


@dataclass(frozen=True, eq=False)
class BoxBatches:
    """Standardised images, and what a detector should say of them.

    Args:
        images: with their objects.
        standardise: of the training images.
        classes: number of classes.
        batch: images in a batch.
        training: in a new order every time, mirrored at random, without a last batch of one image; else as they are.
    """

    images: BoxedFrames
    standardise: Standardise
    classes: int
    batch: int
    training: bool = False

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch)
        return whole + (rest > int(self.training))  # BatchNorm cannot train on a batch of one image

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = len(self.images)
        order = torch.randperm(size) if self.training else torch.arange(size)
        mirrored = torch.rand(size) < 0.5 if self.training else torch.zeros(size, dtype=torch.bool)
        for index in order.split(self.batch)[: len(self)]:
            images, _, _ = self.images.frames.read(index)
            images = torch.where(mirrored[index, None, None, None], images.flip(3), images)
            targets = [self._target(i, flip) for i, flip in zip(index.tolist(), mirrored[index].tolist(), strict=True)]
            yield self.standardise(images), torch.stack(targets)

    def _target(self, i: int, mirrored: bool) -> Tensor:
        known = self.images.labels[i] >= 0
        boxes, ignored = self.images.boxes[i][known], self.images.ignored[i]
        height, width = ignored.shape
        if mirrored:
            boxes, ignored = boxes[:, [2, 1, 0, 3]], ignored.flip(1)
            boxes = torch.stack([width - boxes[:, 0], boxes[:, 1], width - boxes[:, 2], boxes[:, 3]], 1)
        return detector_target(boxes, self.images.labels[i][known], (height, width), self.classes, ignored)


@dataclass(frozen=True, eq=False)
class DetectionProblem:
    """One problem of detection; objects of held-out classes are out of distribution.

    Args:
        source: the images and their boxes.
        at_once: images that pass through a network together.
        refreshed: training images that BatchNorm statistics are recomputed on.
    """

    source: Boxed
    at_once: int = 8
    refreshed: int = 96

    @property
    def classes(self) -> int:
        """How many are learnt."""
        return len(self.source.names)

    @property
    def about(self) -> dict[str, int | str]:
        """How many images there are, and a fingerprint of them and of their objects."""
        parts = {name: getattr(self.source, name) for name in ("train", "validation", "test")}
        arrays = [some(part.frames.records) for part in parts.values()]
        arrays += [torch.cat(values) for part in parts.values() for values in (part.boxes, part.labels)]
        return {**{name: len(part) for name, part in parts.items()}, "fingerprint": fingerprint(arrays)}

    @property
    def validation_batches(self) -> BoxBatches:
        return self.batches(self.source.validation)

    @property
    def training_batches(self) -> BoxBatches:
        """Training images as they are, in a fixed order."""
        return self.batches(self.source.train)

    @property
    def likelihood(self) -> DetectorLikelihood:
        """What outputs mean."""
        return DetectorLikelihood()

    @cached_property
    def refresh_batches(self) -> BoxBatches:
        """Training images from all over the videos, the same ones every time."""
        step = math.ceil(len(self.source.train) / self.refreshed)
        return self.batches(self.source.train[::step])

    def batches(self, images: BoxedFrames) -> BoxBatches:
        """Images of one part as they are."""
        return BoxBatches(images, self.source.standardise, self.classes, self.at_once)

    def training(self, batch: int) -> BoxBatches:
        """Batches to train on, in an order of torch's own random numbers."""
        return BoxBatches(self.source.train, self.source.standardise, self.classes, batch, training=True)

    def loss(self, output: dict[str, Tensor], target: Tensor) -> Tensor:
        """What the detector minimises."""
        return detector_loss(output, target)

    def first(self, samples: int) -> DetectionProblem:
        """A few images of everything, for a quick look."""
        parts = {name: getattr(self.source, name)[: samples // 4] for name in ("train", "validation", "test")}
        return replace(self, source=replace(self.source, **parts))

    @cached_property
    def shown(self) -> list[int]:
        """The test images to keep pictures of: in each of four stretches of them, the one with the most objects."""
        counts = [len(boxes) for boxes in self.source.test.boxes]
        stretches = np.array_split(np.arange(len(counts)), SHOWN)
        return [max(stretch.tolist(), key=counts.__getitem__) for stretch in stretches if len(stretch)]

    def view(self, index: int) -> NDArray[np.uint8]:
        """A test image, (height, width, 3), to lay boxes over."""
        image: NDArray[np.uint8] = self.source.test.frames.records[index]["image"].transpose(1, 2, 0)
        return image
