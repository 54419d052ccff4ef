from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import tradi
from tests.ensemble.test_ensemble import COVARIANCES, X, tracked
from tests.runs import noise_of
from tests.training import network, problem, same
from tradi.methods import SingleNetwork
from tradi.posterior.layers import by_layer

PINNED = {
    tradi.FourierFeatures(): [0.324099, -0.10971, -0.173727, -0.0774019, -0.382035, 0.0905024],
    tradi.FourierFeatures.released(): [0.0789616, 0.152784, -0.21297, 0.156898, 0.309661, 0.121413],
    tradi.Independent(): [-0.131183, 0.247407, 0.329025, 0.105801, -0.0177263, -0.13092],
}


@pytest.mark.parametrize("covariance", COVARIANCES, ids=repr)
def test_a_member_is_the_same_inside_autocast(covariance: tradi.Covariance) -> None:
    posterior = tracked(covariance=covariance)
    outside = posterior.draw(1), posterior.noise(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = posterior.draw(1), posterior.noise(1)
    assert all(same(ours, theirs) for ours, theirs in zip(inside, outside, strict=True))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_members_are_the_same_after_saving_and_loading(covariance: tradi.Covariance, tmp_path: Path) -> None:
    posterior = tracked(covariance=covariance).rescaled(0.7)
    path = tmp_path / "posterior.safetensors"
    posterior.save(path)
    model = network(seed=5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loaded = tradi.load_posterior(path, model)
    assert same(before, model.state_dict())
    assert loaded.covariance == covariance
    assert loaded.scale == 0.7
    assert same(loaded.mean, posterior.mean)
    assert same(loaded.variance, posterior.variance)
    assert torch.equal(loaded.sample(3, seed=2)(X), posterior.sample(3, seed=2)(X))
    refreshed = (p.sample(3).refresh(problem())(X) for p in (loaded, posterior))
    assert torch.equal(*refreshed)


def test_tied_and_half_precision_weights_are_saved(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x.to(torch.bfloat16)))

    posterior = tracked(Tied().to(torch.bfloat16))
    posterior.save(tmp_path / "p")
    loaded = tradi.load_posterior(tmp_path / "p", Tied().to(torch.bfloat16))
    assert torch.equal(loaded.sample(2)(X), posterior.sample(2)(X))


def test_the_file_is_plain_tensors_and_json(tmp_path: Path) -> None:
    tracked().save(tmp_path / "p")
    with safe_open(tmp_path / "p", framework="pt") as file:
        about = json.loads(file.metadata()["tradi"])
        assert (about["holds"], about["version"]) == ("a posterior", 3)
        assert {"0/model/0.weight", "0/mean/0.weight", "0/variance/0.weight", "0/model/1.running_mean"} <= set(
            file.keys()
        )


def test_a_posterior_of_another_architecture_is_an_error_that_lists_both_sides(tmp_path: Path) -> None:
    tracked().save(tmp_path / "p")
    other = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))
    with pytest.raises(
        ValueError,
        match=r"the file is of another architecture: only in it.*4\.weight.*only in the model.*1\.bias|0\.weight",
    ):
        tradi.load_posterior(tmp_path / "p", other)
    save_file({"x": torch.zeros(1)}, tmp_path / "q")
    with pytest.raises(ValueError, match="not a posterior"):
        tradi.load_posterior(tmp_path / "q", other)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        tracked().save(tmp_path / "nowhere" / "p")


def test_buffers_that_share_memory_are_saved(tmp_path: Path) -> None:
    model = network()
    whole = torch.arange(8.0)
    model.register_buffer("left", whole[:4])
    model.register_buffer("right", whole[2:])
    posterior = tracked(model)
    posterior.save(tmp_path / "p")
    loaded: Any = tradi.load_posterior(tmp_path / "p", posterior.model).model
    assert torch.equal(loaded.right, whole[2:])


def test_another_covariance_keeps_what_was_tracked() -> None:
    posterior = tracked(covariance=tradi.FourierFeatures()).rescaled(2.0)
    other = posterior.with_covariance(tradi.Independent())
    assert same(posterior.mean, other.mean)
    assert other.scale == 2.0
    assert not same(posterior.noise(0), other.noise(0))
    with pytest.raises(ValueError, match="needs a covariance that was tracked"):
        posterior.with_covariance(tradi.FullCovariance())


