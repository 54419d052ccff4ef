"""MNIST in its published form: four IDX files, gzipped or not."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from tradi.data.bounded import read_unpacked
from tradi.data.images import Images, Labelled, standardised
from tradi.data.root import data_root, find

UNSIGNED_BYTES = 0x08  # IDX's code for the type of the values
SIDE = 28


def mnist(
    root: str | PathLike[str] | None = None, validation: int = 5_000, ood: Mapping[str, Tensor] | None = None
) -> Images:
    """MNIST as vectors of 784 numbers, standardised by the mean and standard deviation of all training pixels.

    Args:
        root: folder of all data sets; see `data_root`.
        validation: number of training images, taken from the end, to use for validation.
        ood: OOD images by name, (images, 28, 28), standardised in the same way; for example `notmnist(root).images`.

    Returns:
        training, validation and test images with their labels, and OOD images if there are any.

    Raises:
        FileNotFoundError: if MNIST is not below the root.
        ValueError: if a file is damaged, or `validation` leaves no training image.
    """
    folder = data_root(root)
    images, labels = _part(folder, "train")
    if not 0 <= validation < len(images):
        raise ValueError(f"validation must leave some of {len(images):,} training images, got {validation}")
    end = len(images) - validation
    parts = (images[:end], labels[:end]), (images[end:], labels[end:]), _part(folder, "t10k")
    vectors = [(pixels.flatten(1), classes) for pixels, classes in parts]
    others = {kind: pixels.flatten(1) for kind, pixels in (ood or {}).items()}
    return standardised(vectors, others, classes=10, over=(0, 1))


def files(part: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Paths of a part's images and of its labels below the root, each gzipped and plain."""
    images, labels = (f"mnist/{part}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1"))
    return (f"{images}.gz", images), (f"{labels}.gz", labels)


def _part(root: Path, part: str) -> Labelled:
    images_path, labels_path = (find(root, paths, "mnist") for paths in files(part))
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != (SIDE, SIDE):
        raise ValueError(f"{images_path} holds values of shape {tuple(images.shape)}, expected (images, 28, 28)")
    if labels.shape != images.shape[:1]:
        raise ValueError(f"{labels_path} holds labels of shape {tuple(labels.shape)} for {len(images):,} images")
    if labels.max() > 9:
        raise ValueError(f"{labels_path} holds the label {int(labels.max())}, expected 0 to 9")
    return images, labels.long()


def read_idx(path: Path) -> Tensor:
    """Read the unsigned bytes of an IDX file, in the shape that its header gives.

    Raises:
        ValueError: if the file is damaged or holds other types.
    """
    return _parse(read_unpacked(path), path)


def measure(path: Path) -> tuple[int, str]:
    """How many items an IDX file holds, and the SHA-256 of the file without gzip."""
    content = read_unpacked(path)
    return len(_parse(content, path)), hashlib.sha256(content).hexdigest()


def _parse(content: bytes, path: Path) -> Tensor:
    if len(content) < 4 or content[:2] != b"\0\0":
        raise ValueError(
            f"{path} is not an IDX file: it starts with {content[:4].hex(' ') or 'nothing'}, expected 00 00"
        )
    kind, dimensions = content[2], content[3]
    if kind != UNSIGNED_BYTES:
        raise ValueError(f"{path} holds values of IDX type 0x{kind:02x}, expected unsigned bytes, 0x08")
    if dimensions > 3:
        raise ValueError(f"{path} holds an array of {dimensions} dimensions, expected labels or images")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise ValueError(f"{path} ends within its header: delete it and fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + math.prod(shape)
    if len(content) != expected or expected == start or not shape:
        raise ValueError(
            f"{path} has {len(content):,} bytes, but its header gives shape {shape}, which needs {expected:,}: "
            "it is damaged or empty, delete it and fetch it again"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)
