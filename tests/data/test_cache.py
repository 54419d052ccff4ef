from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tradi.data.cache import Tensors, cached, digest

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
