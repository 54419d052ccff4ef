"""A pickled tracker is a copy of its moment, detached, from which a posterior can be taken in any process."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import joblib
import pytest
import torch
from torch import Tensor

import tradi
from tests.methods.test_conformance import Attach, every_tracker
from tests.tracking.test_tracker import sgd
from tests.training import network, problem, same, train
from tradi.methods import SWAG, TRADI, MCDropout
from tradi.posterior.covariance import FullCovariance
from tradi.tracking.tracker import Tracker

X = problem()[0][0]
SOME = (TRADI, partial(SWAG, every=2, rank=4))


def again(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def followed(attach: Attach = TRADI, steps: int = 12) -> tuple[Any, torch.optim.Optimizer, Any]:
    model = network()
    optimizer = sgd(model)
    tracker = attach(model, optimizer)
    train(model, optimizer, steps)
    return model, optimizer, tracker


def outputs(tracker: Tracker) -> Tensor:
    return tracker.posterior().sample(3, seed=4).refresh(problem())(X)


def trained_there(trackers: list[Tracker]) -> tuple[list[Tensor], list[Tracker], MCDropout]:
    """In a process of its own: what trackers give, and trackers and methods of runs that are made there."""
    return [outputs(one) for one in trackers], [followed(attach)[2] for attach in SOME], MCDropout(followed()[0])


@every_tracker
def test_a_copy_gives_the_same_posterior_and_is_detached(attach: Attach) -> None:
    _, _, tracker = followed(attach)
    copy = again(tracker)
    assert torch.equal(outputs(copy), outputs(tracker))
    assert (copy.steps, copy.skipped, copy.rounds) == (12, 0, 12)
    assert "12 steps seen, detached)" in repr(copy)
    assert "detached" not in repr(tracker)
    copy.detach()
    assert torch.equal(outputs(again(copy)), outputs(tracker))


@every_tracker
@pytest.mark.parametrize("dumps", [pickle.dumps, ForkingPickler.dumps], ids=["pickle", "spawn"])
def test_training_goes_on_and_changes_nothing_in_a_copy(attach: Attach, dumps: Callable[[Any], bytes]) -> None:
    model, optimizer, tracker = followed(attach)
    model[1].requires_grad_(False)
    expected = outputs(tracker)
    copy = pickle.loads(dumps(tracker))  # multiprocessing shares the memory of tensors that it sends
    train(model, optimizer, 4)
    assert torch.equal(outputs(copy), expected)
    assert tracker.steps == 16
    assert not torch.equal(outputs(tracker), expected)
    model[1].load_state_dict(network(2)[1].state_dict())
    model[1].weight.detach().zero_()
    assert torch.equal(outputs(copy), expected)
    train(copy.model, sgd(copy.model), 4)
    with pytest.raises(
        RuntimeError, match=r"not those of the last step.* copy that follows no optimizer.* attach a new tracker"
    ):
        copy.posterior()


def test_another_process_takes_posteriors_and_gives_its_own_trackers_back() -> None:
    trackers = [followed(attach)[2] for attach in SOME]
    expected, masks = [outputs(one) for one in trackers], MCDropout(followed()[0]).sample(2)(X)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        spawned = pool.submit(trained_there, trackers).result()
    (by_joblib, _) = joblib.Parallel(n_jobs=2)(2 * [joblib.delayed(trained_there)(trackers)])
    for there, own, dropout in (spawned, by_joblib):
        assert [torch.equal(one, known) for one, known in zip(there, expected, strict=True)] == [True, True]
        assert [torch.equal(outputs(one), known) for one, known in zip(own, expected, strict=True)] == [True, True]
        assert torch.equal(dropout.sample(2)(X), masks)


@every_tracker
def test_a_run_goes_on_from_a_copy_bit_for_bit(attach: Attach) -> None:
    model, optimizer, tracker = followed(attach)
    other = network(1)
    resumed = sgd(other)
    fresh = attach(other, resumed)
    copy = again(tracker)
    other.load_state_dict(copy.model.state_dict())
    fresh.load_state_dict(copy.state_dict())
    for one, by in ((model, optimizer), (other, resumed)):
        train(one, by, 8)
    assert torch.equal(outputs(fresh), outputs(tracker))


def test_the_best_weights_are_marked_in_a_copy_too() -> None:
    model, optimizer, tracker = followed()
    tracker.mark_best()
    best, expected = {name: value.clone() for name, value in model.state_dict().items()}, outputs(tracker)
    train(model, optimizer, 4)
    copy = again(tracker)
    copy.model.load_state_dict(best)
    assert torch.equal(outputs(copy), expected)


def test_a_selection_by_a_local_function_and_a_joint_covariance_reach_a_copy() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = TRADI(model, optimizer, covariance=FullCovariance(), select=lambda name, module, value: "4." in name)
    train(model, optimizer)
    copy = again(tracker)
    assert [weight.name for weight in copy.tracked] == ["4.weight", "4.bias"]
    assert torch.equal(outputs(copy), outputs(tracker))


def test_weights_that_are_frozen_or_tied_stay_so_in_a_copy() -> None:
    model = network()
    model[4].weight = torch.nn.Parameter(torch.randn(3, 8))
    model[0].requires_grad_(False)
    model.append(torch.nn.Linear(3, 8, bias=False)).append(torch.nn.Linear(8, 3))
    model[6].weight = model[4].weight
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    tracker = SWAG(model, optimizer, every=2)
    train(model, optimizer)
    copy = again(tracker)
    assert copy.model[6].weight is copy.model[4].weight
    assert not copy.model[0].weight.requires_grad
    assert same(copy.posterior().mean, tracker.posterior().mean)


def test_a_tracker_that_has_seen_nothing_says_so_in_a_copy_too() -> None:
    model = network()
    with pytest.raises(RuntimeError, match="no optimizer step was seen"):
        again(tradi.TRADI(model, sgd(model))).posterior()
