"""A folder of files appears under its name when it is complete, and not before."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from tradi.storage.atomic import PARTIAL


@contextmanager
def replacing_folder(path: Path, names: Collection[str]) -> Iterator[Path]:
    """A folder to write files to, which takes the place of `path` at the end of the `with`, unless that raises.

    Args:
        path: of the folder; an older one is replaced if it holds nothing but files of these names.
        names: of the files.

    Raises:
        OSError: as `check_replaceable_folder` does, or if the disk is full; what was there before still is.
    """
    check_replaceable_folder(path, names)
    partial = path.with_name(f".{path.name[:48]}.{secrets.token_hex(8)}{PARTIAL}")
    old = partial.with_name(f"{partial.name}.old")
    partial.mkdir()
    try:
        yield partial
        if path.exists():
            path.rename(old)
        try:
            partial.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_replaceable_folder(path: Path, names: Collection[str]) -> None:
    """Raise if a folder cannot be written there, or would replace something else.

    Raises:
        OSError: if the folder above does not exist or may not be written to, or what is there is not such a folder.
    """
    above = path.parent
    if not above.is_dir():
        raise FileNotFoundError(f"the folder {above} does not exist: make it, or write elsewhere")
    if not os.access(above, os.W_OK):
        raise PermissionError(f"the folder {above} may not be written to: write elsewhere")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise FileExistsError(f"{path} is there already and is no folder: write elsewhere")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in names) if path.exists() else []
    if others:
        raise FileExistsError(f"{path} holds {others[0]!r}, which would be lost: remove it, or write elsewhere")
