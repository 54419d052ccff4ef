from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tradi
from tests.training import network, problem, same, train
from tradi.methods import TRADI, DeepEnsemble

X = problem()[0][0]


def make_model() -> nn.Module:
    return nn.Linear(4, 3)  # from the seed that is set around it


def fit(model: nn.Module) -> None:
    train(model, torch.optim.SGD(model.parameters(), 0.1), 4)


def fit_tracked(model: nn.Module) -> tradi.Posterior:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = TRADI(model, optimizer)
    train(model, optimizer, 4)
    return tracker.posterior()


def test_members_are_the_given_networks_with_their_own_statistics() -> None:
    models = [network(seed) for seed in range(3)]
    for model in models:
        train(model, torch.optim.SGD(model.parameters(), 0.1))
        model.eval()
    outputs = DeepEnsemble(models).sample()(X)
    for model, output in zip(models, outputs, strict=True):
        torch.testing.assert_close(output, model(X))


def test_training_is_reproducible_and_leaves_the_global_seed_alone() -> None:
    torch.manual_seed(42)  # not a seed that training sets itself
    expected = torch.randn(2)
    torch.manual_seed(42)
    first = DeepEnsemble.train(make_model, fit, seeds=(0, 1, 2)).sample()(X)
    assert torch.equal(torch.randn(2), expected)
    again = DeepEnsemble.train(make_model, fit, seeds=(2, 0, 1)).sample()(X)
    assert torch.equal(again, first[[2, 0, 1]])
    assert not torch.equal(first[0], first[1])


def test_workers_train_the_same_networks() -> None:
    alone = DeepEnsemble.train(make_model, fit, seeds=(0, 1)).sample()(X)

    def fit_elsewhere(model: nn.Module) -> None:
        fit(model)
        model.register_buffer("process", torch.tensor(os.getpid()))

    ensemble = DeepEnsemble.train(make_model, fit_elsewhere, seeds=(0, 1), workers=2)
    torch.testing.assert_close(alone, ensemble.sample()(X))
    processes = [int(run.model.process) for run in ensemble.runs]  # type: ignore[arg-type]
    assert os.getpid() not in processes


def test_training_resumes_after_a_crash(tmp_path: Path) -> None:
    trained: list[int] = []

    def crashing(model: nn.Module) -> None:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(1)
        fit(model)

    with pytest.raises(KeyboardInterrupt):
        DeepEnsemble.train(make_model, crashing, seeds=range(4), folder=tmp_path / "runs")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"run-0.safetensors", "run-1.safetensors"}
    more: list[int] = []

    def counting(model: nn.Module) -> None:
        more.append(1)
        fit(model)

    resumed = DeepEnsemble.train(make_model, counting, seeds=range(4), folder=tmp_path / "runs")
    assert len(more) == 2
    assert torch.equal(resumed.sample()(X), DeepEnsemble.train(make_model, fit, seeds=range(4)).sample()(X))


def test_multi_tradi_draws_members_from_all_runs_in_turn(tmp_path: Path) -> None:
    ensemble = DeepEnsemble.train(make_model, fit_tracked, seeds=(0, 1), folder=tmp_path)
    members: Any = list(ensemble.sample(6))
    for i, member in enumerate(members):
        near = [(member.weight - run.mean["weight"]).norm().item() for run in ensemble.runs]
        assert near[i % 2] < near[1 - i % 2]
    weights = torch.stack([member.weight for member in members])
    assert len(weights.flatten(1).unique(dim=0)) == 6
    assert same(ensemble.sample(6)[3].state_dict(), ensemble.runs[1].sample(6)[3].state_dict())
    resumed = DeepEnsemble.train(make_model, fit_tracked, seeds=(0, 1), folder=tmp_path)
    assert torch.equal(resumed.sample(6)(X), ensemble.sample(6)(X))


def test_bad_input_names_cause_and_remedy() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        DeepEnsemble([])
    with pytest.raises(ValueError, match="run 1 is of another architecture"):
        DeepEnsemble([nn.Linear(4, 3), nn.Linear(4, 2)])
    relu, tanh = (nn.Sequential(nn.Linear(4, 3), kind()) for kind in (nn.ReLU, nn.Tanh))
    with pytest.raises(ValueError, match=r"(?s)run 1 has a different architecture.*Tanh.*ReLU"):
        DeepEnsemble([relu, tanh])
    with pytest.raises(ValueError, match=r"run 1 is of another architecture.*float64"):
        DeepEnsemble([nn.Linear(4, 3), nn.Linear(4, 3).double()])
    with pytest.raises(ValueError, match=r"seeds must differ.*\[1, 1\]"):
        DeepEnsemble.train(make_model, fit, seeds=(1, 1))
    with pytest.raises(ValueError, match=r"3 members from 2 runs.*track them"):
        DeepEnsemble([nn.Linear(4, 3), nn.Linear(4, 3)]).sample(3)


def test_buffers_that_are_not_saved_are_each_runs_own() -> None:
    models = []
    for value in (1.0, 2.0):
        model = nn.Sequential(nn.Linear(4, 3))
        model.register_buffer("offset", torch.tensor(value), persistent=False)
        models.append(model)
    members: Any = list(DeepEnsemble(models).sample())
    assert [member.offset.item() for member in members] == [1.0, 2.0]


def test_fit_may_return_a_network_and_nothing_else_strange(tmp_path: Path) -> None:
    best = nn.Linear(4, 3)
    ensemble = DeepEnsemble.train(make_model, lambda model: best, seeds=(0,), folder=tmp_path)
    assert torch.equal(ensemble.sample()(X)[0], best(X))
    with pytest.raises(RuntimeError, match=r"seed 3 failed: fit must return a posterior, a network or None, got float"):
        DeepEnsemble.train(make_model, lambda model: 0.5, seeds=(3,))  # type: ignore[arg-type, return-value]


def test_files_that_cannot_be_resumed_from_are_named(tmp_path: Path) -> None:
    DeepEnsemble([nn.Linear(4, 2), nn.Linear(4, 2)]).save(tmp_path / "run-0.safetensors")
    with pytest.raises(ValueError, match=r"run-0\.safetensors cannot be resumed from.*2 runs.*delete it"):
        DeepEnsemble.train(make_model, fit, seeds=(0,), folder=tmp_path)
    (tmp_path / "run-0.safetensors").write_bytes(b"half a file")
    with pytest.raises(ValueError, match=r"run-0\.safetensors cannot be resumed from.*delete it"):
        DeepEnsemble.train(make_model, fit, seeds=(0,), folder=tmp_path)
