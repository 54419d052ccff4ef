from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tradi.data.cache import Tensors, cached, digest, fingerprint_of, mapped

VALUES = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(7)}


class Builder:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Tensors:
        self.calls += 1
        return VALUES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tradi" / "decoded"


def same(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_source_is_built_once_and_another_one_again(folder: Path) -> None:
    build = Builder()
    assert same(cached("letters", "1" * 64, build), VALUES)
    assert same(cached("letters", "1" * 64, build), VALUES)
    assert build.calls == 1
    cached("letters", "2" * 64, build)
    assert build.calls == 2
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("damage", ["empty", "garbage", "a flipped bit", "another source's"])
def test_a_damaged_cache_is_rebuilt(folder: Path, damage: str) -> None:
    build = Builder()
    cached("letters", "1" * 64, build)
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    fingerprint = "1" * 63 + "2" if damage == "another source's" else "1" * 64
    if damage != "another source's":
        path.write_bytes({"empty": b"", "garbage": b"\xff" * 100, "a flipped bit": bytes(content)}[damage])
    assert same(cached("letters", fingerprint, build), VALUES)
    assert build.calls == 2
    assert same(cached("letters", fingerprint, build), VALUES)
    assert build.calls == 2  # what was rebuilt serves again
    assert list(folder.iterdir()) == [path]


def test_without_a_place_to_write_all_is_built_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    build = Builder()
    for calls in (1, 2):
        assert same(cached("letters", "1" * 64, build), VALUES)
        assert build.calls == calls


def test_a_digest_tells_values_and_shapes_apart() -> None:
    values = torch.arange(6)
    digests = {digest(values), digest(values + 1), digest(values.reshape(2, 3)), digest(values[:3], values[3:])}
    assert len(digests) == 4
    assert digest(values) == digest(values.clone())


FORM = np.dtype([("image", np.uint8, (3, 2, 2)), ("label", np.uint8, (2, 2))])
RECORDS = np.frombuffer(bytes(range(5 * 16)), FORM)


class Rows:
    """Counts how often it is asked, and breaks where it is told to."""

    def __init__(self, until: int = len(RECORDS)) -> None:
        self.calls = 0
        self.until = until

    def __call__(self) -> Iterator[NDArray[np.void]]:
        self.calls += 1
        for record in RECORDS[: self.until]:
            yield np.array(record)
        if self.until < len(RECORDS):
            raise ValueError("some image is damaged")


def test_records_are_built_once_and_mapped_from_a_file(folder: Path) -> None:
    build = Rows()
    for _ in range(2):
        records = mapped("frames", "1" * 64, FORM, 5, build)
        assert isinstance(records, np.memmap)
        assert not records.flags.writeable
        assert np.array_equal(records, RECORDS)
    assert build.calls == 1
    mapped("frames", "2" * 64, FORM, 5, build)
    assert build.calls == 2


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut short", "of another form", "of another number"])
def test_a_damaged_file_of_records_is_rebuilt(folder: Path, damage: str) -> None:
    build = Rows()
    mapped("frames", "1" * 64, FORM, 5, build)
    (path,) = folder.iterdir()
    if damage == "of another form":
        np.save(path, np.zeros(5))
    elif damage == "of another number":
        np.save(path, RECORDS[:4])
    else:
        path.write_bytes({"empty": b"", "garbage": b"\xff" * 500, "cut short": path.read_bytes()[:-1]}[damage])
    assert np.array_equal(mapped("frames", "1" * 64, FORM, 5, build), RECORDS)
    assert build.calls == 2
    assert list(folder.iterdir()) == [path]


def test_records_that_cannot_be_built_leave_nothing_behind(folder: Path) -> None:
    with pytest.raises(ValueError, match="some image is damaged"):
        mapped("frames", "1" * 64, FORM, 5, Rows(until=3))
    assert list(folder.iterdir()) == []


def test_without_a_place_to_write_records_the_room_they_need_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"frames-1+\.npy could not be written .* needs 80 bytes there: .*XDG_CACHE_HOME"):
        mapped("frames", "1" * 64, FORM, 5, Rows())


def test_a_fingerprint_tells_names_sizes_and_times_apart(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(b"1")
        os.utime(file, ns=(0, 0))
    prints = [fingerprint_of(files), fingerprint_of(files[:1]), fingerprint_of(reversed(files))]
    os.utime(files[0], ns=(0, 1))
    prints.append(fingerprint_of(files))
    files[0].write_bytes(b"12")
    os.utime(files[0], ns=(0, 1))
    prints.append(fingerprint_of(files))
    assert len(set(prints)) == 5
    assert fingerprint_of(files) == prints[-1]
