from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from tests.training import same
from tradi.storage.tensors import TYPES, read_tensors, write_tensors

POSIX = pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid"), reason="Windows has no such modes")


def test_the_safetensors_library_reads_what_is_written_here(tmp_path: Path) -> None:
    whole = torch.arange(12).view(3, 4)
    tensors = {str(kind): whole.to(kind) for kind in TYPES}
    tensors |= {"turned": whole.T, "part": whole[1:, 1], "empty": torch.zeros(0, 3), "one": torch.ones(())}
    write_tensors(tmp_path / "file", tensors, {"x": "é"})
    assert same({k: v.view(torch.uint8) if "float8" in k else v for k, v in load_file(tmp_path / "file").items()}, {
        k: v.contiguous().view(torch.uint8) if "float8" in k else v for k, v in tensors.items()
    })  # fmt: skip
    assert read_tensors(tmp_path / "file")[0].keys() == tensors.keys()


def test_the_same_contents_are_the_same_bytes_in_whatever_order_they_come(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.bool), "c": torch.ones(1, dtype=torch.float64)}
    write_tensors(tmp_path / "one", tensors, {"x": 1, "y": 2})
    write_tensors(tmp_path / "two", dict(reversed(tensors.items())), {"y": 2, "x": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_types_that_no_file_can_hold_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x is of torch\.complex64, which a safetensors file cannot hold"):
        write_tensors(tmp_path / "file", {"x": torch.ones(1, dtype=torch.complex64)}, {})
    assert not list(tmp_path.iterdir())


def test_metadata_that_is_no_object_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(save({"x": torch.ones(1)}, {"tradi": "[1]"}))
    with pytest.raises(ValueError, match="metadata is not an object"):
        read_tensors(tmp_path / "file")
