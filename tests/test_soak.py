"""The short form of `make soak`: runs that are killed resume to the same end, and long ones keep their memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def soak(*arguments: str) -> Any:
    """What a process of its own found: children are forked from it, and its memory is nobody else's."""
    command = [sys.executable, "-m", "tests.soak", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")
def test_runs_that_are_killed_anywhere_end_in_the_posterior_of_a_whole_run(tmp_path: Path) -> None:
    found = soak("kills", str(tmp_path), "--kills", "50")
    assert set(found) == {"SGD", "AdamW", "bf16 and GradScaler", "SWAG", "full covariance"}
    assert sum(run["killed"] for run in found.values()) >= 50
    assert all(run["equal"] == run["runs"] for run in found.values()), found
    assert any(run["partial files left"] for run in found.values()), "none was killed inside a save"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_ten_thousand_tracked_steps_take_no_more_memory_than_a_thousand() -> None:
    found = soak("load", "--steps", "10000")
    assert found["steps"] == 10_000
    assert found["finite"]
    # What torch's allocator and Python's caches take once; a leak of one small tensor a step would be ten times more.
    assert found["bytes grown"] < 4 << 20, found
    assert found["objects grown"] < 2000, found
