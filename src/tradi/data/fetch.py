"""Downloads of the catalogue's data sets: first to a .part file, then into place if the contents are right."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tradi import __version__
from tradi.data.archives import members
from tradi.data.catalogue import Download, Entry, Finding, check, inspect
from tradi.progress import track

CHUNK = 1 << 16
TIMEOUT = 60  # seconds to wait for an answer


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
        retrieve(download.url, begun)
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


def retrieve(url: str, path: Path) -> None:
    """Download `url` to `path`, resuming a partial file that an earlier attempt left there.

    Raises:
        OSError: if the server cannot be reached, or the connection breaks off.
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
        return retrieve(url, path)
    with response, path.open("ab" if response.status == 206 else "wb") as file:
        length = int(response.headers.get("Content-Length", 0))
        chunks = iter(partial(response.read, CHUNK), b"")
        received = sum(map(file.write, track(chunks, f"fetching {path.stem}", math.ceil(length / CHUNK) or None)))
    if received < length:
        raise OSError(f"the connection broke off after {received:,} of {length:,} bytes")
    return None


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
