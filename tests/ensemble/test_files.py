from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.training import same
from tradi.ensemble import files
from tradi.ensemble.files import read, write

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


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write(path, "a posterior", [({"kind": {"x": torch.zeros(2)}}, {})])

    def fail(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(files, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        write(path, "a posterior", [({"kind": {"x": torch.ones(2)}}, {})])
    ((kinds, _),) = read(path, "a posterior", MODEL)
    assert torch.equal(kinds["kind"]["x"], torch.zeros(2))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write(tmp_path / "file", "a posterior", [({}, {})])
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_was_read_outlives_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, "an ensemble", [({"kind": {"x": torch.ones(2)}}, {})])
    ((kinds, _),) = read(path, "an ensemble", MODEL)
    path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(kinds["kind"]["x"], torch.ones(2))


def test_other_files_are_errors_that_say_what_they_are(tmp_path: Path) -> None:
    write(tmp_path / "file", "an ensemble", [({}, {})])
    with pytest.raises(ValueError, match=r"not a posterior.*: it is an ensemble, which tradi\.load_ensemble reads"):
        read(tmp_path / "file", "a posterior", MODEL)
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match=r"not a posterior that this version of tradi wrote \(tradi-posterior-1\)$"):
        read(tmp_path / "other", "a posterior", MODEL)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        read(tmp_path / "text", "a posterior", MODEL)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing", "a posterior", MODEL)
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        write(tmp_path / "nowhere" / "file", "a posterior", [])
