"""The posterior belongs to the weights that the model has, or there is none."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.training import network, problem, same, snapshot, step, train
from tradi.methods import SWAG, TRADI
from tradi.tracking.recognition import LOOKS
from tradi.tracking.tracker import Tracker

Attach = Callable[[nn.Module, Any], Tracker]
every_tracker = pytest.mark.parametrize("attach", [TRADI, partial(SWAG, every=1)], ids=["TRADI", "SWAG"])
REMEDIES = r"not those of the last step.*mark_best\(\).*state_dict\(\)"


def following(attach: Attach = TRADI, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    model = network(seed, dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    return model, optimizer, attach(model, optimizer)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, after: Callable[[], object]) -> None:
    train(model, optimizer, steps, lambda _: after())


@every_tracker
def test_weights_that_were_put_back_are_refused_with_both_remedies(attach: Attach) -> None:
    model, optimizer, tracker = following(attach)
    train(model, optimizer, 8)
    best = snapshot(model)
    train(model, optimizer, 8)
    last = snapshot(model)
    model.load_state_dict(best)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.mark_best()
    model.load_state_dict(last)
    tracker.posterior()


@every_tracker
def test_marked_weights_that_are_put_back_have_the_posterior_that_they_had(attach: Attach) -> None:
    model, optimizer, tracker = following(attach)
    train(model, optimizer, 8)
    best, expected = snapshot(model), tracker.posterior()
    tracker.mark_best()
    train(model, optimizer, 8)
    at_the_end, last = tracker.posterior(), snapshot(model)
    model.load_state_dict(best)
    found = tracker.posterior()
    assert same(found.mean, expected.mean)
    assert same(found.variance, expected.variance)
    assert same(found.sample(1, seed=2)[0].state_dict(), expected.sample(1, seed=2)[0].state_dict())
    model.load_state_dict(last)  # and what was tracked up to the end is still there
    assert same(tracker.posterior().mean, at_the_end.mean)
    train(model, optimizer, 1)
    tracker.posterior()


def test_the_last_mark_counts_and_other_weights_are_still_refused() -> None:
    model, optimizer, tracker = following()
    marked = []
    for _ in range(2):
        train(model, optimizer, 4)
        tracker.mark_best()
        marked.append((snapshot(model), tracker.posterior()))
    train(model, optimizer, 4)
    model.load_state_dict(marked[1][0])
    assert same(tracker.posterior().mean, marked[1][1].mean)
    tracker.mark_best()  # again, of the weights that were put back
    assert same(tracker.posterior().mean, marked[1][1].mean)
    model.load_state_dict(marked[0][0])
    with pytest.raises(RuntimeError, match=REMEDIES + r".*mark_best\(\) marked are others"):
        tracker.posterior()


@every_tracker
def test_a_resumed_run_still_has_what_was_marked(attach: Attach) -> None:
    model, optimizer, tracker = following(attach)
    train(model, optimizer, 8)
    best, expected = snapshot(model), tracker.posterior()
    tracker.mark_best()
    train(model, optimizer, 4)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "tradi": tracker.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, its_optimizer, its_tracker = following(attach, seed=3)
    again.load_state_dict(saved["model"])
    its_tracker.load_state_dict(saved["tradi"])
    assert same(its_tracker.posterior().mean, tracker.posterior().mean)
    train(again, its_optimizer, 4)
    again.load_state_dict(best)
    assert same(its_tracker.posterior().mean, expected.mean)


def test_a_state_is_of_the_weights_that_it_was_saved_beside() -> None:
    model, optimizer, tracker = following()
    train(model, optimizer, 8)
    weights, state, expected = snapshot(model), tracker.state_dict(), tracker.posterior()
    train(model, optimizer, 8)
    tracker.load_state_dict(state)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()
    model.load_state_dict(weights)
    assert same(tracker.posterior().mean, expected.mean)


def test_a_damaged_mark_is_an_error_and_changes_nothing() -> None:
    model, optimizer, tracker = following()
    train(model, optimizer, 8)
    tracker.mark_best()
    before, state = tracker.posterior(), tracker.state_dict()
    state["best"]["weights"]["0.weight"]["second"] = torch.zeros(3)
    fresh = following()[2]
    with pytest.raises(ValueError, match="damaged"):
        fresh.load_state_dict(state)
    assert fresh.steps == 0
    assert same(tracker.posterior().mean, before.mean)


def test_weights_that_are_put_back_as_new_parameters_are_recognised_too() -> None:
    model, optimizer, tracker = following()
    train(model, optimizer, 8)
    best, expected = snapshot(model), tracker.posterior()
    tracker.mark_best()
    train(model, optimizer, 8)
    last = snapshot(model)
    model.load_state_dict(best, assign=True)
    assert same(tracker.posterior().mean, expected.mean)
    model.load_state_dict(last, assign=True)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()


def test_an_optimizer_that_took_over_unseen_is_noticed() -> None:
    model, optimizer, tracker = following()
    train(model, optimizer, 3)
    train(model, torch.optim.SGD(model.parameters(), 0.1), 1)
    with pytest.raises(RuntimeError, match="another optimizer moves the weights"):
        tracker.posterior()


def test_averaged_weights_may_be_swapped_in_and_out() -> None:
    model, optimizer, tracker = following()
    average = torch.optim.swa_utils.AveragedModel(model)
    train(model, optimizer, 8, lambda _: average.update_parameters(model))
    own = [p.detach().clone() for p in model.parameters()]

    def put(values: Any) -> None:
        for p, value in zip(model.parameters(), values, strict=True):
            p.data.copy_(value)  # which torch's counter of changes does not see

    put(average.module.parameters())
    with pytest.raises(RuntimeError, match="swapped in"):
        tracker.posterior()
    put(own)
    tracker.posterior()


@torch.no_grad()
def clamp(model: nn.Module) -> None:
    for p in model.parameters():
        p.clamp_(-0.2, 0.2)


@torch.no_grad()
def project(model: nn.Module) -> None:
    for p in model.parameters():
        p.div_(p.norm())


@torch.no_grad()
def decay(model: nn.Module) -> None:
    for p in model.parameters():
        p.mul_(0.98)


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    for p in model.parameters():
        p.data.add_(torch.randn_like(p), alpha=1e-3)


@pytest.mark.parametrize("change", [clamp, project, decay, perturb])
@pytest.mark.parametrize("marks", [False, True])
def test_what_follows_every_step_is_no_other_weights(change: Callable[[nn.Module], None], marks: bool) -> None:
    model, optimizer, tracker = following()
    fit(model, optimizer, 12, lambda: change(model))
    tracker.posterior()
    if marks:
        expected, best = tracker.posterior(), snapshot(model)
        tracker.mark_best()
        fit(model, optimizer, 30, lambda: change(model))
        tracker.posterior()
        model.load_state_dict(best)
        assert same(tracker.posterior().mean, expected.mean)


def test_a_saved_state_knows_how_far_weights_move_after_a_step() -> None:
    model, optimizer, tracker = following()
    fit(model, optimizer, 12, lambda: clamp(model))
    again, _, its_tracker = following()
    again.load_state_dict(snapshot(model))
    its_tracker.load_state_dict(tracker.state_dict())
    its_tracker.posterior()


def test_weights_put_back_are_refused_where_a_clamp_follows_every_step() -> None:
    model, optimizer, tracker = following()
    start = snapshot(model)
    fit(model, optimizer, 200, lambda: clamp(model))
    model.load_state_dict(start)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_may_be_converted_after_training(to: torch.dtype) -> None:
    model, optimizer, tracker = following()
    train(model, optimizer, 5)
    model.to(to)
    tracker.posterior()


def test_weights_of_half_precision_are_recognised() -> None:
    model, optimizer, tracker = following(dtype=torch.bfloat16)
    data = problem(dtype=torch.bfloat16)

    def steps() -> None:
        for x, y in data * 2:
            step(model, optimizer, x, y)

    steps()
    tracker.posterior()
    best = snapshot(model)
    steps()
    tracker.posterior()
    model.load_state_dict(best)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()


def test_only_some_of_many_weights_are_kept_and_the_first_and_last_are_among_them() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = TRADI(model, optimizer)
    train(model, optimizer, 2)
    kept = tracker.state_dict()["fingerprint"]["values"]
    names = list(tracker.selected)
    assert len(kept) == 16
    assert {names[0], names[-1]} < kept.keys()
    before = snapshot(model)
    with torch.no_grad():
        list(model.parameters())[-1].add_(0.1)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()
    model.load_state_dict(before)
    tracker.posterior()


def halves() -> Any:
    """A network whose two layers have optimizers of their own, and what was tracked of it."""
    model = network()
    optimizers = [torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.SGD(model[-1].parameters(), 0.1)]
    return model, optimizers, TRADI(model, optimizers)


def together(model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: int) -> None:
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x, y = problem()[0]
        nn.functional.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()


def test_weights_of_every_optimizer_are_compared_not_those_of_the_last_step_alone() -> None:
    model, optimizers, tracker = halves()
    together(model, optimizers, 20)
    first = snapshot(model[0])
    optimizers[1].param_groups[0]["lr"] = 0.0  # it moves nothing any more, and steps last
    tracker.mark_best()
    together(model, optimizers, 20)
    expected = tracker.snapshot()
    assert same(tracker.posterior().mean, expected.mean)  # not what was marked, whose last layer is the same
    model[0].load_state_dict(first)
    tracker._best = None
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()


@every_tracker
def test_weights_that_are_put_back_after_a_step_to_nan_are_refused(attach: Attach) -> None:
    model, optimizer, tracker = following(attach)
    first = snapshot(model)
    train(model, optimizer, 20)
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.warns(UserWarning, match="left out of what is tracked"):
        train(model, optimizer, 1)
    model.load_state_dict(first)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()
    optimizer.param_groups[0]["lr"] = 0.1
    train(model, optimizer, 20)  # the run goes on from there
    tracker.posterior()
    model.load_state_dict(first)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()


@every_tracker
@pytest.mark.parametrize("steps", [30, 100])
def test_an_empty_step_does_not_make_other_weights_the_tracked_ones(attach: Attach, steps: int) -> None:
    model, optimizer, tracker = following(attach)
    first = snapshot(model)
    train(model, optimizer, steps)
    model.load_state_dict(first)
    optimizer.zero_grad()
    optimizer.step()
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()


def test_weights_that_move_in_ever_other_sets_are_still_followed_in_bounded_memory() -> None:
    """As where every step trains another adapter, or another path through the network."""
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = TRADI(model, optimizer)
    for chosen in range(1, 2 * LOOKS):
        for i, layer in enumerate(model):
            layer.weight.grad = torch.ones(2, 2) if chosen >> i & 1 else None
        optimizer.step()
    assert len(tracker._fingerprint._looks) <= LOOKS
    tracker.posterior()
    for parameter in model[3].parameters():
        parameter.data += 1
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()


def test_weights_of_another_shape_are_others() -> None:
    model, optimizer, tracker = following()
    train(model, optimizer, 5)
    with torch.no_grad():
        model[0].weight.data = torch.zeros(2, 3)
    with pytest.raises(RuntimeError, match=REMEDIES):
        tracker.posterior()
