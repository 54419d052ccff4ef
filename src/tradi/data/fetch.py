"""Downloads of the catalogue's data sets: first to a .part file, then into place if the contents are right."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tradi import __version__
from tradi.data.archives import members
from tradi.data.catalogue import Download, Entry, Finding, check, inspect
from tradi.progress import track

CHUNK = 1 << 16
TIMEOUT = 60  # seconds to wait for an answer
SLOWEST = 10_000  # bytes a second, after the first minute: less is as good as a connection that broke off


def fetch(entry: Entry, root: Path) -> Iterator[Finding]:
    """Download what is missing or wrong of a data set below the root, and yield the state of every part."""
    for download in entry.downloads:
        findings = [check(part, root) for part in download.parts]
        if any(finding.state != "ok" for finding in findings):
            failure = _get(download, root)
            findings = [failure] if failure else [check(part, root) for part in download.parts]
        yield from findings


def _get(download: Download, root: Path) -> Finding | None:
    target = root / download.path
    if download.by_hand:
        how = f"{download.url} is for registered users only: download it there and put it at this path"
        return Finding(target, "failed", how)
    begun = target.with_name(target.name + ".part")
    try:
        begun.parent.mkdir(parents=True, exist_ok=True)
        retrieve(download.url, begun, download.largest)
        if download.members is None:
            _accept(download, begun)
            begun.replace(target)
        else:
            unpack(begun, target, download.members)
            begun.unlink()
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, ValueError):  # wrong, not just incomplete: the next attempt starts over
            begun.unlink(missing_ok=True)
        what = "it" if download.members is None else f"the folder {target.name} inside it"
        remedy = f"run this again, or download {download.url} by other means and put {what} at this path"
        return Finding(target, "failed", f"{error}: {remedy}")
    return None


def _accept(download: Download, begun: Path) -> None:
    """Reject a file that differs from the published one or, if no public checksum is known, cannot be read."""
    (part,) = download.parts
    finding = inspect(part, begun)
    if finding.state == "unreadable" or (finding.state != "ok" and part.verified):
        raise ValueError(f"the download is not the expected file: {finding.detail}")


def retrieve(url: str, path: Path, largest: int) -> None:
    """Download `url` to `path`, resuming a partial file that an earlier attempt left there.

    Args:
        url: where it is.
        path: where it goes.
        largest: bytes that the whole file may have.

    Raises:
        OSError: if the server cannot be reached, is slower than `SLOWEST`, or the connection breaks off.
        ValueError: if the file is larger than `largest`.
    """
    start = path.stat().st_size if path.exists() else 0
    request = Request(url, headers={"User-Agent": f"tradi/{__version__}"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code != 416 or not start:
            raise
        path.unlink()  # the server has nothing beyond it: it was complete, or a different file, so start over
        return retrieve(url, path, largest)
    resumed = response.status == 206
    with response, path.open("ab" if resumed else "wb") as file:
        said = response.headers.get("Content-Length", "")
        length = int(said) if said.isdecimal() else 0
        room = largest - start * resumed
        if length > room:
            raise ValueError(f"the server offers {length:,} bytes, and {largest:,} is far more than the file has")
        chunks = track(_arriving(response, room), f"fetching {path.stem}", math.ceil(length / CHUNK) or None)
        received = sum(map(file.write, chunks))
    if received < length:
        raise OSError(f"the connection broke off after {received:,} of {length:,} bytes")
    return None


def _arriving(response: HTTPResponse, room: int) -> Iterator[bytes]:
    """What a server sends, in chunks of one size, until it sends too much or too slowly."""
    started, received, chunk = time.monotonic(), 0, b""
    while piece := response.read1(CHUNK - len(chunk)):
        received += len(piece)
        if received > room:
            raise ValueError(f"the server sent more than {room:,} bytes, which is far more than the file has")
        if received < SLOWEST * (time.monotonic() - started - TIMEOUT):
            raise OSError(f"the server sends less than {SLOWEST:,} bytes a second")
        chunk += piece
        if len(chunk) == CHUNK:
            yield chunk
            chunk = b""
    yield chunk


def unpack(archive: Path, folder: Path, pattern: str) -> None:
    """Write the matching members of an archive below `folder`, after checking the whole archive.

    Raises:
        ValueError: if the archive is damaged or unsafe, or no member matches.
    """
    if not sum(1 for _ in members(archive, pattern)):
        raise ValueError(f"{archive} contains no file that matches {pattern}")
    for match, content in members(archive, pattern):
        target = folder / match[1]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
