"""Where data is on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

VARIABLE = "TRADI_DATA"


def data_root(given: str | PathLike[str] | None = None) -> Path:
    """The folder of all data sets: `given`, else the environment variable TRADI_DATA, else the user's cache folder.

    Args:
        given: a folder, such as from the command line.

    Returns:
        the folder, which need not exist.
    """
    named = given or os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else cache_folder()


def cache_folder() -> Path:
    """The folder `tradi` in XDG_CACHE_HOME or, if that is not set, in `~/.cache`."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore a path that is not absolute.
    return (base if base.is_absolute() else Path.home() / ".cache") / "tradi"


def find(root: Path, paths: Sequence[str], name: str) -> Path:
    """The first of `paths` below `root` that exists.

    Raises:
        FileNotFoundError: if none does; the error says how to get the data set `name`.
    """
    for path in paths:
        if (root / path).exists():
            return root / path
    places = " or ".join(str(root / path) for path in paths)
    raise FileNotFoundError(
        f"{places} is missing: `tradi data fetch {name} --data {root}` downloads it or says how, `tradi data list` "
        f"says where it is published. If the data is elsewhere, set --data or {VARIABLE}."
    )
