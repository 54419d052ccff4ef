"""NotMNIST small: the letters A to J in thousands of fonts, as 28x28 PNGs in an archive or in folders."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from tradi.data.archives import members
from tradi.data.bounded import read_bounded
from tradi.data.cache import Tensors, cached, digest, fingerprint_of
from tradi.data.root import data_root, find
from tradi.extras import require
from tradi.progress import track

LETTERS = "ABCDEFGHIJ"
SIDE = 28
FILES = ("notMNIST_small.tar.gz", "notMNIST_small")


@dataclass(frozen=True, eq=False)
class NotMNIST:
    """Images of letters, sorted by letter and file name.

    Args:
        images: (images, 28, 28), unsigned bytes.
        labels: A to J as 0 to 9.
        skipped: how many files could not be read as an image of that size.
    """

    images: Tensor
    labels: Tensor
    skipped: int


def notmnist(root: str | PathLike[str] | None = None) -> NotMNIST:
    """Read `notMNIST_small.tar.gz`, or the folder `notMNIST_small`, below the data root; decoded once and cached.

    Args:
        root: folder of all data sets; see `data_root`.

    Returns:
        the images that can be read, with their letters.

    Raises:
        FileNotFoundError: if neither is below the root.
        ValueError: if the archive is damaged, or no image can be read.
    """
    return read(find(data_root(root), FILES, "notmnist"))


def read(source: Path) -> NotMNIST:
    """Read the archive or folder `source`; decoded once and cached."""
    tensors = cached("notMNIST", _fingerprint(source), lambda: _decoded(source))
    return NotMNIST(tensors["images"], tensors["labels"], int(tensors["skipped"]))


def measure(source: Path) -> tuple[int, str]:
    """How many images can be read, and the SHA-256 of their pixels and labels, however they are packed."""
    data = read(source)
    return len(data.images), digest(data.images, data.labels)


def _decoded(source: Path) -> Tensors:
    files = _folder(source) if source.is_dir() else _archive(source)
    # Decoded as they come: of what an archive holds, no more than pixels stays in memory.
    read = [(letter, name, _pixels(content)) for letter, name, content in track(files, "decoding notMNIST")]
    letters = [(letter, name, image) for letter, name, image in read if image is not None]
    if not letters:
        raise ValueError(f"{source} holds no readable 28x28 PNG in folders A to J: delete it and fetch it again")
    letters.sort(key=lambda one: one[:2])
    images, labels = zip(*((image, LETTERS.index(letter)) for letter, _, image in letters), strict=True)
    skipped = torch.tensor(len(read) - len(letters))
    return {"images": torch.stack(images), "labels": torch.tensor(labels), "skipped": skipped}


def _archive(source: Path) -> Iterator[tuple[str, str, bytes]]:
    for match, content in members(source, r"(?:\./)?notMNIST_small/([A-J])/([^/]+\.png)"):
        yield match[1], match[2], content


def _folder(source: Path) -> Iterator[tuple[str, str, bytes]]:
    for path in source.glob("[A-J]/*.png"):
        yield path.parent.name, path.name, read_bounded(path)


def _pixels(content: bytes) -> Tensor | None:
    image_module = require("PIL.Image", "images")
    try:
        with image_module.open(io.BytesIO(content), formats=["PNG"]) as image:
            if image.size != (SIDE, SIDE):  # checked before decoding
                return None
            pixels = image.convert("L").tobytes()
    except Exception:  # whatever the decoder raises, the file is damaged: skip it
        return None
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(SIDE, SIDE)


def _fingerprint(source: Path) -> str:
    if source.is_file():
        return hashlib.sha256(read_bounded(source)).hexdigest()
    return fingerprint_of(sorted(source.glob("[A-J]/*.png")))
