"""Boxes of the objects in images with a class for each pixel: connected regions of one class."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tradi.data.decoding import Legend
from tradi.data.images import Standardise, kept
from tradi.data.segmentation import OOD, Frames, Segmentation
from tradi.progress import track


@dataclass(frozen=True, eq=False)
class BoxedFrames:
    """Images, and the objects in them.

    Args:
        frames: the images.
        boxes: of each image, (objects, 4), as (x0, y0, x1, y1) in pixels.
        labels: of each image, (objects,): a class from 0, or `segmentation.OOD` where it is held out.
        ignored: pixels that are neither an object of a class nor background, (images, height, width): void ones, those
            of held-out classes, and those of regions that are too small.
    """

    frames: Frames
    boxes: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]
    ignored: Tensor

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, part: slice) -> BoxedFrames:
        return BoxedFrames(self.frames[part], self.boxes[part], self.labels[part], self.ignored[part])


@dataclass(frozen=True, eq=False)
class Boxed:
    """Images with boxes.

    Args:
        train: images with their objects.
        validation: the same, of the validation images.
        test: the same, of the test images.
        names: of the classes.
        held_out: names of the classes that are OOD.
        standardise: standardises images by the mean and standard deviation of each channel of the training images.
    """

    train: BoxedFrames
    validation: BoxedFrames
    test: BoxedFrames
    names: tuple[str, ...]
    held_out: tuple[str, ...]
    standardise: Standardise


def boxed(
    source: Segmentation, legend: Legend, objects: Collection[str], held_out: Collection[str], smallest: int
) -> Boxed:
    """Boxes from the label images of a segmentation set.

    Args:
        source: the images, whatever was held out in it.
        legend: of their label images.
        objects: names of the classes whose regions are objects.
        held_out: those of them that are OOD.
        smallest: pixels of a region, from which it is an object.

    Returns:
        the same images in the same parts, with boxes.

    Raises:
        ValueError: if a class is unknown, or `smallest` is below 1.
    """
    unknown = [name for name in objects if name not in legend.classes]
    if unknown:
        raise ValueError(f"unknown classes in objects: {', '.join(unknown)}; choose from {', '.join(legend.classes)}")
    if smallest < 1:
        raise ValueError(f"smallest must be at least 1, got {smallest}")
    names = kept(objects, held_out)
    meaning = {legend.value(name): names.index(name) if name in names else OOD for name in objects}
    parts = {part: getattr(source, part) for part in ("train", "validation", "test")}
    made = {part: _boxed_frames(frames, meaning, legend.void, smallest, part) for part, frames in parts.items()}
    return Boxed(**made, names=tuple(names), held_out=tuple(held_out), standardise=source.standardise)


def regions(labels: NDArray[np.uint8], values: Collection[int]) -> NDArray[np.int64]:
    """The connected regions of some values: for each pixel the number of the first pixel of its region, else -1.

    Pixels that touch at a side are connected where their values are the same.

    Args:
        labels: (height, width).
        values: whose regions are asked for.
    """
    wanted = np.isin(labels, list(values))
    place = np.arange(labels.size).reshape(labels.shape)
    across = wanted[:, 1:] & (labels[:, 1:] == labels[:, :-1])
    down = wanted[1:] & (labels[1:] == labels[:-1])
    one = np.concatenate([place[:, :-1][across], place[:-1][down]])
    other = np.concatenate([place[:, 1:][across], place[1:][down]])
    first = place.reshape(-1).copy()
    while (first[one] != first[other]).any():
        lower = np.minimum(first[one], first[other])
        for side in (one, other):  # of the pixels, and of those that stand for them so far
            np.minimum.at(first, first[side], lower)
        first = first[first]
    return np.where(wanted, first.reshape(labels.shape), -1)


def boxes_of(labels: NDArray[np.uint8], values: Collection[int], smallest: int) -> tuple[Tensor, Tensor, Tensor]:
    """The boxes around connected regions of some values.

    Args:
        labels: (height, width).
        values: whose regions are objects.
        smallest: pixels of a region, from which it is one.

    Returns:
        boxes as (x0, y0, x1, y1) in pixels, (objects, 4); their values, (objects,); and the pixels of regions that are
        too small, (height, width).
    """
    found = regions(labels, values)
    first, number = np.unique(found, return_inverse=True)
    number = number.reshape(-1)
    y, x = np.divmod(np.arange(labels.size), labels.shape[1])
    low, high = (np.full((2, len(first)), value) for value in (labels.size, -1))
    for side, coordinate in enumerate((x, y)):
        np.minimum.at(low[side], number, coordinate)
        np.maximum.at(high[side], number, coordinate + 1)
    large = np.bincount(number) >= smallest
    inside = first >= 0
    boxes = torch.from_numpy(np.concatenate([low, high]).T[inside & large]).float()
    values_found = torch.from_numpy(labels.reshape(-1)[first[inside & large]].astype(np.int64))
    return boxes, values_found, torch.from_numpy((inside & ~large)[number].reshape(labels.shape))


def _boxed_frames(
    frames: Frames, meaning: Mapping[int, int], void: Collection[int], smallest: int, part: str
) -> BoxedFrames:
    table = torch.zeros(256, dtype=torch.long)
    table[list(meaning)] = torch.tensor(list(meaning.values()))
    hidden = [*void, *(value for value, label in meaning.items() if label == OOD)]
    boxes, labels, ignored = [], [], []
    for record in track(frames.records, f"finding objects, {part}", len(frames)):
        values = np.asarray(record["label"])
        own, found, small = boxes_of(values, meaning.keys(), smallest)
        boxes.append(own)
        labels.append(table[found])
        ignored.append(small | torch.from_numpy(np.isin(values, hidden)))
    return BoxedFrames(frames, tuple(boxes), tuple(labels), torch.stack(ignored))
