"""Tar archives from the network, read without trusting them."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from tradi.data.bounded import LARGEST, unpacked

# All well above what the archives of the data sets here hold.
MEMBERS = 100_000  # files and folders; notMNIST, with the most, has 18,735
HEADERS = 1 << 16  # bytes between the contents of two members, where long names are written
UNPACKED = 1 << 30  # bytes of a packed archive; CIFAR-10, the largest, has 184 MB. A plain one is as large as its file


def members(path: Path, pattern: str) -> Iterator[tuple[re.Match[str], bytes]]:
    """Yield name match and contents of each file in a tar or tar.gz whose full name matches; nothing is written.

    Args:
        path: the archive.
        pattern: regular expression for the names to read.

    Raises:
        ValueError: if any name is absolute or leads outside the archive, if a matching member is not a regular file or
            is too large, if the archive unpacks to far more than a data set has, or if it is damaged.
        OSError: if it cannot be read.
    """
    wanted = re.compile(pattern)
    file = unpacked(path)
    try:
        with file:
            is_packed = not isinstance(file, io.BufferedReader)
            stream = _Bounded(file, UNPACKED if is_packed else path.stat().st_size)
            with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r|") as archive:
                listed: Any = archive  # its types leave out what it keeps
                for count, member in enumerate(archive):
                    for kept in (listed.members, listed.pax_headers):  # or it would keep all of them
                        kept.clear()
                    _check(member, count)
                    stream.until = member.offset_data + member.size + HEADERS
                    match = wanted.fullmatch(member.name)
                    if match is not None:
                        yield match, _content(archive, member)
            stream.until = stream.largest
            while stream.read(1 << 20):  # to the end, so that gzip verifies its checksum
                pass
    except _HostileError as error:
        raise ValueError(f"{path} {error}: do not trust this file") from error
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, RecursionError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a tar archive ({error}): delete it and fetch it again") from error


class _HostileError(Exception):
    """An archive that nobody publishes."""


class _Bounded:
    """A stream that ends in an error at `until`, and at `largest` in any case."""

    def __init__(self, file: IO[bytes], largest: int) -> None:
        self._file = file
        self.largest = largest
        self.until = HEADERS
        self._place = 0

    def read(self, size: int) -> bytes:
        content = self._file.read(size)
        self._place += len(content)
        if self._place > self.largest:
            raise _HostileError(f"unpacks to more than {self.largest:,} bytes")
        if self._place - tarfile.RECORDSIZE > self.until:  # tarfile reads ahead by a record at most
            raise _HostileError(f"has a header of more than {HEADERS:,} bytes")
        return content


def _check(member: tarfile.TarInfo, count: int) -> None:
    place = PurePosixPath(member.name)
    if place.is_absolute() or ".." in place.parts or "\\" in member.name or "\0" in member.name:
        raise _HostileError(f"contains {member.name[:200]!r}, which leads outside the archive")
    if member.issparse():
        raise _HostileError(f"contains {member.name!r}, which is larger than what is stored of it")
    if count >= MEMBERS:
        raise _HostileError(f"contains more than {MEMBERS:,} files")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.isreg() and member.size <= LARGEST else None
    if file is None:
        raise _HostileError(f"contains {member.name!r}, which is a link or too large")
    return file.read()
