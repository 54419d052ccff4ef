"""Ensembles of every method reach other processes, and predict the same there."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tradi
from tests.methods.test_conformance import METHODS, made
from tests.tracking.test_tracker import sgd
from tests.training import network, problem, train

X = problem()[0][0]
SPAWNED = """
import pickle, sys, torch
with open(sys.argv[1], "rb") as file:
    ensemble, x = pickle.load(file)
torch.save((ensemble(x), ensemble[1](x)), sys.argv[2])
"""


@pytest.mark.parametrize("name", METHODS)
def test_an_ensemble_of_any_method_is_the_same_after_pickling(name: str) -> None:
    ensemble = made(name).sample(3, seed=4)
    fresh = pickle.loads(pickle.dumps(ensemble))
    expected = ensemble.refresh(problem())(X)
    assert torch.equal(fresh.refresh(problem())(X), expected)
    used = pickle.loads(pickle.dumps(ensemble))
    assert torch.equal(used(X), expected)


def test_fitted_members_and_masks_are_the_same_in_a_process_of_their_own(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 20)
    fitted = tracker.posterior().fit(problem(), problem(seed=1)).sample(3)
    for ensemble in (fitted, tradi.methods.MCDropout(model).sample(3)):
        (tmp_path / "in").write_bytes(pickle.dumps((ensemble, X)))
        command = [sys.executable, "-c", SPAWNED, str(tmp_path / "in"), str(tmp_path / "out")]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outputs, second = torch.load(tmp_path / "out")
        assert torch.equal(outputs, ensemble(X))
        assert torch.equal(second, ensemble[1](X))


def test_a_posterior_is_the_same_after_pickling() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3)
    posterior = tracker.posterior()
    assert torch.equal(pickle.loads(pickle.dumps(posterior)).sample(2)(X), posterior.sample(2)(X))
