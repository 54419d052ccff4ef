"""Images with a class for each pixel, as the methods of a benchmark are given them: read when they are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tradi.bench.identity import fingerprint, some
from tradi.data.decoding import Legend
from tradi.data.segmentation import IGNORED, OOD, Batches, Frames, OODBatches, Segmentation, TrainingBatches
from tradi.prediction.likelihoods import Classification, Likelihood

AUXILIARY = 0.4  # weight of the loss of a second output, PSPNet's (its section 5.2)
POOLED = 3_000_000  # pixels whose probabilities are held at once, however many members are averaged
SHOWN = 4  # test images that pictures are kept of
SHOWN_WIDTH = 240  # pixels across a kept picture, at the most


@dataclass(frozen=True, eq=False)
class SegmentationProblem:
    """One problem of segmentation; pixels of held-out classes are out of distribution, void ones count nowhere.

    Args:
        source: the images.
        legend: of their label images.
        at_once: images that pass through a network together.
        refreshed: training images that BatchNorm statistics are recomputed on.
        backbone: file of weights that a network begins with, if it does.
    """

    source: Segmentation
    legend: Legend
    at_once: int = 8
    refreshed: int = 96
    backbone: Path | None = None

    def __post_init__(self) -> None:
        test = self.source.test
        if not any((test.meaning[labels] == OOD).any() for labels in test.records["label"]):
            raise ValueError("no test image shows anything out of distribution: are these the labels as published?")

    @property
    def classes(self) -> int:
        return self.source.classes

    @property
    def about(self) -> dict[str, int | str]:
        """How many images there are, and a fingerprint of them and of what their labels mean."""
        parts = {name: getattr(self.source, name) for name in ("train", "validation", "test")}
        arrays = [array for frames in parts.values() for array in (some(frames.records), frames.meaning)]
        return {**{name: len(frames) for name, frames in parts.items()}, "fingerprint": fingerprint(arrays)}

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.source.test.records["label"].shape[1:]
        return height, width

    @property
    def validation_batches(self) -> Batches:
        return self.source.batches(self.source.validation, self.at_once)

    @property
    def training_batches(self) -> Batches:
        """Training images as they are, in a fixed order."""
        return self.source.batches(self.source.train, self.at_once)

    @property
    def likelihood(self) -> Likelihood:
        """What outputs mean."""
        return Classification()

    @cached_property
    def refresh_batches(self) -> Batches:
        """Shuffled training images, the same ones every time: the first ones would all be of one video."""
        train = self.source.train
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: self.refreshed]
        if len(order) % self.at_once == 1:  # BatchNorm cannot see a batch of one image where it is one place in size
            order = order[:-1]
        return self.source.batches(Frames(train.records[order.sort().values.numpy()], train.meaning), self.at_once)

    def training(self, batch: int) -> TrainingBatches:
        """Batches to train on, in an order of torch's own random numbers."""
        return self.source.training(batch)

    def loss(self, output: Tensor | tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        """Cross-entropy in which rare classes count as much as frequent ones; of a second output too, if any."""
        if isinstance(output, tuple):
            return self.loss(output[0], target) + AUXILIARY * self.loss(output[1], target)
        return F.cross_entropy(output, target, self.source.class_weights, ignore_index=IGNORED)

    def first(self, samples: int) -> SegmentationProblem:
        """A few images of everything, for a quick look: each has many pixels."""
        parts = {name: getattr(self.source, name)[: samples // 4] for name in ("train", "validation", "test")}
        return replace(self, source=replace(self.source, **parts))

    def test_chunks(self) -> Iterator[OODBatches]:
        """The test images in parts whose probabilities fit in memory, each in batches."""
        height, width = self.size
        images = max(1, POOLED // (height * width))
        for start in range(0, len(self.source.test), images):
            yield replace(self.source, test=self.source.test[start : start + images]).testing(self.at_once)

    @cached_property
    def shown(self) -> list[int]:
        """The test images to keep pictures of: in each of four stretches of them, the one with the most OOD pixels."""
        test = self.source.test
        areas = [int((test.meaning[labels] == OOD).sum()) for labels in test.records["label"]]
        stretches = np.array_split(np.arange(len(test)), SHOWN)
        return [max(stretch.tolist(), key=areas.__getitem__) for stretch in stretches if len(stretch)]

    @property
    def step(self) -> int:
        """Every so many pixels one is kept in a picture, down and across."""
        return ceil(self.size[1] / SHOWN_WIDTH)

    @property
    def colours(self) -> dict[str, tuple[int, int, int]]:
        """By name: of the classes in their order, then of those that are held out."""
        classes = self.legend.classes
        held_out = [name for name in classes if name not in self.source.names]
        return {name: classes[name] for name in self.source.names} | {
            f"{name} (OOD)": classes[name] for name in held_out
        }

    def zoom(self, index: int) -> list[int]:
        """Top, left, height and width of a third of a picture of a test image: what is OOD there, and around it."""
        test = self.source.test
        mask = torch.from_numpy(test.meaning[test.records["label"][index]] == OOD)[:: self.step, :: self.step]
        height, width = ((side + 2) // 3 for side in mask.shape)
        share = F.avg_pool2d(mask[None].float(), (height, width), stride=1)[0]
        top, left = divmod(int((share * (1 - share)).argmax()), share.shape[1])  # not the inside of something large
        return [top, left, height, width]

    def view(self, index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """A test image and its true classes in colours, both (height, width, 3), to lay pictures beside."""
        record = self.source.test.records[index]
        image, labels = record["image"].transpose(1, 2, 0), self.legend.palette[record["label"]]
        return image[:: self.step, :: self.step], labels[:: self.step, :: self.step]
