"""Trackers take optimizers and models as training libraries hand them out."""

from __future__ import annotations

from typing import Any

import pytest
import schedulefree
import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

import tradi
from tests.training import network, problem

NAMES = {"0.weight", "0.bias", "4.weight", "4.bias"}


def trained(seed: int = 0) -> dict[str, torch.Tensor]:
    """The tracked means where nothing is wrapped."""
    model = network(seed).eval()
    optimizer = SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    for x, y in problem():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return tracker.posterior().mean


def assert_same(tracker: tradi.TRADI) -> None:
    mean = tracker.posterior().mean
    assert mean.keys() == NAMES
    for name, value in trained().items():
        assert torch.equal(mean[name], value), name


def test_accelerate() -> None:
    accelerator = Accelerator(cpu=True)
    model = network().eval()
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), 0.1))
    tracker = tradi.TRADI(model, optimizer)
    for x, y in problem():
        optimizer.zero_grad()
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
    assert_same(tracker)


def test_fabric() -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    model = network().eval()
    model, optimizer = fabric.setup(model, SGD(model.parameters(), 0.1))
    tracker = tradi.TRADI(model, optimizer)
    for x, y in problem():
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(model(x), y))
        optimizer.step()
    assert_same(tracker)
    assert torch.equal(tracker.posterior().final()(problem()[0][0])[0], model(problem()[0][0]))


def test_a_lightning_module_in_fabric_counts_every_step_once() -> None:
    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network().eval()

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(x)

    fabric = Fabric(accelerator="cpu", devices=1)
    module = Module()
    model, optimizer = fabric.setup(module, SGD(module.parameters(), 0.1))
    tracker = tradi.TRADI(model, optimizer)
    for x, y in problem():
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        tracker.posterior()  # copies the module, which Fabric lets hold the optimizer
    assert tracker.steps == len(problem())
    for name, value in trained().items():
        assert torch.equal(tracker.posterior().mean[f"net.{name}"], value), name


def test_a_lightning_optimizer_beside_its_own_is_one() -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    wrapper: Any = LightningOptimizer(optimizer)
    tracker = tradi.TRADI(torch.compile(model, backend="eager"), [wrapper, optimizer])  # type: ignore[arg-type]
    model(problem()[0][0]).sum().backward()
    optimizer.step()
    assert tracker.steps == 1
    assert tracker.posterior().mean.keys() == NAMES


class Lookahead(Optimizer):
    """Holds another optimizer, and moves the weights itself after it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.zero_()


def test_an_optimizer_around_another_is_followed_itself() -> None:
    model = nn.Linear(2, 1)
    optimizer = Lookahead(SGD(model.parameters(), 0.1))
    tracker = tradi.TRADI(model, optimizer)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    mean = tracker.posterior().mean["weight"]
    assert tracker.steps == 1
    assert torch.equal(mean, torch.zeros(1, 2)), "after its own step, not after the one inside"


class Toggled(SGD):
    """Keeps a mode as schedule-free optimizers do."""

    def set_mode(self, train: bool) -> None:
        for group in self.param_groups:
            group["train_mode"] = train


@pytest.mark.parametrize("kind", ["stand-in", "schedulefree"])
def test_eval_mode_of_a_schedule_free_optimizer_is_noticed(kind: str) -> None:
    model = network()
    optimizer: Any = Toggled(model.parameters(), 0.1)
    train, evaluate = lambda: optimizer.set_mode(True), lambda: optimizer.set_mode(False)
    if kind == "schedulefree":
        optimizer = schedulefree.SGDScheduleFree(model.parameters(), 0.1)
        train, evaluate = optimizer.train, optimizer.eval
    train()
    tracker = tradi.TRADI(model, optimizer)
    for x, y in problem():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    before = tracker.posterior()
    evaluate()
    with pytest.raises(RuntimeError, match=r"eval mode.*optimizer.train\(\) before posterior\(\)"):
        tracker.posterior()
    train()
    assert all(torch.equal(value, before.mean[name]) for name, value in tracker.posterior().mean.items())


def test_what_is_no_optimizer_is_named() -> None:
    with pytest.raises(TypeError, match=r"optimizer must be a torch.optim.Optimizer.*got str"):
        tradi.TRADI(network(), ["adam"])  # type: ignore[list-item]
