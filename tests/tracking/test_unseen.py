"""Optimizers whose steps nobody sees are noticed early, and models that cannot be copied at once."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tests.training import network, problem, step, train
from tradi.tracking import unseen


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimisation as it is usually written: two half steps, and a base optimizer inside."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base_optimizer = torch.optim.SGD(self.param_groups, 0.1)

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.clone()
            p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.copy_(self.state[p]["old"])
        self.base_optimizer.step()


def sharpness_aware(model: nn.Module, optimizer: SAM, steps: int) -> None:
    for i in range(steps):
        x, y = problem()[i % 4]
        for half in (optimizer.first_step, optimizer.second_step):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            half()


def test_an_optimizer_that_never_calls_step_is_noticed_in_the_first_steps() -> None:
    model = network()
    optimizer = SAM(model.parameters())
    tradi.TRADI(model, optimizer)
    with pytest.warns(UserWarning, match=r"no step of the optimizer was seen.*SAM's base_optimizer") as told:
        sharpness_aware(model, optimizer, 5)
    assert len(told) == 1
    sharpness_aware(model, optimizer, 20)  # and said once


def test_its_base_optimizer_is_followed() -> None:
    model = network()
    optimizer = SAM(model.parameters())
    tracker = tradi.TRADI(model, optimizer.base_optimizer)
    sharpness_aware(model, optimizer, 12)
    assert tracker.steps == 12
    tracker.posterior()


def test_gradients_may_be_accumulated_over_many_batches() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    tracker = tradi.TRADI(model, optimizer)
    x, y = problem()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(50 * unseen.PASSES):
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert tracker.steps == 1


def test_nothing_is_left_on_the_weights_once_a_step_was_seen_or_the_tracker_is_detached() -> None:
    for stop in (lambda model, optimizer, tracker: step(model, optimizer, *problem()[0]), None):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tracker = tradi.TRADI(model, optimizer)
        assert any(p._post_accumulate_grad_hooks for p in model.parameters())
        if stop is None:
            with pytest.warns(UserWarning, match="no optimizer step was seen"):
                tracker.detach()
        else:
            stop(model, optimizer, tracker)
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def parametrised() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))


def spectral() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 3))


def caching() -> nn.Module:
    class Caching(nn.Module):
        """Leaves tensors of the last forward behind, in an attribute, a list and a dictionary."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.list: list[Tensor] = []
            self.last: dict[str, Any] = {}

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            self.plain, self.list, self.last = y, [y], {"y": (y, y.sum())}
            return y

    return Caching()


@pytest.mark.parametrize("make", [parametrised, spectral, caching])
@pytest.mark.parametrize("used", [False, True])
def test_models_with_more_than_plain_weights_are_followed(make: Any, used: bool) -> None:
    model = make()
    if used:
        model(problem()[0][0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 4)
    outputs = tracker.posterior().sample(2)(problem()[0][0])
    assert not torch.equal(outputs[0], outputs[1])


@pytest.mark.parametrize("held", [threading.Lock(), [threading.RLock()], (i for i in range(3))])
def test_a_model_that_cannot_be_copied_is_an_error_when_attaching(held: Any) -> None:
    model = network()
    model.held = held
    with pytest.raises(TypeError, match="the model cannot be copied, and members need a copy of it"):
        tradi.TRADI(model, torch.optim.SGD(model.parameters(), 0.1))
