"""CIFAR-10 in its binary version: files of records, each a label and the 3 x 32 x 32 bytes of an image."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi.data.bounded import read_bounded
from tradi.data.images import Images, Labelled, kept, standardised
from tradi.data.root import data_root, find

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # bytes
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6))
TEST = "cifar-10-batches-bin/test_batch.bin"


def cifar10(
    root: str | PathLike[str] | None = None,
    validation: float = 0.1,
    held_out: Collection[str] = (),
    ood: Mapping[str, Tensor] | None = None,
) -> Images:
    """CIFAR-10 as (images, 3, 32, 32), standardised per channel by the training images; files may lack records.

    Args:
        root: folder of all data sets; see `data_root`.
        validation: fraction of the training images, taken from the end, to use for validation.
        held_out: classes to leave out of training: their test images are the OOD images `held-out classes`, and the
            other classes are renumbered from 0 in the order of `CLASSES`.
        ood: further OOD images by name, (images, 3, 32, 32), standardised in the same way; `in_colour` converts grey
            ones.

    Returns:
        training, validation and test images with their labels, and OOD images if there are any.

    Raises:
        FileNotFoundError: if CIFAR-10 is not below the root.
        ValueError: if a file is damaged, `validation` leaves no training image, or `held_out` has an unknown class.
    """
    learnt = torch.tensor([CLASSES.index(name) for name in kept(CLASSES, held_out)])
    batches = [read_batch(find(data_root(root), (path,), "cifar10")) for path in (*TRAIN, TEST)]
    test_images, test_labels = batches.pop()
    images, labels = _only(learnt, torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    end = round(len(images) * (1 - validation))
    if not 0 < end <= len(images):
        raise ValueError(f"validation must leave some of {len(images):,} training images, got {validation}")
    parts = (images[:end], labels[:end]), (images[end:], labels[end:]), _only(learnt, test_images, test_labels)
    others = {"held-out classes": test_images[~torch.isin(test_labels, learnt)]} if held_out else {}
    return standardised(parts, others | dict(ood or {}), len(learnt), over=(0, 2, 3))


def in_colour(images: Tensor) -> Tensor:
    """Convert grey images (images, height, width) to CIFAR-10's form: three equal channels, black up to 32 x 32.

    Args:
        images: bytes, (images, height, width).

    Returns:
        (images, 3, 32, 32).

    Raises:
        ValueError: if the images are larger than 32 x 32.
    """
    height, width = images.shape[1:]
    if max(height, width) > SIDE:
        raise ValueError(f"images must be at most {SIDE} x {SIDE}, got {height} x {width}")
    above, left = (SIDE - height) // 2, (SIDE - width) // 2
    framed = F.pad(images, [left, SIDE - width - left, above, SIDE - height - above])
    return framed[:, None].repeat(1, 3, 1, 1)


def read_batch(path: Path) -> Labelled:
    """All images in a file, in bytes, and their labels.

    Raises:
        ValueError: if the file is empty, ends within a record or has an unknown label.
    """
    return _parse(read_bounded(path), path)


def measure(path: Path) -> tuple[int, str]:
    """How many images a file holds, and its SHA-1, the published checksum."""
    content = read_bounded(path)
    return len(_parse(content, path)[0]), hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _parse(content: bytes, path: Path) -> Labelled:
    if not content or len(content) % RECORD:
        raise ValueError(
            f"{path} has {len(content):,} bytes, expected a multiple of {RECORD:,}: delete it and fetch it again"
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, RECORD)
    labels = records[:, 0].long()
    if labels.max() >= len(CLASSES):
        raise ValueError(f"{path} holds the label {labels.max()}, expected 0 to 9: delete it and fetch it again")
    return records[:, 1:].reshape(-1, 3, SIDE, SIDE), labels


def _only(learnt: Tensor, images: Tensor, labels: Tensor) -> Labelled:
    """Images of the learnt classes, which are renumbered from 0."""
    inside = torch.isin(labels, learnt)
    return images[inside], torch.searchsorted(learnt, labels[inside])
