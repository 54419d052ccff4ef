"""Files of data sets in memory, up to a size: what is far beyond the published sets is damaged or hostile."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

LARGEST = 64 << 20  # bytes of one file, unpacked; the largest of any data set here, MNIST's training images, has 47 MB


def read_bounded(path: Path) -> bytes:
    """The contents of a file; never more than `LARGEST` bytes are in memory.

    Raises:
        ValueError: if it is larger, or no regular file.
        OSError: if it cannot be read.
    """
    with opened(path) as file:
        return _read(file, path)


def read_unpacked(path: Path) -> bytes:
    """The contents of a file without gzip, if it is packed; never more than `LARGEST` bytes are in memory.

    Raises:
        ValueError: if it is larger or no regular file, or its gzip is damaged.
        OSError: if it cannot be read.
    """
    try:
        with unpacked(path) as file:
            return _read(file, path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is a damaged gzip file ({error}): delete it and fetch it again") from error


def opened(path: Path) -> IO[bytes]:
    """A file to read from.

    Raises:
        ValueError: if it is a pipe or a device, which may never end.
        OSError: if it cannot be read.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path} is not a regular file: fetch it again")
    return path.open("rb")


def unpacked(path: Path) -> IO[bytes]:
    """A file to read from, without gzip if it is packed; it raises what `opened` does."""
    with opened(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path)) if packed else opened(path)


def _read(file: IO[bytes], path: Path) -> bytes:
    content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{path} holds more than {LARGEST:,} bytes, and no file of a data set does: do not trust it")
    return content