def test_what_outputs_mean_can_be_said() -> None:
    posterior = tracked().with_likelihood(tradi.likelihoods.Classification(temperature=2.0))
    assert torch.equal(posterior.sample(2).predict(X).logits, posterior.sample(2)(X) / 2)
    with pytest.raises(TypeError, match="likelihood must be one of"):
        posterior.with_likelihood("labels")  # type: ignore[arg-type]


def test_a_nan_in_a_weight_that_is_not_tracked_is_named_too() -> None:
    posterior = tracked()
    posterior.model[1].weight.data[0] = float("nan")  # type: ignore[index]
    with pytest.raises(ValueError, match=r"1\.weight are NaN"):
        tradi.Posterior(posterior.model, posterior._layers, None)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_noise_may_be_used_again(covariance: tradi.Covariance) -> None:
    posterior = tracked(covariance=covariance)
    for i in range(3):
        noise = posterior.noise(i, seed=1)
        before = {name: tensor.clone() for name, tensor in noise.items()}
        assert same(posterior._weights.at(noise, posterior.scale), posterior.draw(i, seed=1))
        assert same(noise, before)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_drawn_piece_by_piece_is_the_mean_and_the_noise(
    dtype: torch.dtype, form: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(16, 8, 3).to(dtype).to(memory_format=form)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tradi.TRADI(model, optimizer) as tracker:
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        posterior = tracker.posterior().rescaled(2.0)
    monkeypatch.setattr("tradi.posterior.covariance.CHUNK", 100)
    for covariance in (tradi.FourierFeatures(shrinkage=0.0), tradi.FourierFeatures.released(), tradi.Independent()):
        posterior = posterior.with_covariance(covariance)
        noise, drawn = posterior.noise(1), posterior.draw(1)
        assert same(posterior._weights.at(noise, 2.0), drawn)
        for name, mean in posterior.mean.items():
            expected = (mean.double() + 2 * noise[name].double()).to(dtype)
            torch.testing.assert_close(drawn[name], expected)
            assert mean.std() > noise[name].std() > 0


def test_a_seed_means_the_same_members_in_every_version() -> None:
    """Files hold a posterior and no members: these are drawn again wherever it is loaded."""
    weights = {"layer.weight": torch.arange(-3.0, 3.0).view(2, 3)}
    (layer,) = by_layer(weights, weights, {"layer.weight": torch.full((2, 3), 0.04)})
    for covariance, expected in PINNED.items():
        found = noise_of(covariance, layer, seed=7, member=2)["layer.weight"]
        torch.testing.assert_close(found.flatten(), torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_scale_multiplies_the_noise() -> None:
    posterior = tracked()
    noise = posterior.noise(0, seed=1)
    for scale in (0.0, 0.5, 3.0):
        assert same(posterior.rescaled(scale).noise(0, seed=1), noise)
        member = dict(posterior.rescaled(scale).sample(1, seed=1)[0].named_parameters())
        for name, mean in posterior.mean.items():
            torch.testing.assert_close(member[name].detach(), mean + scale * noise[name])
    with pytest.raises(ValueError, match=r"scale must be finite and not negative, and at most 3\.4e\+38, got -1\.0"):
        posterior.rescaled(-1.0)


def test_repr_says_what_it_is() -> None:
    assert "67 weights in 2 layers" in repr(tracked())


class Copying(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("holds a socket")


def test_a_model_that_cannot_be_copied_is_an_error_that_says_why() -> None:
    with pytest.raises(TypeError, match=r"cannot be copied.*holds a socket"):
        tracked(Copying(4, 3))
    with pytest.raises(RuntimeError, match=r"cannot be copied.*holds a socket"):
        SingleNetwork(Copying(4, 3))


def test_means_and_variances_that_a_user_changes_are_copies() -> None:
    posterior = tracked()
    x = problem()[0][0]
    before = posterior.sample(2, refresh=problem())(x)
    for state in (posterior.mean, posterior.variance):
        for value in state.values():
            value.fill_(7.0)
    assert torch.equal(posterior.sample(2, refresh=problem())(x), before)
