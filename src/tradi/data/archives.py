"""Tar archives from the network, read without trusting them."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path, PurePosixPath

LARGEST = 64 << 20  # bytes of one member; the largest that any data set here needs has 4 MB


def members(path: Path, pattern: str) -> Iterator[tuple[re.Match[str], bytes]]:
    """Names that match `pattern` in full, and contents, of the regular files in a tar or tar.gz; nothing is written.

    An archive with a name that is absolute or climbs out of it is refused, as is one where a wanted name is a link.
    """
    wanted = re.compile(pattern)
    try:
        with _opened(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                place = PurePosixPath(member.name)
                if place.is_absolute() or ".." in place.parts:
                    raise ValueError(f"{path} holds {member.name!r}, a path out of the archive: do not trust this file")
                match = wanted.fullmatch(member.name)
                if match is None:
                    continue
                content = archive.extractfile(member) if member.isreg() and member.size <= LARGEST else None
                if content is None:
                    raise ValueError(f"{path} holds {member.name!r}, a link or too large: do not trust this file")
                yield match, content.read()
            while stream.read(1 << 20):  # to the end, where gzip's own checksum stands
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or no tar archive ({error}): delete it and fetch it again") from error


def _opened(path: Path) -> gzip.GzipFile | BufferedReader:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else path.open("rb")
