from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.data.samples import link, tar
from tradi.data.catalogue import Download, Entry, Finding, Part
from tradi.data.fetch import CHUNK, TIMEOUT, fetch

CONTENT = bytes(range(256)) * (CHUNK // 256) + b"and a little more than one chunk"


class Handler(BaseHTTPRequestHandler):
    """Serves the server's `files`, whole or from where a client asks; notes what was asked of it."""

    server: Server

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        content = server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        if server.endless:
            self._serve_for_ever(content)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : server.breaks_at])

    def _serve_for_ever(self, content: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # until the client hangs up
            while True:
                self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str | None] = []
        self.ranges = True
        self.breaks_at: int | None = None
        self.endless = False

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def measure(path: Path) -> tuple[int, str]:
    content = path.read_bytes()
    if content.startswith(b"<html>"):
        raise ValueError(f"{path} is a page")
    return len(content), hashlib.sha256(content).hexdigest()


def part_of(content: bytes, path: str, verified: bool = True) -> Part:
    return Part((path,), len(content), "bytes", hashlib.sha256(content).hexdigest(), measure, verified)


def entry(server: Server, verified: bool = True) -> Entry:
    part = part_of(CONTENT, "set/file.bin", verified)
    return Entry("some", "", "", (Download(server.url("/file.bin"), "set/file.bin", (part,)),))


def states(findings: Iterator[Finding]) -> list[str]:
    return [finding.state for finding in findings]


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"] = CONTENT
    for _ in range(2):
        assert states(fetch(entry(server), tmp_path)) == ["ok"]
    assert server.asked == [None]
    assert (tmp_path / "set/file.bin").read_bytes() == CONTENT
    assert list((tmp_path / "set").iterdir()) == [tmp_path / "set/file.bin"]


def test_a_broken_download_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"], server.breaks_at = CONTENT, 1000
    (failure,) = fetch(entry(server), tmp_path)
    assert failure.state == "failed"
    assert f"broke off after 1,000 of {len(CONTENT):,} bytes: run this again" in failure.detail
    assert not (tmp_path / "set/file.bin").exists()
    server.breaks_at = None
    assert states(fetch(entry(server), tmp_path)) == ["ok"]
    assert server.asked == [None, "bytes=1000-"]
    assert (tmp_path / "set/file.bin").read_bytes() == CONTENT


