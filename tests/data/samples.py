"""Small files in the layouts of the public data sets."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def idx(values: Tensor) -> bytes:
    return bytes([0, 0, 8, values.dim()]) + struct.pack(f">{values.dim()}I", *values.shape) + values.numpy().tobytes()


def write_mnist(root: Path, parts: dict[str, tuple[Tensor, Tensor]], gzipped: bool = True) -> None:
    for part, (images, labels) in parts.items():
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            path = root / "mnist" / f"{part}-{kind}-ubyte{'.gz' if gzipped else ''}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(idx(values)) if gzipped else idx(values))


def random_bytes(*shape: int, high: int = 256, seed: int = 0) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def png(pixels: Tensor, mode: str = "L", form: str = "PNG") -> bytes:
    """Of (height, width) or (height, width, 3)."""
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).convert(mode).save(file, form)
    return file.getvalue()


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def odgt(pairs: Iterable[tuple[str, str]]) -> bytes:
    """A list of images and labels in the form of StreetHazards."""
    entries = [{"dbName": "StreetHazards", "width": 8, "height": 6, "fpath_img": a, "fpath_segm": b} for a, b in pairs]
    return json.dumps(entries).encode()


def tar(files: dict[str, bytes], others: Iterable[tarfile.TarInfo] = ()) -> bytes:
    """A tar.gz of files and, after them, members without content such as links."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in others:
            archive.addfile(member)
    return file.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def uci_files(table: np.ndarray, splits: list[tuple[list[int], list[int]]]) -> dict[str, str]:
    """A set whose last column is the target."""
    columns = table.shape[1]
    files = {
        "data.txt": "\n".join(" ".join(map(repr, row)) for row in table.tolist()) + "\n",
        "index_features.txt": "\n".join(map(str, range(columns - 1))),
        "index_target.txt": f"{columns - 1}\n",
        "n_splits.txt": f"{len(splits)}\n",
        "n_hidden.txt": "50\n",
        "n_epochs.txt": "40\n",
    }
    for number, parts in enumerate(splits):
        for part, rows in zip(("train", "test"), parts, strict=True):
            files[f"index_{part}_{number}.txt"] = "\n".join(map(str, rows)) + "\n"
    return files


def write_uci(root: Path, name: str, files: dict[str, str]) -> Path:
    folder = root / "UCI_Datasets" / name / "data"
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_bytes(text.encode())
    return folder
