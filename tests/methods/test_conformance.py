"""What every method promises, tested for all of them in one place."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from torch import nn

import tradi
from tests.training import network, problem, same, snapshot, train
from tradi.methods import SWAG, TRADI, DeepEnsemble, GaussianPerturbation, MCDropout, SingleNetwork
from tradi.tracking.tracker import Tracker

X = problem()[0][0]
Attach = Callable[[nn.Module, torch.optim.Optimizer], Tracker]


class Sampled(Protocol):
    def sample(self, members: int, seed: int = 0) -> tradi.Ensemble: ...
    def save(self, path: Path) -> None: ...


def trained(seed: int = 0) -> Any:
    model = network(seed)
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    return model


def tracked(attach: Attach, seed: int = 0) -> Any:
    model = network(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = attach(model, optimizer)
    train(model, optimizer)
    return model, tracker.posterior()


def load(path: Path) -> tradi.Posterior:
    return tradi.load_posterior(path, network(9))


# Methods that follow training: one entry each.
TRACKERS: dict[str, Attach] = {
    "TRADI": TRADI,
    "SWAG": partial(SWAG, every=2, rank=4),
    "SWAG diagonal": partial(SWAG, every=2, rank=0),
}

# name -> (the live model and the method on it, how to read a saved one, whether the members differ)
METHODS: dict[str, tuple[Callable[[], tuple[nn.Module, Sampled]], Callable[[Path], Sampled], bool]] = {
    **{name: (partial(tracked, attach), load, True) for name, attach in TRACKERS.items()},
    "GaussianPerturbation": (lambda: (m := trained(), GaussianPerturbation(m, 0.1)), load, True),
    "MCDropout": (lambda: (m := trained(), MCDropout(m)), lambda path: MCDropout.load(path, network(9)), True),
    "SingleNetwork": (lambda: (m := trained(), SingleNetwork(m)), load, False),
    "DeepEnsemble": (
        lambda: (m := trained(), DeepEnsemble([m, *(trained(seed) for seed in range(1, 6))])),
        lambda path: DeepEnsemble.load(path, network(9)),
        True,
    ),
    "multi-TRADI": (
        lambda: (tracked(TRADI)[0], DeepEnsemble([tracked(TRADI, seed)[1] for seed in range(2)])),
        lambda path: DeepEnsemble.load(path, network(9)),
        True,
    ),
}
TRAINED = ("MCDropout", "SingleNetwork", "DeepEnsemble")  # their members have the weights of a trained network
every_method = pytest.mark.parametrize("name", METHODS)
every_tracker = pytest.mark.parametrize("attach", TRACKERS.values(), ids=TRACKERS)


def made(name: str) -> Sampled:
    return METHODS[name][0]()[1]


@every_method
def test_outputs_are_members_by_batch(name: str) -> None:
    outputs = made(name).sample(4)(X)
    assert outputs.shape == (4, 16, 3)
    assert outputs.isfinite().all()
    differ = [not torch.equal(outputs[0], outputs[i]) for i in range(1, 4)]
    assert differ == [METHODS[name][2]] * 3


@every_method
def test_a_seed_is_one_ensemble_and_a_small_sample_a_prefix_of_a_larger_one(name: str) -> None:
    method = made(name)
    many = method.sample(6, seed=3)(X)
    torch.manual_seed(77)  # no global state has a say
    assert torch.equal(method.sample(4, seed=3)(X), many[:4])
    if name not in ("SingleNetwork", "DeepEnsemble"):  # those two have nothing random left
        assert not torch.equal(method.sample(6, seed=4)(X), many)


@every_method
def test_sampling_does_not_disturb_the_global_random_numbers(name: str) -> None:
    method = made(name)
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    method.sample(2).refresh(problem())(X)
    assert torch.equal(torch.randn(3), expected)


@every_method
def test_the_live_model_is_untouched(name: str) -> None:
    model, method = METHODS[name][0]()
    before, hooks = snapshot(model), [len(m._forward_hooks) for m in model.modules()]
    ensemble = method.sample(3).refresh(problem())
    ensemble(X)
    ensemble.outputs(problem())
    ensemble[0](X)
    assert same(before, snapshot(model))
    assert model.training
    assert hooks == [len(m._forward_hooks) for m in model.modules()]


@every_method
def test_a_member_agrees_with_its_ensemble_before_and_after_refresh(name: str) -> None:
    ensemble = made(name).sample(3)
    for _ in range(2):
        outputs = ensemble(X)
        for i in range(3):
            torch.testing.assert_close(ensemble[i](X), outputs[i])
        ensemble.refresh(problem())


@every_method
def test_refresh_changes_batchnorm_statistics_and_nothing_else(name: str) -> None:
    ensemble = made(name).sample(2)
    before = [snapshot(member) for member in ensemble]
    ensemble.refresh(problem())
    for old, member in zip(before, ensemble, strict=True):
        changed = {key for key, value in snapshot(member).items() if not torch.equal(value, old[key])}
        # Beside the trained network: where the weights are its own, so are the statistics.
        assert changed == (set() if name in TRAINED else {"1.running_mean", "1.running_var"})


@every_method
def test_members_are_the_same_after_saving_and_loading(name: str, tmp_path: Path) -> None:
    method = made(name)
    method.save(tmp_path / "file")
    loaded = METHODS[name][1](tmp_path / "file")
    assert torch.equal(loaded.sample(3, seed=2)(X), method.sample(3, seed=2)(X))


@every_method
def test_no_members_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="at least 1 member, got 0"):
        made(name).sample(0)


@every_tracker
def test_a_tracker_that_is_resumed_from_a_file_ends_as_if_it_had_never_stopped(attach: Attach) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    whole = attach(model, optimizer)
    train(model, optimizer)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    resumed = attach(model, optimizer)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    train(model, optimizer)
    assert resumed.steps == whole.steps
    expected, found = whole.posterior(), resumed.posterior()
    assert same(found.mean, expected.mean)
    assert same(found.variance, expected.variance)
    assert same(found.draw(1, seed=3), expected.draw(1, seed=3))


@every_tracker
def test_a_tracker_refuses_what_is_no_state_of_its_own_and_gives_nothing_before_training(attach: Attach) -> None:
    model = network()
    tracker = attach(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match="not the state_dict"):
        tracker.load_state_dict({})
    with pytest.raises(ValueError, match="the checkpoint was written with"):
        tracker.load_state_dict(tracker.state_dict() | {"options": {"another": 1}})
    with pytest.raises(RuntimeError, match="no optimizer step was seen"):
        tracker.posterior()


@every_tracker
def test_a_posterior_is_a_snapshot_that_further_training_leaves_alone(attach: Attach) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = attach(model, optimizer)
    train(model, optimizer)
    posterior = tracker.posterior()
    before = posterior.draw(0)
    train(model, optimizer)
    assert same(posterior.draw(0), before)
