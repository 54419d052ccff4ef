"""Small files that unpack to enormous ones."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib

MIB = 1 << 20


def gzip_bomb(start: bytes, mebibytes: int) -> bytes:
    """A gzip of `start` and zeros: a thousandth of what it unpacks to."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(start), *(packer.compress(bytes(MIB)) for _ in range(mebibytes)), packer.flush()]
    return b"".join(parts)


def png_bomb(picture: bytes, side: int) -> bytes:
    """A PNG whose header promises side x side pixels."""
    header = b"IHDR" + side.to_bytes(4, "big") * 2 + picture[24:29]
    return picture[:12] + header + zlib.crc32(header).to_bytes(4, "big") + picture[33:]


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar's header of 512 bytes."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def sparse(name: str, size: int) -> bytes:
    """A packed tar with a file that is said to have `size` bytes, of which one is stored."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        content = b"1\n0\n1\n".ljust(512, b"\0") + b"x"
        member.size = len(content)
        member.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": name,
            "GNU.sparse.realsize": str(size),
        }
        archive.addfile(member, io.BytesIO(content))
    return gzip.compress(file.getvalue())
