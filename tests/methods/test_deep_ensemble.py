from __future__ import annotations

import errno
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tradi
from tests.training import Batches, network, problem, same, train
from tradi.likelihoods import Classification
from tradi.methods import TRADI, DeepEnsemble
from tradi.posterior.laplace import LaplaceHead
from tradi.posterior.layers import Layer
from tradi.posterior.loudness import Averaged
from tradi.posterior.randomness import key

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


def noisy(samples: int, seed: int) -> Batches:
    """The small problem, with a fifth of the labels wrong."""
    (x, y), generator = problem(samples, samples, seed)[0], torch.Generator().manual_seed(seed)
    other = torch.randint(0, 3, (samples,), generator=generator)
    return [(x, torch.where(torch.rand(samples, generator=generator) < 0.2, other, y))]


def tracked_runs(count: int) -> list[tradi.Posterior]:
    """Networks that overfit the noisy problem, each from weights of its own."""
    runs = []
    ((x, y),) = noisy(100, 0)
    for seed in range(count):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        tracker = TRADI(model, optimizer)
        for i in range(200):
            optimizer.zero_grad()
            rows = slice(20 * (i % 5), 20 * (i % 5) + 20)
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        runs.append(tracker.posterior())
    return runs


def nll(ensemble: tradi.Ensemble, data: Batches) -> float:
    ((x, y),) = data
    return -ensemble.predict(x, likelihood=Classification()).log_prob(y).mean().item()


def test_several_runs_are_scaled_together_and_judged_as_they_predict() -> None:
    runs, validation = tracked_runs(3), noisy(1000, 1)
    together = DeepEnsemble(runs).fit(noisy(100, 0), validation)
    searches = [run.scale_search for run in together.runs]
    search = searches[0]
    assert search is not None
    assert all(one == search for one in searches)
    assert search.members == 6  # five at the least, and as many of every run
    spreads = [run.conditioning.spread for run in together.runs if isinstance(run.conditioning, LaplaceHead)]
    assert spreads == [search.head] * 3
    judges = together.sample(6, seed=key("scale search", 0))
    assert search.nll[search.scale] == pytest.approx(nll(judges, validation), rel=1e-5)


def test_noise_of_several_runs_together_never_costs_more_than_the_tolerance() -> None:
    runs, validation = tracked_runs(3), noisy(2000, 1)
    together = DeepEnsemble(runs).fit(noisy(100, 0), validation)
    plain = DeepEnsemble([run.model for run in runs]).sample()
    assert nll(together.sample(30), noisy(5000, 2)) < nll(plain, noisy(5000, 2)) + 0.005


def test_without_noise_members_are_the_plain_deep_ensemble() -> None:
    """One validation row shows no noise to be harmless, and tracked means that are far off are not used either."""
    runs, (x, _) = tracked_runs(2), noisy(50, 3)[0]
    far = []
    for run in runs:
        layers = [
            Layer(one.name, one.weights, {name: value + 1 for name, value in one.mean.items()}, one.variance)
            for one in run.condition(noisy(100, 0))._layers
        ]
        far.append(tradi.Posterior(run.model, layers, None))
    likely = nn.functional.cross_entropy(runs[0].model(x), labels := runs[0].model(x).argmax(1), reduction="none")
    best = int(likely.argmin())
    row = [(x[best : best + 1], labels[best : best + 1])]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scale 0")
        fitted = DeepEnsemble(far).fit(noisy(100, 0), row)
    plain = DeepEnsemble([run.model for run in runs]).sample()
    assert torch.equal(fitted.sample()(x), plain(x))
    assert torch.equal(fitted.sample(4)(x)[2:], plain(x))
    search = fitted.runs[0].scale_search
    assert search is not None
    assert (search.scale, search.head) == (0.0, 0.0)
    assert search.nll[0.0] == pytest.approx(nll(plain, row), rel=1e-4, abs=1e-6)


def test_one_run_is_fitted_as_its_posterior_is() -> None:
    (run,), x = tracked_runs(1), noisy(50, 3)[0][0]
    alone = run.fit(noisy(100, 0), noisy(500, 1)).sample(4)(x)
    assert torch.equal(DeepEnsemble([run]).fit(noisy(100, 0), noisy(500, 1)).sample(4)(x), alone)


