"""From pairs of image files to segmentation sets, decoded once per size and cached."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tradi.data.bounded import opened
from tradi.data.cache import Tensors, cached, fingerprint_of, mapped
from tradi.data.images import Standardise, kept
from tradi.data.segmentation import IGNORED, OOD, Frames, Segmentation
from tradi.extras import require
from tradi.progress import track

Colour = tuple[int, int, int]
Pairs = Sequence[tuple[Path, Path]]  # image and labels
Size = tuple[int, int]  # width and height

LARGEST = 1 << 24  # pixels; the largest images published here have 1280 x 720, and PNG allows far more
UNKNOWN = -3  # in a legend's table: not a label of this data set


@dataclass(frozen=True)
class Legend:
    """What the values in the label images of a data set mean.

    Args:
        classes: colours by class name, in the order of their values.
        first: the value of the first class.
        void: values of pixels without a class.
    """

    classes: Mapping[str, Colour]
    first: int
    void: tuple[int, ...]

    @property
    def palette(self) -> NDArray[np.uint8]:
        """The colour of each of the 256 values, (256, 3); black where there is no class."""
        colours = np.zeros((256, 3), np.uint8)
        colours[self.first : self.first + len(self.classes)] = list(self.classes.values())
        return colours

    def value(self, name: str) -> int:
        """The value of a class in label images."""
        return list(self.classes).index(name) + self.first

    def meaning(self, held_out: Collection[str]) -> NDArray[np.int8]:
        """The meaning of each of the 256 values: a class from 0, IGNORED, OOD if held out, or UNKNOWN."""
        learnt = kept(self.classes, held_out)
        table = np.full(256, UNKNOWN, np.int8)
        table[list(self.void)] = IGNORED
        table[[self.value(name) for name in held_out]] = OOD
        table[[self.value(name) for name in learnt]] = np.arange(len(learnt))
        return table


def segmentation(
    name: str, parts: Mapping[str, Pairs], size: Size, legend: Legend, held_out: Collection[str]
) -> Segmentation:
    """Decode the images of a data set, or read them from the cache.

    Args:
        name: name of the data set.
        parts: the files for `train`, `validation` and `test`.
        size: width and height to resize all images to.
        legend: the meaning of the labels.
        held_out: classes to leave out of training; their pixels are OOD in testing.

    Raises:
        ValueError: if `size` or `held_out` is invalid, an image is in two parts, or a file is damaged.
    """
    if not (
        isinstance(size, Sequence)
        and len(size) == 2
        and all(isinstance(side, int | np.integer) and side > 0 for side in size)
    ):
        raise ValueError(f"size must be a width and a height, two whole numbers of at least 1, got {size}")
    learnt, meaning = kept(legend.classes, held_out), legend.meaning(held_out)
    _check_apart(name, parts)
    keys = {part: (f"{name}-{part}-{size[0]}x{size[1]}", _fingerprint(pairs)) for part, pairs in parts.items()}
    frames = {part: Frames(_records(*keys[part], parts[part], size, meaning), meaning) for part in parts}
    counted = cached(*keys["train"], lambda: _counted(frames["train"].records))
    values = [legend.value(class_name) for class_name in learnt]
    return Segmentation(
        **frames,
        names=tuple(learnt),
        colours=torch.tensor([legend.classes[class_name] for class_name in learnt], dtype=torch.uint8),
        class_weights=median_frequency(counted["labels"][:, values], size[0] * size[1]),
        standardise=_standardise(counted["pixels"]),
    )


def counts(parts: Mapping[str, Pairs]) -> str:
    """The number of images in each part, in words."""
    return ", ".join(f"{len(pairs):,} images for {part}" for part, pairs in parts.items())


def warn_of_other_counts(where: Path, name: str, parts: Mapping[str, Pairs], published: Mapping[str, int]) -> None:
    """Warn if the numbers of images differ from the published ones."""
    if any(len(parts[part]) != count for part, count in published.items()):
        expected = ", ".join(f"{count:,} for {part}" for part, count in published.items())
        warnings.warn(
            f"{where} has {counts(parts)}, but the published {name} has {expected}: results are not comparable",
            stacklevel=3,
        )


def paired(images: Path, labels: Path, suffix: str = "") -> Pairs:
    """Pair every image of a folder with its label image in another folder.

    Args:
        images: folder of PNG or JPEG images.
        labels: folder of PNG label images.
        suffix: what the name of a label image has after the name of its image.

    Raises:
        FileNotFoundError: if there are no images.
        ValueError: if a file has no partner.
    """
    of_images = {path.stem: path for path in sorted(images.glob("*")) if path.suffix in (".png", ".jpg")}
    of_labels = {path.stem.removesuffix(suffix): path for path in labels.glob(f"*{suffix}.png")}
    if not of_images:
        raise FileNotFoundError(f"{images} holds no PNG or JPEG: fetch the data set again")
    alone = [of_images.get(stem) or of_labels[stem] for stem in sorted(of_images.keys() ^ of_labels.keys())]
    if alone:
        raise ValueError(
            f"{alone[0]} has no partner in {labels if alone[0].parent == images else images} "
            f"(files without one: {len(alone):,} of {len(of_images | of_labels):,}): fetch the data set again"
        )
    return [(path, of_labels[stem]) for stem, path in of_images.items()]


def decode(image: Path, label: Path, size: Size, meaning: NDArray[np.int8]) -> tuple[NDArray[Any], NDArray[Any]]:
    """An image (3, height, width) and its labels (height, width), in bytes, resized to `size`.

    Raises:
        ValueError: if a file is damaged, the two sizes differ, or a label is UNKNOWN.
    """
    sampling = require("PIL.Image", "images").Resampling
    with _opened(image) as file:
        extent = file.size
        pixels = np.array(file.convert("RGB").resize(size, sampling.BILINEAR))
    with _opened_labels(label) as file:
        if file.size != extent:
            raise ValueError(f"its size is {file.size}, but that of its image {image} is {extent}")
        values = np.array(file.resize(size, sampling.NEAREST))
        unknown = [value for value in np.unique(values) if meaning[value] == UNKNOWN]
        if unknown:
            raise ValueError(f"it holds the label {unknown[0]}, which this data set does not have")
    return pixels.transpose(2, 0, 1), values


def values_in(label: Path) -> NDArray[np.uint8]:
    """The values that occur in a label image, at its own size."""
    with _opened_labels(label) as file:
        return np.unique(np.array(file))


def median_frequency(counts: Tensor, pixels: int) -> Tensor:
    r"""Class weights $\mathrm{median}(f) / f_c$ (Eigen and Fergus 2015); 0 for a class that does not occur.

    $f_c$ is the share of class c among the pixels of the images where it occurs.

    Args:
        counts: pixels of each class in each image, (images, classes).
        pixels: number of pixels in an image.

    Raises:
        ValueError: if no class occurs.
    """
    occurring = (counts > 0).sum(0)
    frequency = counts.sum(0).double() / (occurring.clamp_min(1) * pixels)
    seen = occurring > 0
    if not seen.any():
        raise ValueError("no training pixel belongs to a learnt class: hold out fewer classes")
    return torch.where(seen, frequency[seen].quantile(0.5) / frequency, 0).float()


def _check_apart(name: str, parts: Mapping[str, Pairs]) -> None:
    """Raise if an image occurs twice: training images must not be tested on."""
    where: dict[Path, str] = {}
    for part, pairs in parts.items():
        for image, _ in pairs:
            if image in where:
                raise ValueError(f"{name} uses {image} for {where[image]} and again for {part}: fetch it again")
            where[image] = part


def _fingerprint(pairs: Pairs) -> str:
    return fingerprint_of(path for pair in pairs for path in pair)


def _records(name: str, fingerprint: str, pairs: Pairs, size: Size, meaning: NDArray[np.int8]) -> NDArray[np.void]:
    form = np.dtype([("image", np.uint8, (3, size[1], size[0])), ("label", np.uint8, (size[1], size[0]))])

    def build() -> Iterator[NDArray[np.void]]:
        for image, label in track(pairs, f"decoding {name}", len(pairs)):
            yield np.array(decode(image, label, size, meaning), form)

    return mapped(name, fingerprint, form, len(pairs), build)


def _counted(records: NDArray[np.void]) -> Tensors:
    """How often each of the 256 values occurs, per channel over all images and per image in the labels."""
    pixels, labels = torch.zeros(3, 256, dtype=torch.int64), torch.zeros(len(records), 256, dtype=torch.int64)
    for record, row in zip(track(records, "counting classes", len(records)), labels, strict=True):
        row += torch.from_numpy(np.bincount(record["label"].ravel(), minlength=256))
        for channel, values in zip(pixels, record["image"], strict=True):
            channel += torch.from_numpy(np.bincount(values.ravel(), minlength=256))
    return {"pixels": pixels, "labels": labels}


def _standardise(counts: Tensor) -> Standardise:
    shares = counts.double() / counts.sum(1, keepdim=True)
    values = torch.arange(256, dtype=torch.float64)
    mean = shares @ values
    variance = (shares * (values - mean[:, None]).square()).sum(1)
    return Standardise(mean.float().view(3, 1, 1), variance.sqrt().float().view(3, 1, 1))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open an image file; any error names the file."""
    pil = require("PIL.Image", "images")
    try:
        with opened(path) as content, pil.open(content, formats=["PNG", "JPEG"]) as file:
            if file.width * file.height > LARGEST:  # checked before decoding
                raise ValueError(f"it has {file.width} x {file.height} pixels, more than {LARGEST:,}")
            yield file
    except Exception as error:
        raise ValueError(f"{path} cannot be used ({error}): delete it and fetch it again") from error


@contextmanager
def _opened_labels(path: Path) -> Iterator[Any]:
    with _opened(path) as file:
        if file.mode not in ("L", "P"):  # one byte per pixel, with or without a palette
            raise ValueError(f"its mode is {file.mode}, but labels need one byte per pixel")
        yield file
