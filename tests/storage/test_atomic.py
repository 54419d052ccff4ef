from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tradi.storage.atomic import new_folder, replacing, write_whole

POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there_and_names_the_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_whole(tmp_path / "file", "before")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os if call == "fsync" else Path, call, full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_whole(path, "after")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert path.read_text() == "before"
    assert names(tmp_path) == ["file"]


def test_nothing_is_under_the_name_before_it_is_whole_and_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", []
    real = os.fsync

    def fsync(number: int) -> None:
        synced.append(path.exists())
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(path) as file:
        file.write(b"half")
        assert not path.exists()
    assert synced[0] is False
    assert path.read_bytes() == b"half"
    with pytest.raises(TypeError, match="bytes-like"), replacing(path) as file:
        file.writelines([b"other", "what is no bytes"])  # type: ignore[list-item]
    assert path.read_bytes() == b"half"
    assert names(tmp_path) == ["file"]


@POSIX
@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_are_those_that_the_umask_leaves(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "file", "")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask


@POSIX
def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link, dangling = tmp_path / "far" / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_text("before")
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "far" / "new")
    write_whole(link, "after")
    write_whole(dangling, "too")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert (target.read_text(), dangling.read_text()) == ("after", "too")


@POSIX
def test_names_may_be_as_long_as_the_file_system_allows(tmp_path: Path) -> None:
    path = tmp_path / ("\N{SLOTH}" * 63)  # 252 bytes of 255
    with replacing(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        write_whole(tmp_path / "pipe", "")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        write_whole(tmp_path / "folder", "")


def test_writers_at_the_same_time_never_mix(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([65 + i]) * 50_000 for i in range(8)]
    seen = set()

    def write(content: bytes) -> None:
        for _ in range(10):
            write_whole(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            seen.add(path.read_bytes())
    assert seen <= set(contents)
    assert names(tmp_path) == ["file"]


def test_a_folder_appears_when_it_is_complete_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "made" / "folder"
    with new_folder(path) as partial:
        write_whole(partial / "file", "content")
        assert not path.exists()
    assert (path / "file").read_text() == "content"
    with pytest.raises(FileExistsError, match="remove it, or save elsewhere"), new_folder(path):
        pass
    with pytest.raises(FileNotFoundError), new_folder(tmp_path / "other") as partial:
        (partial / "file").read_text()
    assert names(tmp_path) == ["made"]
    assert names(tmp_path / "made") == ["folder"]
