"""The benchmark of speed runs, at a size that says nothing about speed, and gives every figure it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RATIOS = (
    "track_step_over_train_step",
    "track_step_over_fused_adam_step",
    "track_step_over_memory_floor",
    "predict_20_over_20_forwards",
    "refresh_20_over_20_passes",
)


def test_speed_gives_all_keys_and_draws_them(tmp_path: Path) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("installed without the benchmarks")
    out = tmp_path / "speed.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), "--quick", "--out", str(out)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(run.stdout)
    assert found == json.loads(out.read_text())
    for key in RATIOS:
        assert key in run.stderr
        assert found[key]
    assert found["track_step_over_train_step"].keys() == {"mnist-mlp", "enet", "transformer"}
    for parts in found["track_step_over_train_step"].values():
        assert {"run", "observed", "passed_over"} <= parts.keys()
        low, high = parts["run"]["spread"]
        assert low <= high
        assert parts["run"]["milliseconds"][1] > 0
    assert found["state_bytes_per_weight"] == 8
    # Four operations on an observed step, eleven operands of four bytes each: w, mu -> d; d, mu -> mu; var -> var;
    # d, d, var -> var; and a norm of the gradient, the twelfth. From memory come w, mu, var, the gradient, and mu, var
    # go back; d stays in the cache.
    assert 44 <= found["by_count"]["bytes_touched_per_weight"] < 53
    assert {"sample_over_memory_floor", "members_a_second", "numpy_over_sample"} <= found.keys()
    growth = found["growth"]
    assert {"track_seconds", "sample_seconds"} <= growth["exponents_in_weights"].keys()
    assert "seconds" in growth["exponents_in_members"]
    assert found["peers"]["torch-uncertainty's SWAG, every epoch"]["bytes_per_weight"] == pytest.approx(4 * 22)
    assert found["peers"]["TRADI"]["bytes_per_weight"] == 8
    assert {"processor", "torch", "threads", "load_before", "load_after", "command"} <= found["machine"].keys()
    draw = [sys.executable, str(ROOT / "benchmarks" / "draw.py"), str(out), str(tmp_path)]
    subprocess.run(draw, check=True, capture_output=True)
    assert (tmp_path / "speed.png").stat().st_size > 0
    assert "track_step_over_train_step" in (tmp_path / "speed.md").read_text()


def test_what_comes_after_training_is_measured(tmp_path: Path) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("installed without the benchmarks")
    out = tmp_path / "after.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "after_training.py"), "--quick", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(out.read_text())["networks"]
    assert len(found) == 3
    assert all(row["after_training_over_training"] > 0 for row in found.values())