def test_runs_that_predict_numbers_are_judged_together() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-1, 1, 40)[:, None]
    runs = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        tracker = TRADI(model, optimizer)
        for _ in range(50):
            optimizer.zero_grad()
            (model(x) - x.sin()).square().mean().backward()
            optimizer.step()
        runs.append(tracker.posterior())
    y = x.sin() + 0.05 * torch.randn(40, 1, generator=generator)
    unseen = 2 * torch.rand(200, 1, generator=generator) - 1
    validation = [(unseen, unseen.sin() + 0.05 * torch.randn(200, 1, generator=generator))]
    fitted = DeepEnsemble(runs).fit([(x, y)], validation)
    first, second = (run.conditioning for run in fitted.runs)
    assert isinstance(first, Averaged)
    assert isinstance(second, Averaged)
    assert [(one.share, one.scale) for one in first.components] == [(one.share, one.scale) for one in second.components]
    assert fitted.runs[0].scale_search == fitted.runs[1].scale_search
    assert fitted.runs[0].likelihood == fitted.runs[1].likelihood
    # One factor on the noise of all members: the errors of all of them together are as large as they say.
    seen: tradi.GaussianMixture = fitted.sample(20).predict(validation)
    errors = (seen.mean - validation[0][1]).square() / seen.variance
    assert errors.mean().item() == pytest.approx(1, abs=0.2)
    prediction: tradi.GaussianMixture = fitted.sample(6).predict(x)
    assert (prediction.mean - x.sin()).abs().max() < 0.1
    assert prediction.variance.min() > 0


def test_runs_that_are_conditioned_only_in_part_are_an_error() -> None:
    first, second = tracked_runs(2)
    with pytest.raises(ValueError, match=r"only some runs are conditioned: call fit\(train, validation\)"):
        DeepEnsemble([first.condition(noisy(100, 0)), second]).choose_scale(noisy(100, 1))


def test_what_is_no_list_of_runs_is_an_error_that_says_what_to_pass() -> None:
    model = make_model()
    tracker = TRADI(model, torch.optim.SGD(model.parameters(), 0.1))
    posterior = fit_tracked(make_model())
    for runs, says in (
        ([tracker], r"a TRADI tracker is not a run: pass its posterior, tracker\.posterior\(\)"),
        (["a"], "runs must be networks or posteriors, got str"),
        (posterior, "runs must be a list of networks or posteriors, got Posterior"),
        (tracker, "runs must be a list"),
        (model, "runs must be a list"),
    ):
        with pytest.raises(TypeError, match=says):
            DeepEnsemble(runs)  # type: ignore[arg-type]
    train(model, torch.optim.SGD(model.parameters(), 0.1), 1)
    with pytest.raises(TypeError, match="integer"):
        DeepEnsemble([posterior]).sample("3")  # type: ignore[arg-type]
    assert len(DeepEnsemble(nn.ModuleList([model, make_model()])).runs) == 2  # type: ignore[arg-type]


def test_its_text_says_how_many_runs_there_are_and_what_is_known_of_them() -> None:
    first, second = (fit_tracked(make_model()) for _ in range(2))
    assert repr(DeepEnsemble([first, first])) == f"DeepEnsemble(2 runs, each: {first!r})"
    assert repr(DeepEnsemble([first])) == f"DeepEnsemble(1 runs: {first!r})"
    other = second.rescaled(0.5)
    assert repr(DeepEnsemble([first, other])) == f"DeepEnsemble(2 runs: {first!r}, {other!r})"


@pytest.mark.parametrize("count", [1, 2])
def test_the_warning_that_no_noise_helps_counts_the_networks(count: int) -> None:
    models = [network(seed) for seed in range(count)]
    data = problem()
    for model in models:
        train(model, torch.optim.SGD(model.parameters(), 0.1))
    says = r"^all members are (the trained network: no noise of its|trained networks: no noise of their) last layer"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DeepEnsemble(models).fit(data, data[:1])
    assert [bool(re.match(says, str(one.message))) for one in caught] == [True]
    assert ("networks" in str(caught[0].message)) == (count > 1)


def test_members_of_runs_that_were_conditioned_in_different_ways_are_an_error() -> None:
    first, second = tracked_runs(2)
    data = noisy(64, 1)
    labels = first.condition(data)
    for runs in ([labels, second], [first, second.condition(data)]):
        with pytest.raises(ValueError, match=r"runs were conditioned in different ways, run 0: .*not conditioned"):
            DeepEnsemble(runs).sample(4)
    numbers = second.condition([(x, x[:, :3]) for x, _ in data])
    with pytest.raises(ValueError, match=r"run 0: last layer conditioned by Laplace.*, run 1: "):
        DeepEnsemble([labels, numbers]).sample(4)


def test_networks_whose_last_layer_is_conditioned_give_any_number_of_members() -> None:
    networks = [run.model for run in tracked_runs(2)]
    fitted = DeepEnsemble(networks).fit(noisy(100, 0), noisy(1000, 1))
    assert len(fitted.sample(6)) == 6
    with pytest.raises(ValueError, match="cannot sample 6 members from 2 runs"):
        DeepEnsemble(networks).sample(6)


def test_a_run_whose_file_could_not_be_finished_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"run-0\.safetensors"):
        DeepEnsemble.train(make_model, fit, [0], folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    first = DeepEnsemble.train(make_model, fit, [0], folder=tmp_path)
    content = (tmp_path / "run-0.safetensors").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"run-0\.safetensors"):
        first.save(tmp_path / "run-0.safetensors")
    assert (tmp_path / "run-0.safetensors").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["run-0.safetensors"]


def full(number: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