def test_a_server_that_cannot_go_on_begins_anew(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"], server.ranges = CONTENT, False
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file.bin.part").write_bytes(b"x" * 1000)
    assert states(fetch(entry(server), tmp_path)) == ["ok"]
    assert server.asked == ["bytes=1000-"]


def test_a_beginning_that_is_as_long_as_the_file_begins_anew(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"] = CONTENT
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file.bin.part").write_bytes(CONTENT)
    assert states(fetch(entry(server), tmp_path)) == ["ok"]
    assert server.asked == [f"bytes={len(CONTENT)}-", None]


def test_what_differs_from_the_published_checksum_is_deleted(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"] = CONTENT[::-1]
    (failure,) = fetch(entry(server), tmp_path)
    assert failure.state == "failed"
    assert hashlib.sha256(CONTENT).hexdigest() in failure.detail
    assert list((tmp_path / "set").iterdir()) == []


def test_where_the_public_checksum_is_not_known_another_copy_is_kept_and_reported(
    server: Server, tmp_path: Path
) -> None:
    server.files["/file.bin"] = CONTENT[::-1]
    assert states(fetch(entry(server, verified=False), tmp_path)) == ["differs"]
    assert (tmp_path / "set/file.bin").read_bytes() == CONTENT[::-1]


def test_a_part_of_a_published_file_is_not_taken_for_it(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"] = CONTENT[:1000]
    (failure,) = fetch(entry(server), tmp_path)
    assert failure.state == "failed"
    assert f"1,000 of {len(CONTENT):,} bytes" in failure.detail
    assert list((tmp_path / "set").iterdir()) == []


def test_what_is_given_to_registered_users_only_is_not_asked_for(tmp_path: Path) -> None:
    listed = Entry("some", "", "", (Download("https://some.example", "set", (part_of(b"1", "set/a"),), by_hand=True),))
    (failure,) = fetch(listed, tmp_path)
    assert (failure.path, failure.state) == (tmp_path / "set", "failed")
    assert failure.detail.startswith("https://some.example is for registered users only")


def test_what_cannot_be_read_is_never_kept(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"] = b"<html>moved</html>"
    assert states(fetch(entry(server, verified=False), tmp_path)) == ["failed"]
    assert list((tmp_path / "set").iterdir()) == []


def test_a_file_that_is_not_there_says_what_to_put_where(server: Server, tmp_path: Path) -> None:
    (failure,) = fetch(entry(server), tmp_path)
    assert (failure.path, failure.state) == (tmp_path / "set/file.bin", "failed")
    assert "404" in failure.detail
    assert f"download {server.url('/file.bin')} by other means and put it at this path" in failure.detail


def test_one_failure_does_not_keep_the_other_files_away(server: Server, tmp_path: Path) -> None:
    server.files["/b"] = CONTENT
    downloads = [Download(server.url(f"/{name}"), name, (part_of(CONTENT, name),)) for name in "ab"]
    assert states(fetch(Entry("some", "", "", tuple(downloads)), tmp_path)) == ["failed", "ok"]


def test_without_a_connection_the_place_is_named(tmp_path: Path) -> None:
    with Server() as closed:
        listed = entry(closed)
    (failure,) = fetch(listed, tmp_path)
    assert failure.state == "failed"
    assert "refused" in failure.detail


def packed(server: Server) -> Entry:
    parts = tuple(part_of(text, f"set/{name}/data.txt") for name, text in (("one", b"1"), ("two", b"2")))
    pattern = r"[^/]+/set/((?:one|two)/data\.txt)"
    return Entry("packed", "", "", (Download(server.url("/all.tar.gz"), "set", parts, pattern),))


def test_an_archive_gives_its_wanted_files_and_is_gone(server: Server, tmp_path: Path) -> None:
    files = {"repo/set/one/data.txt": b"1", "repo/set/two/data.txt": b"2", "repo/set/two/results.txt": b"3"}
    server.files["/all.tar.gz"] = tar(files)
    assert states(fetch(packed(server), tmp_path)) == ["ok", "ok"]
    paths = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert paths == {"set/one/data.txt", "set/two/data.txt"}


@pytest.mark.parametrize(
    "content",
    [
        tar({"repo/set/one/data.txt": b"1", "repo/../../escaped.txt": b"2"}),
        tar({"repo/set/one/data.txt": b"1", "/tmp/escaped.txt": b"2"}),
        tar({"repo/set/one/data.txt": b"1"}, [link("repo/set/two/data.txt", "/etc/passwd")]),
        tar({"repo/set/one/data.txt": b"1"})[:-20],
        tar({"repo/other.txt": b"1"}),
        b"<html>moved</html>",
    ],
    ids=["climbing", "absolute", "link", "cut short", "another archive", "no archive"],
)
def test_of_a_hostile_or_damaged_archive_nothing_is_written(server: Server, tmp_path: Path, content: bytes) -> None:
    root = tmp_path / "deep" / "root"
    server.files["/all.tar.gz"] = content
    (failure,) = fetch(packed(server), root)
    assert failure.state == "failed"
    assert "put the folder set inside it at this path" in failure.detail
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def limited(server: Server, largest: int) -> Entry:
    (download,) = entry(server).downloads
    return Entry("some", "", "", (replace(download, largest=largest),))


def test_a_download_without_an_end_is_given_up(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"], server.endless = CONTENT, True
    (failure,) = fetch(limited(server, 3 * CHUNK), tmp_path)
    assert failure.state == "failed"
    assert f"the server sent more than {3 * CHUNK:,} bytes" in failure.detail
    assert list((tmp_path / "set").iterdir()) == []


def test_more_than_a_file_can_have_is_not_even_begun(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"] = CONTENT
    assert states(fetch(limited(server, len(CONTENT)), tmp_path)) == ["ok"]
    (tmp_path / "set/file.bin").unlink()
    (failure,) = fetch(limited(server, len(CONTENT) - 1), tmp_path)
    assert f"the server offers {len(CONTENT):,} bytes, and {len(CONTENT) - 1:,} is far more" in failure.detail


def test_what_an_earlier_attempt_left_counts_too(server: Server, tmp_path: Path) -> None:
    server.files["/file.bin"] = CONTENT
    (tmp_path / "set").mkdir()
    (tmp_path / "set/file.bin.part").write_bytes(CONTENT[:1000])
    (failure,) = fetch(limited(server, len(CONTENT) - 1), tmp_path)
    assert f"the server offers {len(CONTENT) - 1000:,} bytes" in failure.detail
    assert list((tmp_path / "set").iterdir()) == []


def test_a_trickle_is_as_good_as_a_broken_connection(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/file.bin"] = CONTENT
    clock = itertools.count(step=TIMEOUT)  # a minute passes between any two looks at it
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr("tradi.data.fetch.SLOWEST", len(CONTENT))
    (failure,) = fetch(entry(server), tmp_path)
    assert f"the server sends less than {len(CONTENT):,} bytes a second: run this again" in failure.detail
    assert (tmp_path / "set/file.bin.part").exists()
    monkeypatch.undo()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert states(fetch(entry(server), tmp_path)) == ["ok"]
