"""A file or a folder appears under its name when it is complete, and not before."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".partial"  # how names of files end that are not complete; a killed process leaves one, and nobody reads it
EXCLUSIVE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


@contextmanager
def replacing(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end of the `with`, unless that raises.

    It is written beside, under a name that no other process has, synced to the disk and renamed. Links are followed,
    and permissions are those of any new file.

    Raises:
        OSError: if it cannot be written; `filename` is the path, and what was there before still is.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist: make it, or save elsewhere")
    partial = target.with_name(f".{target.name[:48]}.{secrets.token_hex(8)}{PARTIAL}")
    try:
        _check_replaceable(target)
        with os.fdopen(os.open(partial, EXCLUSIVE, 0o666), "wb") as file:  # the kernel takes the umask off
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        if error.errno is None:
            raise OSError(f"{path} could not be written: {error}") from error
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | PathLike[str]) -> Iterator[Path]:
    """A folder to write files to, which gets the name `path` at the end of the `with`, unless that raises.

    Nothing is replaced: several files cannot be exchanged at once. An empty folder may be there already.

    Raises:
        FileExistsError: if there is a file, or a folder with something in it.
        OSError: if it cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, "there is something already: remove it, or save elsewhere", str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name[:48]}.{secrets.token_hex(8)}{PARTIAL}")
    partial.mkdir()
    try:
        yield partial
        _sync_folder(partial)
        with suppress(FileNotFoundError):
            target.rmdir()
        partial.rename(target)
        _sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file in one go, making its folder where there is none.

    Raises:
        OSError: as `replacing` does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def _check_replaceable(target: Path) -> None:
    """Raise for what is there and no file, such as a device: renaming would do away with it."""
    with suppress(FileNotFoundError):
        target.stat()
        if not target.is_file():
            raise OSError(errno.EISDIR if target.is_dir() else errno.EINVAL, "not a file")


def _sync_folder(folder: Path) -> None:
    """Let the new name survive a power cut, where folders can be synced."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
