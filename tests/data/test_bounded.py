from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest

from tests.data.hostile import MIB, gzip_bomb
from tradi.data.bounded import LARGEST, read_bounded, read_unpacked
from tradi.data.mnist import read_idx


def test_files_are_read_packed_and_unpacked(tmp_path: Path) -> None:
    path, packed = tmp_path / "file", gzip.compress(b"content")
    path.write_bytes(packed)
    assert read_bounded(path) == packed
    assert read_unpacked(path) == b"content"
    path.write_bytes(b"")
    assert read_bounded(path) == read_unpacked(path) == b""


def test_the_bound_is_the_last_size_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradi.data.bounded.LARGEST", 10)
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    assert read_bounded(path) == read_unpacked(path) == bytes(10)
    for content in (bytes(11), gzip.compress(bytes(11))):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"file holds more than 10 bytes"):
            read_unpacked(path)
    path.write_bytes(bytes(11))
    with pytest.raises(ValueError, match=r"file holds more than 10 bytes"):
        read_bounded(path)


def test_a_bomb_never_takes_more_memory_than_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradi.data.bounded.LARGEST", MIB)
    (tmp_path / "bomb.gz").write_bytes(gzip_bomb(bytes([0, 0, 8, 1]), 100))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"bomb\.gz holds more than 1,048,576 bytes"):
            read_idx(tmp_path / "bomb.gz")
        assert tracemalloc.get_traced_memory()[1] < 5 * MIB
    finally:
        tracemalloc.stop()


def test_every_published_file_is_within_the_bound() -> None:
    assert LARGEST > 60_000 * 784 + 16  # MNIST's training images
    assert LARGEST > 10_000 * 3073  # a file of CIFAR-10


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_bounded, read_unpacked):
        with pytest.raises(ValueError, match="pipe is not a regular file"):
            read(tmp_path / "pipe")
        with pytest.raises(OSError, match="missing"):
            read(tmp_path / "missing")
        with pytest.raises(OSError, match=str(tmp_path)):
            read(tmp_path)
