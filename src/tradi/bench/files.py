"""Where result files lie, and writing them in one go."""

from __future__ import annotations

import re
from pathlib import Path

QUICK = "quick"  # the folder of quick runs, whose numbers say nothing: it is never read with others


def folder_name(name: str) -> str:
    """The name of a benchmark, variant or method as that of a folder, which is never outside the one it is in.

    Raises:
        ValueError: if nothing but dots is left of it.
    """
    folder = re.sub(r"[^\w.+=-]+", "-", name)
    if not folder.strip("."):
        raise ValueError(f"{name!r} cannot be the name of a folder: use letters")
    return folder


def is_of_a_quick_run(path: Path, out: Path) -> bool:
    """Whether a file in a folder of results belongs to the quick runs in it."""
    return QUICK in path.relative_to(out).parts
