"""What took long to decode, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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


def cached(name: str, fingerprint: str, build: Callable[[], Tensors]) -> Tensors:
    """What `build` makes of a source, from the cache unless that is absent or damaged.

    Args:
        name: of the data set.
        fingerprint: a hash that changes with the source.
        build: is called where the cache cannot help.
    """
    path = cache_folder() / "decoded" / f"{name}-{fingerprint[:16]}.safetensors"
    tensors = _load(path, fingerprint)
    if tensors is None:
        tensors = build()
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            _save(path, fingerprint, tensors)
    return tensors


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
    content = save(tensors, {"fingerprint": fingerprint, "sha256": checksum})
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place and then renamed: another process sees the whole file or none.
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)  # noqa: PTH105 (a name, not a path)
