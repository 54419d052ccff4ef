from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import tradi
from tests.training import network, same


def test_data_parallel_ranks_track_the_same_posterior_and_draw_the_same_members(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "tests.tracking.distributed_worker", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = (tradi.load_posterior(tmp_path / f"{rank}.safetensors", network()) for rank in (0, 1))
    assert list(first.mean) == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert same(first.mean, second.mean)
    assert same(first.variance, second.variance)
    # BatchNorm's running statistics are each rank's own; weights and draws are not.
    assert same(first.noise(1), second.noise(1))
    errors = [path.read_text() for path in tmp_path.glob("*.error")]
    assert errors
    assert all("Give every rank all of the data" in error for error in errors)
    outputs = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert outputs[0].shape == outputs[1].shape == (2, 16, 3)
