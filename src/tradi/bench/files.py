"""Where result files lie, and writing them in one go."""

from __future__ import annotations

import re
from pathlib import Path

QUICK = "quick"  # the folder of quick runs, whose numbers say nothing: it is never read with others


def folder_name(name: str) -> str:
    """The name of a benchmark, variant or method as that of a folder."""
    return re.sub(r"[^\w.+=-]+", "-", name)


def is_of_a_quick_run(path: Path, out: Path) -> bool:
    """Whether a file in a folder of results belongs to the quick runs in it."""
    return QUICK in path.relative_to(out).parts


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file in one go: a killed process leaves no half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(content if isinstance(content, bytes) else content.encode())
    partial.replace(path)
    return path
