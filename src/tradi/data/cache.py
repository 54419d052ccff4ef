"""Decoded data, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tradi.data.root import cache_folder
from tradi.storage.atomic import replacing, write_whole

Tensors = dict[str, Tensor]


def digest(*tensors: Tensor) -> str:
    """SHA-256 of the tensors' shapes and values."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(str(tuple(tensor.shape)).encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def fingerprint_of(files: Iterable[Path]) -> str:
    """SHA-256 of the files' names, sizes and modification times, for sources too large to read in full."""
    stats = ((path.resolve(), path.stat()) for path in files)
    listing = "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)
    return hashlib.sha256(listing.encode()).hexdigest()


def cached(name: str, fingerprint: str, build: Callable[[], Tensors]) -> Tensors:
    """Tensors from the cache or, if they are missing there or damaged, from `build`.

    Args:
        name: name of the data set.
        fingerprint: a hash that changes with the source.
        build: makes the tensors.
    """
    path = _place(name, fingerprint, "safetensors")
    tensors = _load(path, fingerprint)
    if tensors is None:
        tensors = build()
        with suppress(OSError):  # without a cache it only takes longer next time
            _save(path, fingerprint, tensors)
    return tensors


def mapped(
    name: str, fingerprint: str, form: np.dtype[np.void], count: int, build: Callable[[], Iterator[NDArray[np.void]]]
) -> NDArray[np.void]:
    """Records memory-mapped from the cache, of any total size; `build` makes them if they are missing there.

    Args:
        name: name of the data set.
        fingerprint: a hash that changes with the source.
        form: dtype of a record.
        count: number of records.
        build: yields the records. It must raise ValueError, never OSError, which is taken for a failure to write.

    Raises:
        OSError: if the cache cannot be written.
    """
    path = _place(name, fingerprint, "npy")
    records = _map(path, form, count)
    if records is None:
        header = {"descr": npy.dtype_to_descr(form), "fortran_order": False, "shape": (count,)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as file:
                npy.write_array_header_1_0(file, header)
                file.writelines(record.tobytes() for record in build())
        except OSError as error:
            raise OSError(
                f"{path} could not be written ({error}); {name} needs {count * form.itemsize:,} bytes there: "
                "free some space, or set XDG_CACHE_HOME to another folder"
            ) from error
        records = npy.open_memmap(path, mode="r")
    return records


def _map(path: Path, form: np.dtype[np.void], count: int) -> NDArray[Any] | None:
    """The mapped file, if it is complete; its contents are not read, since that may take minutes."""
    try:
        records = npy.open_memmap(path, mode="r")
    except (OSError, ValueError):
        return None
    return records if records.dtype == form and records.shape == (count,) else None


def _load(path: Path, fingerprint: str) -> Tensors | None:
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in sorted(file.keys())}
    except (OSError, SafetensorError):
        return None
    same = about.get("fingerprint") == fingerprint and about.get("sha256") == digest(*tensors.values())
    return tensors if same else None


def _save(path: Path, fingerprint: str, tensors: Tensors) -> None:
    checksum = digest(*(tensors[key] for key in sorted(tensors)))
    write_whole(path, save(tensors, {"fingerprint": fingerprint, "sha256": checksum}))


def _place(name: str, fingerprint: str, kind: str) -> Path:
    return cache_folder() / "decoded" / f"{name}-{fingerprint[:16]}.{kind}"
