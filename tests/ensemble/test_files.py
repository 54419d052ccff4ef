from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.training import same
from tradi.ensemble import files
from tradi.ensemble.files import VERSION, read, write
from tradi.storage.tensors import write_tensors

MODEL = nn.Linear(1, 1)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    tensors = {
        "a/b": whole,
        "part": whole[1:],
        "turned": whole.T,
        "row": whole[:, 0],
        "": torch.ones((), dtype=torch.bool),
    }
    others = {"empty": torch.zeros(0, 3), "half": torch.ones(2, dtype=torch.bfloat16)}
    parts: list[Any] = [({"one": tensors, "none": {}}, {"x": [1.5, None]}), ({"two": others}, {})]
    write(tmp_path / "file", "a posterior", parts)
    (first, about), (second, nothing) = read(tmp_path / "file", "a posterior", MODEL)
    assert same(first["one"], tensors)
    assert same(second["two"], others)
    assert (first["none"], about, nothing) == ({}, {"x": [1.5, None]}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_was_read_outlives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, "an ensemble", [({"kind": {"x": torch.ones(2)}}, {})])
    ((kinds, _),) = read(path, "an ensemble", MODEL)
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(kinds["kind"]["x"], torch.ones(2))


def test_other_files_are_errors_that_say_what_they_are(tmp_path: Path) -> None:
    write(tmp_path / "file", "an ensemble", [({}, {})])
    with pytest.raises(ValueError, match=r"not a posterior: it is an ensemble, which tradi\.load_ensemble reads"):
        read(tmp_path / "file", "a posterior", MODEL)
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match="other cannot be loaded: it is not a posterior: tradi did not write it"):
        read(tmp_path / "other", "a posterior", MODEL)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="text cannot be loaded: it cannot be read as safetensors"):
        read(tmp_path / "text", "a posterior", MODEL)
    with pytest.raises(ValueError, match="cannot be loaded: it is not a file"):
        read(tmp_path, "a posterior", MODEL)
    with pytest.raises(FileNotFoundError, match="nothing"):
        read(tmp_path / "nothing", "a posterior", MODEL)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        write(tmp_path / "nowhere" / "file", "a posterior", [])


def test_a_file_of_another_format_version_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"format": "tradi-posterior-1", "runs": "[]"}
    save_file({"0/model/weight": torch.zeros(1)}, tmp_path / "old", old)
    with pytest.raises(ValueError, match=r"old cannot be loaded: it is of format version 1, and .* reads version 3"):
        read(tmp_path / "old", "a posterior", MODEL)
    with monkeypatch.context() as patch:
        patch.setattr(files, "VERSION", 4)
        write(tmp_path / "new", "a posterior", [({}, {})])
    with pytest.raises(ValueError, match=r"new cannot be loaded: it is of format version 4, and .* reads version 3"):
        read(tmp_path / "new", "a posterior", MODEL)


def test_a_changed_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    write(tmp_path / "file", "a posterior", [({"kind": {"x": torch.ones(2)}}, {"scale": 1.5})])
    content = (tmp_path / "file").read_bytes()
    for changed in (content[:-1] + b"\x40", content.replace(b"1.5", b"2.5")):
        assert changed != content
        (tmp_path / "file").write_bytes(changed)
        with pytest.raises(ValueError, match="file cannot be loaded: its contents were changed after it was written"):
            read(tmp_path / "file", "a posterior", MODEL)


def test_nesting_of_any_depth_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path, usual = tmp_path / "file", sys.getrecursionlimit()
    for depth in range(usual - 200, usual + 1):  # somewhere there it can still be read, and no longer shown
        nested: list[Any] = []
        for _ in range(depth):
            nested = [nested]
        try:
            sys.setrecursionlimit(10 * usual)
            write_tensors(path, {}, {"holds": "a posterior", "version": VERSION, "parts": nested})
        finally:
            sys.setrecursionlimit(usual)
        with pytest.raises(ValueError, match="file cannot be loaded: "):
            read(path, "a posterior", MODEL)


def test_a_file_holds_so_many_parts_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_PARTS", 2)
    with pytest.raises(ValueError, match="2 members or runs at the most, got 3"):
        write(tmp_path / "file", "a posterior", [({}, {})] * 3)
