"""Ensembles as files: whoever loads one needs neither the posterior nor its data."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import tradi
from tests.fitted import (
    TRAIN,
    TRAIN_NUMBERS,
    X,
    classifier,
    mean_error,
    numbers,
    plain,
    regressor,
    small,
    tracked,
    trained,
    two_heads,
    with_batchnorm,
)
from tests.training import Custom, network, snapshot
from tradi.ensemble.linearised import Linearised
from tradi.methods import SWAG, DeepEnsemble, GaussianPerturbation, MCDropout, SingleNetwork

# name -> (the ensemble, a network of its architecture with other weights)
ENSEMBLES: dict[str, tuple[Callable[[], tradi.Ensemble], Callable[[], nn.Module]]] = {
    "plain": (lambda: classifier(plain).sample(3, seed=4), lambda: plain(seed=5)),
    "BatchNorm": (lambda: classifier().sample(3, refresh=TRAIN), lambda: network(5)),
    "one network": (lambda: SingleNetwork(trained()).sample(), lambda: network(5)),
    "head": (lambda: regressor(two_heads).sample(3), lambda: two_heads(5)),
    "head, BatchNorm": (lambda: regressor(with_batchnorm).sample(3), lambda: with_batchnorm(5)),
    "all weights": (lambda: regressor(small).sample(3), lambda: small(5)),
    "DeepEnsemble": (lambda: DeepEnsemble([trained(seed) for seed in range(3)]).sample(), lambda: network(5)),
    "multi-TRADI": (lambda: DeepEnsemble([classifier()] * 2).sample(4, refresh=TRAIN), lambda: network(5)),
    "multi-TRADI, all weights": (lambda: DeepEnsemble([regressor(small), other_run()]).sample(4), lambda: small(5)),
    "GaussianPerturbation": (lambda: GaussianPerturbation(trained(), 0.1).sample(3, refresh=TRAIN), lambda: network(5)),
}


def other_run() -> tradi.Posterior:
    return tracked(small(8), TRAIN_NUMBERS, mean_error).fit(TRAIN_NUMBERS, numbers(32, 1))


@pytest.mark.parametrize("name", ENSEMBLES)
def test_a_loaded_ensemble_predicts_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    make, architecture = ENSEMBLES[name]
    ensemble, model = make(), architecture()
    before = snapshot(model)
    ensemble.save(tmp_path / "ensemble")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left to refresh
        loaded = tradi.load_ensemble(tmp_path / "ensemble", model)
        outputs = loaded(X)
    assert len(loaded) == len(ensemble)
    assert loaded.likelihood == ensemble.likelihood
    assert all(map(torch.equal, parts(outputs), parts(ensemble(X))))
    for ours, theirs in zip(loaded, ensemble, strict=True):
        assert all(map(torch.equal, parts(ours(X)), parts(theirs(X))))
        assert type(ours) is type(theirs)
    if ensemble.likelihood is not None:
        found, expected = loaded.predict([X, X]), ensemble.predict([X, X])
        assert all(torch.equal(value, getattr(expected, key)) for key, value in vars(found).items())
    assert all(torch.equal(value, before[key]) for key, value in snapshot(model).items())
    loaded.save(tmp_path / "again")
    assert all(map(torch.equal, parts(tradi.load_ensemble(tmp_path / "again", model)(X)), parts(outputs)))


def parts(output: Any) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)


def keys(path: Path) -> set[str]:
    with safe_open(path, framework="pt") as file:
        return set(file.keys())


def test_what_members_share_is_saved_once(tmp_path: Path) -> None:
    posterior = tracked(plain(), TRAIN, nn.functional.cross_entropy, select="0.*")
    posterior.sample(2).save(tmp_path / "e")
    own = {f"{member}/member/0.{part}" for member in (1, 2) for part in ("weight", "bias")}
    assert keys(tmp_path / "e") == own | {"0/shared/2.weight", "0/shared/2.bias"}
    DeepEnsemble([trained(), trained()]).sample().save(tmp_path / "twins")  # nothing differs
    assert {key.split("/")[0] for key in keys(tmp_path / "twins")} == {"0"}
    assert torch.equal(*tradi.load_ensemble(tmp_path / "twins", network(5))(X))


def test_multi_tradi_of_linearised_members_runs_every_member_as_its_own_run_does() -> None:
    runs = [regressor(small), other_run()]
    outputs = DeepEnsemble(runs).sample(4, seed=2)(X)
    each = [run.sample(4, seed=2)(X) for run in runs]
    for i in range(4):
        assert torch.equal(outputs[i], each[i % 2][i])


def test_runs_that_are_conditioned_in_different_ways_are_an_error() -> None:
    head = regressor(small)._changed(conditioning=None)
    with pytest.raises(ValueError, match="runs were conditioned in different ways"):
        DeepEnsemble([regressor(small), head]).sample(2)


def test_multi_tradi_of_numbers_is_loaded_with_its_rows(tmp_path: Path) -> None:
    runs = DeepEnsemble([regressor(small), other_run()])
    runs.save(tmp_path / "runs")
    loaded = DeepEnsemble.load(tmp_path / "runs", small(5))
    with pytest.raises(ValueError, match="which no file holds"):
        loaded.sample(4)
    found = loaded.sample(4, refresh=[*TRAIN_NUMBERS, *numbers(32, 1)])
    torch.testing.assert_close(found(X), runs.sample(4)(X), rtol=1e-4, atol=1e-4)


def test_masks_are_not_tensors_of_a_network(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"_mask_key.*MCDropout\(model\)\.save\(path\)"):
        MCDropout(trained()).sample(3).save(tmp_path / "e")
    assert not list(tmp_path.iterdir())


class Cached(nn.Linear):
    """With a buffer that is made anew with every model."""

    factor: Tensor

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("factor", torch.tensor(2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


def test_buffers_that_are_not_saved_may_be_there_if_they_are_all_the_same(tmp_path: Path) -> None:
    one, other = Cached(), Cached()
    ensemble = DeepEnsemble([one, other]).sample()
    ensemble.save(tmp_path / "e")
    assert torch.equal(tradi.load_ensemble(tmp_path / "e", Cached())(X), ensemble(X))
    other.factor.fill_(3.0)
    with pytest.raises(ValueError, match="'factor'"):
        DeepEnsemble([one, other]).sample().save(tmp_path / "e")


def test_statistics_are_refreshed_before_they_are_saved_and_not_afterwards(tmp_path: Path) -> None:
    posterior = tracked(network(), TRAIN, nn.functional.cross_entropy)
    posterior.sample(2, refresh=TRAIN).save(tmp_path / "e")  # at first use
    loaded = tradi.load_ensemble(tmp_path / "e", network(5))
    assert torch.equal(loaded(X), posterior.sample(2).refresh(TRAIN)(X))
    with pytest.raises(ValueError, match="keeps the BatchNorm statistics that it was saved with"):
        loaded.refresh(TRAIN)
    with pytest.warns(UserWarning, match="BatchNorm's statistics"):
        posterior.sample(2).save(tmp_path / "stale")


def test_layouts_in_memory_do_not_matter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(4, 3, 8, 8)
    ensemble = GaussianPerturbation(model, 0.1).sample(3)
    ensemble.save(tmp_path / "e")
    assert torch.equal(tradi.load_ensemble(tmp_path / "e", model)(x), ensemble(x))
    turned = tradi.Ensemble(nn.Linear(4, 3), lambda i: {"weight": torch.ones(4, 3).mul_(i).T}, 2)
    assert all(turned._weights(i)["weight"].is_contiguous() for i in range(2))


def test_half_precision_tied_and_foreign_likelihoods(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x.to(torch.bfloat16)))

    ensemble = GaussianPerturbation(Tied().to(torch.bfloat16), 0.1).sample(2, likelihood=Custom(lambda o, t: o))
    ensemble.save(tmp_path / "e")
    loaded = tradi.load_ensemble(tmp_path / "e", Tied().to(torch.bfloat16))
    assert torch.equal(loaded(X), ensemble(X))
    assert loaded.likelihood is None
    linearised = tradi.Ensemble(Linearised(small(), ["0.weight"], Custom(lambda o, t: o)), lambda i: {}, 1)
    with pytest.raises(ValueError, match="is not tradi's and cannot be saved"):
        linearised.save(tmp_path / "l")


def test_another_architecture_is_an_error_that_lists_both_sides(tmp_path: Path) -> None:
    for name, posterior in {"plain": classifier(plain), "linearised": regressor(small)}.items():
        posterior.sample(2).save(tmp_path / name)
        with pytest.raises(ValueError, match="the file is of another architecture"):
            tradi.load_ensemble(tmp_path / name, with_batchnorm())
        with pytest.raises(ValueError, match=r"it is an ensemble, which tradi\.load_ensemble reads"):
            tradi.load_posterior(tmp_path / name, with_batchnorm())


def test_an_ensemble_from_swag_survives_too(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    tracker = SWAG(model, optimizer, every=2, rank=4)
    for x, y in TRAIN * 3:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    ensemble = tracker.posterior().sample(3, refresh=TRAIN)
    ensemble.save(tmp_path / "e")
    assert torch.equal(tradi.load_ensemble(tmp_path / "e", network(5))(X), ensemble(X))


def test_a_plain_member_can_be_exported() -> None:
    for ensemble in (classifier().sample(2, refresh=TRAIN), regressor(two_heads).sample(2)):
        member = ensemble[1]
        exported = torch.export.export(member, (X,)).module()
        for ours, theirs in zip(parts(exported(X)), parts(member(X)), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ENSEMBLES)
def test_every_member_is_a_module_that_torch_saves(name: str) -> None:
    member = ENSEMBLES[name][0]()[0]
    assert not member.training
    file = io.BytesIO()
    torch.save(member, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is type(member)
    assert all(map(torch.equal, parts(loaded(X)), parts(member(X))))
    file = io.BytesIO()
    torch.save(member.state_dict(), file)
    file.seek(0)
    other = ENSEMBLES[name][0]()[-1]
    other.load_state_dict(torch.load(file, weights_only=True))
    assert all(map(torch.equal, parts(other(X)), parts(member(X))))
