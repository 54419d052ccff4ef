"""FSDP2 on CPUs: two processes, then one, then four, which pass checkpoints and posteriors on to each other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load

import tradi
from tests.tracking.sharded_worker import (
    COVARIANCES,
    Net,
    adam,
    batches,
    close,
    inputs,
    one_process,
    resumed,
    save_after_four,
    steps_of,
)

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # checkpoints of one process say so


def launch(folder: Path, processes: int, *checks: str) -> None:
    """Run checks in so many processes: without torchrun, which takes as long to start as one of them."""
    command = [sys.executable, "-m", "tests.tracking.sharded_worker", str(folder)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    started = [
        subprocess.Popen([*command, str(rank), str(processes), *checks], cwd=ROOT, env=env, stderr=subprocess.PIPE)
        for rank in range(processes)
    ]
    said = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0] * processes, "\n".join(said)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have left, and a checkpoint of one, for four."""
    found = tmp_path_factory.mktemp("sharded")
    save_after_four(found / "of-1", Net(), batches(4))
    rest = ["statistics", "prior", "fitting", "one_batch", "policies", "refusals_of_fitting"]
    launch(found, 2, "tracking", "errors", "resuming", "other_processes", "posterior", "best", "refusals", *rest)
    launch(found, 4, "other_processes", "posterior", "two_dimensions", "statistics", "fitting", "meshes_of_fitting")
    return found


def test_a_checkpoint_of_two_processes_is_resumed_by_one(folder: Path) -> None:
    model = Net()
    optimizer, tracker = resumed(folder / "of-2", model)
    assert tracker.steps == 4
    for _ in steps_of(model, optimizer, iter([*batches(8)][4:])):
        pass
    close(tracker.state_dict(), one_process(steps=8).state_dict(), rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_one_process_is_resumed_by_one_bit_for_bit(folder: Path) -> None:
    _, tracker = resumed(folder / "of-1", Net())
    reference = one_process(steps=4)
    close(tracker.state_dict(), reference.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", COVARIANCES)
def test_members_are_those_that_one_process_draws_bit_for_bit(folder: Path, name: str, processes: int) -> None:
    posterior = tradi.load_posterior(folder / f"posterior-of-{processes}.safetensors", Net())
    one = posterior.with_covariance(COVARIANCES[name]).rescaled(3.0)
    drawn: Any = torch.load(folder / f"drawn-by-{processes}.pt", weights_only=True)
    weights, outputs = drawn[name]
    found = one.draw(1, seed=2)
    assert found.keys() == {n for n, _ in Net().named_parameters()} - {"norm.weight", "norm.bias"}
    assert all(torch.equal(own, weights[name]) for name, own in found.items())
    torch.testing.assert_close(one.sample(3, seed=2)(inputs()), outputs)
    assert outputs.std(0).max() > 1e-4


def test_a_saved_posterior_is_conditioned_in_one_process(folder: Path) -> None:
    posterior = tradi.load_posterior(folder / "posterior-of-2.safetensors", Net()).condition([*batches(4)])
    assert posterior.sample(3).predict(inputs()).probs.shape == (4, 3)


def test_shards_and_replicas_together_give_one_posterior(folder: Path) -> None:
    found = tradi.load_posterior(folder / "replicas.safetensors", Net())
    expected = one_process(steps=4).posterior()
    for name, mean in expected.mean.items():
        torch.testing.assert_close(found.mean[name], mean, rtol=1e-4, atol=1e-6)


def test_weights_that_were_frozen_before_loading_are_an_error(folder: Path) -> None:
    model = Net()
    model.first.requires_grad_(False)
    tracker = tradi.TRADI(model, adam(model))
    state = {"tradi": tracker.state_dict()}
    load(state, checkpoint_id=folder / "of-1")
    with pytest.raises(ValueError, match=r"6 weights were tracked and holds 4.*frozen"):
        tracker.load_state_dict(state["tradi"])


def test_the_example_trains_and_fits(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["examples/fsdp.py", str(tmp_path)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, seen, between = done.stdout.splitlines()
    assert first == "started, 64 steps, outputs (5, 8, 3)"
    confidence = [float(re.findall(r"mean confidence ([\d.]+)", line)[0]) for line in (seen, between)]
    assert confidence[0] > 0.95 > 0.85 > confidence[1]
    assert (tmp_path / "checkpoint" / ".metadata").exists()
