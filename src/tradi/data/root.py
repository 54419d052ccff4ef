"""Where data lies on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

VARIABLE = "TRADI_DATA"


def data_root(given: str | PathLike[str] | None = None) -> Path:
    """The folder of all data sets: `given`, else the environment variable TRADI_DATA, else the user's cache folder."""
    named = given or os.environ.get(VARIABLE)
    return Path(named).expanduser() if named else cache_folder()


def cache_folder() -> Path:
    """`tradi` in XDG_CACHE_HOME, else in `~/.cache`."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification: a path that is not absolute is to be ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "tradi"


def find(root: Path, paths: Sequence[str], name: str) -> Path:
    """The first of `paths` below `root` that exists, or an error that says how to get data set `name`."""
    for path in paths:
        if (root / path).exists():
            return root / path
    places = " or ".join(str(root / path) for path in paths)
    raise FileNotFoundError(
        f"{places} is missing: `tradi data fetch {name} --data {root}` gets it or says how, `tradi data list` says "
        f"where it is published. Data that lies elsewhere is found with --data or {VARIABLE}."
    )
