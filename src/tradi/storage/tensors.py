"""Tensors and JSON in one safetensors file, the same bytes for the same contents, with a hash over all of it."""

from __future__ import annotations

import hashlib
import json
import stat
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from tradi.storage.atomic import replacing
from tradi.storage.typed import parsed

KEY = "tradi"  # the one entry of a file's metadata: several would be written in any order by some readers
HASH = "sha256"
LONGEST = 100_000_000  # bytes of a header, as everywhere in safetensors

# What safetensors calls the types.
TYPES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8"},
    **{torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL"},
    **{torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"},
}


def write_tensors(path: str | PathLike[str], tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a file in one go; tensors leave their device one at a time.

    Args:
        path: of the file.
        tensors: by name.
        about: as JSON.

    Raises:
        ValueError: if a tensor is of a type that safetensors does not have, or the names take too much room.
        OSError: as `replacing` does.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in TYPES:
            raise ValueError(f"{name} is of {tensor.dtype}, which a safetensors file cannot hold")
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # aligned without gaps
    hashed = json.dumps(about | {HASH: digest(tensors, about)}, sort_keys=True)
    entries: dict[str, Any] = {"__metadata__": {KEY: hashed}}
    end = 0
    for name in order:
        start, end = end, end + tensors[name].nbytes
        form = {"dtype": TYPES[tensors[name].dtype], "shape": list(tensors[name].shape)}
        entries[name] = form | {"data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > LONGEST:
        raise ValueError(f"{path} would need {len(header):,} bytes for names, and safetensors allows {LONGEST:,}")
    with replacing(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in order:
            file.write(_bytes(tensors[name]).data)


def read_tensors(path: str | PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
    """What is in a safetensors file, in memory of its own: the file may change afterwards.

    Returns:
        The tensors and, of a file that `write_tensors` wrote, the JSON with its hash; else None.

    Raises:
        ValueError: if it is not such a file.
        OSError: if there is no file, or it cannot be read.
    """
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise ValueError("it is not a file")
    with Path(path).open("rb"):  # so that the error of a file that may not be read is an OSError with its name
        pass
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except Exception as error:  # whatever a decoder may say of a damaged file
        raise ValueError(f"it cannot be read as safetensors: {error}") from error
    if KEY not in metadata:
        return tensors, None
    about = parsed(metadata[KEY])
    if not isinstance(about, dict):
        raise ValueError("its metadata is not an object")
    return tensors, about


def check_digest(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Raise unless contents are those that were written.

    Raises:
        ValueError: if the hash in `about` is not theirs.
    """
    expected, found = about.get(HASH), digest(tensors, {key: about[key] for key in about if key != HASH})
    if expected != found:
        raise ValueError(f"its contents were changed after it was written: their sha256 is {found}, not {expected}")


def digest(tensors: dict[str, Tensor], about: dict[str, Any]) -> str:
    """SHA-256 of the JSON and of all tensors, with names, types and shapes, in the order of their names."""
    sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sha.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        sha.update(_bytes(tensor).data)
    return sha.hexdigest()


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The numbers of a tensor in a row, as they are in memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
