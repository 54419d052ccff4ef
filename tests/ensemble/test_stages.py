from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

import tradi
from tests.training import network, problem, train
from tradi.ensemble.stages import Stages
from tradi.methods import GaussianPerturbation, MCDropout


class Waiting(nn.Module):
    """Runs on when as many threads are in it as there must be."""

    meeting = threading.Barrier(2, timeout=60)
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        before = self.net(x)
        if threading.current_thread() is not threading.main_thread():
            Waiting.meeting.wait()
        found: Tensor = before + 0 * self.calls
        assert torch.equal(self.net(x), before)  # nobody else's weights meanwhile
        return found


def test_threads_run_members_at_the_same_time_each_in_a_module_of_its_own() -> None:
    ensemble = GaussianPerturbation(Waiting(), 0.1).sample(2)
    x = problem()[0][0]
    expected = ensemble(x)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(ensemble, [x, x]))  # a lock around members would break the barrier
    assert all(torch.equal(output, expected) for output in found)


def test_64_predictions_at_once_are_those_of_one_thread() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer)
    posterior = tracker.posterior().fit(problem(), problem(32, 16, seed=1))
    data = [problem(16, 16, seed=seed)[0][0] for seed in range(8)]
    methods: list[Any] = [posterior, MCDropout(model)]
    for method in methods:
        expected = [method.sample(6, seed=2)(x) for x in data]
        ensemble = method.sample(6, seed=2)
        ensemble.keep_bytes = 2000  # some are kept, and some are drawn again
        with ThreadPoolExecutor(64) as pool:
            jobs = [pool.submit(ensemble, data[i % 8]) for i in range(64)]
        assert all(torch.equal(job.result(), expected[i % 8]) for i, job in enumerate(jobs))


def test_a_stage_is_used_again_and_shares_parameters_but_not_buffers() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    stages = Stages(model)
    with stages.one() as first, stages.one() as second:
        assert first.module is not second.module
        modules: list[Any] = [first.module, second.module]
        assert len({module[0].weight.data_ptr() for module in (model, *modules)}) == 1
        assert len({module[1].running_mean.data_ptr() for module in (model, *modules)}) == 3
    with stages.one() as again, stages.one() as other:
        assert {again, other} == {first, second}
    again_stages: Stages = copy.deepcopy(stages)
    with again_stages.one() as alone:
        copied: Any = alone.module
        assert copied[0].weight.data_ptr() != model[0].weight.data_ptr()


def test_a_forward_that_fails_gives_its_stage_back() -> None:
    ensemble = GaussianPerturbation(nn.Linear(4, 3), 0.1).sample(2)
    expected = ensemble(problem()[0][0])
    for _ in range(3):
        try:
            ensemble(torch.zeros(2, 5))
        except RuntimeError:
            continue
        raise AssertionError
    assert len(ensemble._stages._free) == 1
    assert torch.equal(ensemble(problem()[0][0]), expected)
