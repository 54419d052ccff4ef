"""What took long to decode, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tradi.data.root import cache_folder

Tensors = dict[str, Tensor]


def digest(*tensors: Tensor) -> str:
    """SHA-256 of shapes and values."""
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(str(tuple(tensor.shape)).encode())
        sha.update(tensor.numpy().tobytes())
    return sha.hexdigest()


def fingerprint_of(files: Iterable[Path]) -> str:
    """SHA-256 of names, sizes and times, for sources of which reading all would take too long."""
    stats = ((path.resolve(), path.stat()) for path in files)
    listing = "\n".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)
    return hashlib.sha256(listing.encode()).hexdigest()


def cached(name: str, fingerprint: str, build: Callable[[], Tensors]) -> Tensors:
    """What `build` makes of a source, from the cache unless that is absent or damaged.

    Args:
        name: of the data set.
        fingerprint: a hash that changes with the source.
        build: is called where the cache cannot help.
    """
    path = _place(name, fingerprint, "safetensors")
    tensors = _load(path, fingerprint)
    if tensors is None:
        tensors = build()
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            _save(path, fingerprint, tensors)
    return tensors


def mapped(
    name: str, fingerprint: str, form: np.dtype[np.void], count: int, build: Callable[[], Iterator[NDArray[np.void]]]
) -> NDArray[np.void]:
    """Records that `build` makes of a source one by one, from a file that is read where it is looked at: any size.

    Args:
        name: of the data set.
        fingerprint: a hash that changes with the source.
        form: of a record.
        count: how many there are.
        build: is called where the cache cannot help. Its errors are ValueErrors: an OSError is one of writing.
    """
    path = _place(name, fingerprint, "npy")
    records = _map(path, form, count)
    if records is None:
        header = {"descr": npy.dtype_to_descr(form), "fortran_order": False, "shape": (count,)}
        try:
            with _replacing(path) as file:
                npy.write_array_header_1_0(file, header)
                file.writelines(record.tobytes() for record in build())
        except OSError as error:
            raise OSError(
                f"{path} could not be written ({error}), and {name} needs {count * form.itemsize:,} bytes there: "
                "make room, or name another cache folder with XDG_CACHE_HOME"
            ) from error
        records = npy.open_memmap(path, mode="r")
    return records


def _map(path: Path, form: np.dtype[np.void], count: int) -> NDArray[Any] | None:
    """The file, if it is whole; what it holds is not read, which may take minutes."""
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
    with _replacing(path) as file:
        file.write(save(tensors, {"fingerprint": fingerprint, "sha256": checksum}))


def _place(name: str, fingerprint: str, kind: str) -> Path:
    return cache_folder() / "decoded" / f"{name}-{fingerprint[:16]}.{kind}"


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file beside its place and then renamed: another process sees the whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        written = Path(file.name)
        try:
            yield file
            file.flush()
            written.replace(path)
        except BaseException:
            written.unlink()
            raise
