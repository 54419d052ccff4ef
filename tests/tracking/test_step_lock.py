"""A snapshot that another thread takes while a training runs is of the weights between two steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.training import network, problem, same, step, train
from tradi.tracking import step_lock


class Halting(torch.optim.SGD):
    """Stops in the middle of a step, where the first half of the weights has moved, until it may go on."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, 0.1)
        self.halted, self.go_on = threading.Event(), threading.Event()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        for i, p in enumerate(self.param_groups[0]["params"]):
            if i == 2:
                self.halted.set()
                assert self.go_on.wait(60)
            p += 1


def halting() -> tuple[nn.Module, Halting, tradi.TRADI]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    optimizer = Halting(model.parameters())
    return model, optimizer, tradi.TRADI(model, optimizer)


def both_layers(posterior: tradi.Posterior) -> list[float]:
    return [posterior.mean[name].mean().item() for name in ("0.weight", "1.weight")]


def test_a_snapshot_waits_for_the_end_of_a_step() -> None:
    model, optimizer, tracker = halting()
    optimizer.go_on.set()
    step(model, optimizer, *problem()[0])
    optimizer.go_on.clear()
    optimizer.halted.clear()
    trainer = threading.Thread(target=step, args=(model, optimizer, *problem()[0]))
    trainer.start()
    assert optimizer.halted.wait(60)
    taken: dict[str, Any] = {}

    def take() -> None:
        taken.update(posterior=tracker.posterior(), state=tracker.state_dict())

    taker = threading.Thread(target=take)
    taker.start()
    taker.join(0.05)
    optimizer.go_on.set()
    trainer.join(60)
    taker.join(60)
    assert taken["state"]["steps"] == 2
    first, second = both_layers(taken["posterior"])
    assert first == second > 1


def test_snapshots_taken_while_a_thread_trains_are_whole() -> None:
    model, data = network(), problem()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    after: list[dict[str, Tensor]] = []
    train(model, optimizer, 1)
    after.append({name: p.detach().clone() for name, p in model.named_parameters()})
    enough = threading.Event()

    def run() -> None:
        while not enough.is_set() and len(after) < 5000:
            step(model, optimizer, *data[len(after) % 4])
            after.append({name: p.detach().clone() for name, p in model.named_parameters()})

    trainer = threading.Thread(target=run)
    trainer.start()
    try:
        snapshots = [(tracker.state_dict(), tracker.posterior()) for _ in range(15)]
    finally:
        enough.set()
        trainer.join(60)
    for state, posterior in snapshots:
        assert {block["step"] for block in state["weights"].values()} == {state["steps"]}
        final = {name: p.detach() for name, p in posterior.model.named_parameters()}
        assert any(same(final, weights) for weights in after)


def test_a_step_that_never_ends_is_an_error_and_no_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_lock, "PATIENCE", 0.05)
    model, optimizer, tracker = halting()
    trainer = threading.Thread(target=step, args=(model, optimizer, *problem()[0]))
    trainer.start()
    assert optimizer.halted.wait(60)
    with pytest.raises(RuntimeError, match=r"did not end within 0\.05 seconds"):
        tracker.state_dict()
    optimizer.go_on.set()
    trainer.join(60)
    assert tracker.state_dict()["steps"] == 1


def test_a_step_that_an_error_breaks_off_leaves_no_lock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_lock, "PATIENCE", 0.05)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)

    def closure() -> float:
        raise KeyError("mine")

    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            optimizer.step(closure)
    train(model, optimizer, 3)
    found: list[int] = []
    other = threading.Thread(target=lambda: found.append(tracker.state_dict()["steps"]))
    other.start()
    other.join(60)
    assert found == [3]
