"""Tar archives from the network, read without trusting them."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath

LARGEST = 64 << 20  # bytes per member; the largest member of any data set here has 4 MB


def members(path: Path, pattern: str) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield name match and contents of each file in a tar or tar.gz whose full name matches; nothing is written.

    Args:
        path: the archive.
        pattern: regular expression for the names to read.

    Raises:
        ValueError: if any name is absolute or leads outside the archive, if a matching member is not a regular file or
            is too large, or if the archive is damaged.
    """
    wanted = re.compile(pattern)
    try:
        with _opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts:
                    raise ValueError(
                        f"{path} contains {member.name!r}, which leads outside the archive: do not trust this file"
                    )
                match = wanted.fullmatch(member.name)
                if match is None:
                    continue
                content = archive.extractfile(member) if member.isreg() and member.size <= LARGEST else None
                if content is None:
                    raise ValueError(
                        f"{path} contains {member.name!r}, which is a link or too large: do not trust this file"
                    )
                yield match, content.read()
            while stream.read(1 << 20):  # to the end, so that gzip verifies its checksum
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or not a tar archive ({error}): delete it and fetch it again") from error


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")
