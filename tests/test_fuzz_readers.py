"""Damaged and forged data sets, results and checkpoints: read, or refused by an error that names file and cause.

Some thousands here; `make fuzz` tries as many as it is told, at random.
"""

from __future__ import annotations

import gzip
import json
import sys
import tarfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.samples import idx, odgt, png, random_bytes, tar, uci_files, write_uci
from tests.test_fuzz import ASKED, FUZZ, forge_words
from tradi.bench.results import Key, Result, read_result
from tradi.data import uci
from tradi.data.archives import members
from tradi.data.cifar10 import RECORD, read_batch
from tradi.data.decoding import decode
from tradi.data.mnist import read_idx
from tradi.data.notmnist import read as read_letters
from tradi.data.streethazards import listed
from tradi.data.uci import measure_splits

READERS = settings(FUZZ, max_examples=ASKED or 200)
LONGEST = 5000  # characters of a message
KINDS = st.sampled_from(["flip", "cut", "insert", "lose", "repeat", "word"])
WORDS = st.sampled_from([b"", b"\0", b"nan", b"-1", b"1e400", b"1e18", b"#", b"\xff" * 8, b"[" * 3000, b"../", b"\n"])


@st.composite
def damage(draw: st.DrawFn, content: bytes) -> bytes:
    """One to three changes of a file, more of them at its beginning, where headers are."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        size = max(len(changed) - 1, 0)
        at, how = draw(st.one_of(st.integers(0, size), st.integers(0, min(size, 600)))), draw(KINDS)
        length = draw(st.integers(1, 40))
        if how == "flip" and changed:
            changed[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del changed[at:]
        elif how == "insert":
            changed[at:at] = bytes([draw(st.integers(0, 255))]) * length
        elif how == "lose":
            del changed[at : at + length]
        elif how == "repeat":
            changed[at:at] = changed[at : at + length]
        else:
            changed[at : at + length] = draw(WORDS)
    return bytes(changed)


def read_or_refused(read: Callable[[], Any], path: Path) -> Any:
    said = str(path)
    try:
        return read()
    except (ValueError, OSError) as error:
        said = str(error)
        return None
    finally:
        assert str(path) in said
        assert len(said) < LONGEST


def letters() -> bytes:
    """A plain tar of a folder and pictures."""
    return gzip.decompress(tar({f"notMNIST_small/{c}/{c}.png": png(random_bytes(28, 28, seed=3)) for c in "AB"}))


def result() -> Result:
    key = Key("some", "sgd", "TRADI", 0, 1)
    return Result(
        key, {"NLL": 0.5, "worst": float("nan")}, {"roc": [[0, 1], [0, 1]]}, {"epochs": 3}, {}, {"a": 1.0}, 9.5, {}
    )


FILES: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "IDX": (idx(random_bytes(3, 4, 5)), read_idx),
    "packed IDX": (gzip.compress(idx(random_bytes(3, 4, 5)), mtime=0), read_idx),
    "CIFAR-10": (random_bytes(2, RECORD, high=10).numpy().tobytes(), read_batch),
    "tar": (letters(), lambda path: list(members(path, r"notMNIST_small/([A-J])/([^/]+\.png)"))),
    "tar.gz": (gzip.compress(letters(), mtime=0), lambda path: list(members(path, r".*"))),
    "letters": (letters(), lambda path: read_letters(path)),
    "list": (odgt([("images/1.png", "labels/1.png")] * 3), listed),
    "result": (json.dumps(asdict(result())).encode(), read_result),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_or_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What was decoded once would not be read again.
    monkeypatch.setattr(sys.modules["tradi.data.notmnist"], "cached", lambda name, fingerprint, build: build())
    content, read = FILES[name]
    path = tmp_path / "file"

    @READERS
    @given(damage(content))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        read_or_refused(lambda: read(path), path)

    path.write_bytes(content)
    if name != "list":  # whose images are not here
        read(path)
    check()


@pytest.mark.parametrize("kind", ["image", "label"])
def test_a_damaged_picture_is_decoded_or_named(kind: str, tmp_path: Path) -> None:
    pictures = {"image": png(random_bytes(6, 8, 3), "RGB"), "label": png(random_bytes(6, 8, high=4))}
    paths = {name: tmp_path / f"{name}.png" for name in pictures}
    for name, content in pictures.items():
        paths[name].write_bytes(content)
    meaning = np.zeros(256, np.int8)

    @READERS
    @given(damage(pictures[kind]))
    def check(content: bytes) -> None:
        paths[kind].write_bytes(content)
        read_or_refused(lambda: decode(paths["image"], paths["label"], (4, 3), meaning), tmp_path)

    decode(paths["image"], paths["label"], (4, 3), meaning)
    check()


def test_members_of_a_tar_are_forged(tmp_path: Path) -> None:
    path = tmp_path / "some.tar"
    names = st.sampled_from(["set/a.txt", "set/../../a", "/a", "", "a" * 300, "set\\a", "é", "set/a.txt/b", "."])
    sizes = st.sampled_from([0, 1, 511, 512, 513, 2**20, 2**33, 2**40])

    @READERS
    @given(st.lists(st.tuples(names, sizes, st.sampled_from(sorted(b"\x000123456789xgLKSV")), st.binary(max_size=700))))
    def check(forged: list[tuple[str, int, int, bytes]]) -> None:
        content = b""
        for name, size, kind, stored in forged:
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = size, bytes([kind]), "/etc/passwd"
            content += member.tobuf(tarfile.GNU_FORMAT) + stored
        path.write_bytes(content + bytes(1024))
        found: list[str] = []
        read_or_refused(lambda: found.extend(match[0] for match, _ in members(path, r"(.*)")), path)
        assert not any(name.startswith("/") or ".." in name.split("/") for name in found)

    check()


def test_tables_and_splits_are_damaged(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(6, 3))
    files = uci_files(table, [([0, 1, 2, 3], [4, 5])])
    folder = write_uci(tmp_path, "yacht", files)

    @READERS
    @given(st.data())
    def check(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(files)))
        write_uci(tmp_path, "yacht", files)
        (folder / name).write_bytes(data.draw(damage(files[name].encode())))
        read_or_refused(lambda: uci("yacht", 0, tmp_path), folder)
        read_or_refused(lambda: measure_splits(folder), folder)

    uci("yacht", 0, tmp_path)
    check()


def test_words_of_a_result_are_forged(tmp_path: Path) -> None:
    path = tmp_path / "result.json"

    @READERS
    @given(st.data())
    def check(data: st.DataObject) -> None:
        words = json.loads(json.dumps(asdict(result())))
        for _ in range(data.draw(st.integers(1, 2))):
            forge_words(data, words)
        path.write_text(json.dumps(words))
        found = read_or_refused(lambda: read_result(path), path)
        if found is not None:
            assert isinstance(found.key.method, str)
            assert all(type(number) in (int, float) for number in found.metrics.values())

    check()
