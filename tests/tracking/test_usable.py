"""One bad step does not spoil what was tracked of all the others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.tracking.test_tracker import check_moments
from tests.training import network, problem, same, snapshot, step, train
from tradi.methods import SWAG, TRADI
from tradi.tracking.tracker import Tracker

NAN, INF, HUGE = float("nan"), float("inf"), 1e25  # the square of the last overflows float32
Attach = Callable[[nn.Module, Any], Tracker]
TRACKERS: dict[str, Attach] = {
    "TRADI": TRADI,
    "paper": TRADI.paper,
    "joint": partial(TRADI, covariance=tradi.FullCovariance()),
    "SWAG": partial(SWAG, every=1),
}


class Spoiling(torch.optim.SGD):
    """Its step number `at` puts a bad value into a weight; the training that uses it puts good weights back."""

    def __init__(self, model: nn.Module, at: int, value: float) -> None:
        super().__init__(model.parameters(), 0.1)
        self.weight, self.at, self.value, self.done = next(model.parameters()), at, value, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.done += 1
        if self.done == self.at:
            self.weight[0, 0] = self.value


def recovered(model: nn.Module, optimizer: Spoiling, steps: int) -> None:
    """A training that notices a bad step and goes back by one."""
    before = snapshot(model)

    def after(done: int) -> None:
        del done
        nonlocal before
        if optimizer.done == optimizer.at:
            model.load_state_dict(before)
        before = snapshot(model)

    train(model, optimizer, steps, after)


@pytest.mark.parametrize("attach", TRACKERS.values(), ids=TRACKERS)
@pytest.mark.parametrize("value", [NAN, INF, -INF, HUGE])
@pytest.mark.parametrize("at", [1, 5])
def test_a_bad_step_is_left_out_and_said_once(attach: Attach, value: float, at: int) -> None:
    model = network()
    optimizer = Spoiling(model, at, value)
    tracker = attach(model, optimizer)
    with pytest.warns(
        UserWarning, match=f"0.weight is NaN, infinite or too large to be squared after step {at}.*skipped"
    ):
        recovered(model, optimizer, 12)
    assert tracker.skipped == 1
    assert "12 steps seen, 1 left out (not finite)" in repr(tracker)
    posterior = tracker.posterior()
    for values in (posterior.mean, posterior.variance):
        assert all(value.isfinite().all() and value.abs().max() < 1e3 for value in values.values())
    posterior.sample(2)(problem()[0][0])


def test_all_other_steps_count_as_ever() -> None:
    model = network()
    optimizer = Spoiling(model, 8, NAN)
    tracker = TRADI(model, optimizer)
    seen: list[Tensor] = []

    def after(done: int) -> None:
        if done == 8:
            model[0].weight.data.copy_(seen[-1])
        seen.append(model[0].weight.detach().clone())

    with pytest.warns(UserWarning, match="left out"):
        train(model, optimizer, 12, after)
    seen[7] = seen[8]  # the next observation counts for the one that was left out
    check_moments(tracker.posterior(), "0.weight", seen)


def test_several_bad_steps_are_counted_saved_and_warned_about_once() -> None:
    model = network()
    optimizer = Spoiling(model, 3, INF)
    tracker = TRADI(model, optimizer)
    with pytest.warns(UserWarning, match="left out"):
        train(model, optimizer, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 3)  # the weights stay bad
    assert tracker.skipped == 4
    again = network()
    resumed = TRADI(again, torch.optim.SGD(again.parameters(), 0.1))
    resumed.load_state_dict(tracker.state_dict())
    assert resumed.skipped == 4


def test_a_training_that_ends_in_nan_has_no_posterior() -> None:
    model = network()
    optimizer = Spoiling(model, 3, NAN)
    tracker = TRADI(model, optimizer)
    with pytest.warns(UserWarning, match="left out"):
        train(model, optimizer, 6)
    with pytest.raises(ValueError, match=r"weights of .* are NaN or infinite: training diverged"):
        tracker.posterior()


def test_a_gradient_that_is_not_finite_is_no_part_of_the_average() -> None:
    class Sign(torch.optim.SGD):
        """Weights stay finite whatever the gradient."""

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad.nan_to_num().sign(), alpha=0.01)

    model = network()
    optimizer = Sign(model.parameters(), 0.1)
    tracker = TRADI(model, optimizer)
    train(model, optimizer, 3)
    for p in model.parameters():
        p.grad = torch.full_like(p, INF)
    with pytest.warns(UserWarning, match="a gradient is NaN, infinite"):
        optimizer.step()
    assert tracker.skipped == 1
    gradients = [block["gradient"] for block in tracker.state_dict()["weights"].values()]
    assert all(value.isfinite().all() for one in gradients for value in one.values())


def test_bfloat16_weights() -> None:
    model = network(dtype=torch.bfloat16)
    optimizer = Spoiling(model, 3, NAN)
    tracker = TRADI(model, optimizer)
    before = snapshot(model)
    for i, (x, y) in enumerate(problem(dtype=torch.bfloat16) * 2):
        if i == 2:
            with pytest.warns(UserWarning, match="left out"):
                step(model, optimizer, x, y)
            model.load_state_dict(before)
        else:
            step(model, optimizer, x, y)
        before = snapshot(model)
    assert tracker.skipped == 1
    assert all(mean.isfinite().all() for mean in tracker.posterior().mean.values())


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_grad_scaler_skips_are_not_counted_and_a_bad_one_is_left_out(
    half: torch.dtype, fused: bool
) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    tracker = TRADI(model, optimizer)
    before = snapshot(model)
    spoil = optimizer.register_step_pre_hook(lambda *_: None)

    def bad(*_: object) -> None:
        with torch.no_grad():
            model.weight[0, 0] = NAN

    for i, (x, y) in enumerate(problem() * 2):
        optimizer.zero_grad()
        with torch.autocast("cpu", half):
            loss = nn.functional.cross_entropy(model(x), y) * (INF if i == 2 else 1.0)
        scaler.scale(loss).backward()
        if i == 5:
            spoil = optimizer.register_step_pre_hook(bad)
            with pytest.warns(UserWarning, match="left out"):
                scaler.step(optimizer)
            spoil.remove()
            model.load_state_dict(before)
        else:
            scaler.step(optimizer)
        scaler.update()
        before = snapshot(model)
    assert (tracker.steps, tracker.skipped) == (7, 1)
    assert all(mean.isfinite().all() for mean in tracker.posterior().mean.values())


def test_what_was_tracked_before_a_bad_step_is_not_touched_by_it() -> None:
    model = network()
    optimizer = Spoiling(model, 6, NAN)
    tracker = TRADI(model, optimizer)
    train(model, optimizer, 5)
    before = {name: block["mean"][name] for name, block in tracker.state_dict()["weights"].items()}
    with pytest.warns(UserWarning, match="left out"):
        train(model, optimizer, 1)
    after = {name: block["mean"][name] for name, block in tracker.state_dict()["weights"].items()}
    assert same(before, after)
