from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.ensemble.test_ensemble import tracked
from tests.runs import noise_of, normal
from tests.training import Custom, problem, same, snapshot
from tradi.likelihoods import Classification
from tradi.posterior import fisher as room
from tradi.posterior.fisher import fisher
from tradi.posterior.layers import Layer, by_layer

X, Y = problem(samples=24, batch=24, seed=3)[0]


def layers_of(model: nn.Module) -> list[Layer]:
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return by_layer(weights, weights, {name: torch.ones_like(w) for name, w in weights.items()})


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def sums_of_squares(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Sample by sample, as the definition says."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for row, label in zip(x, y, strict=True):
        model.zero_grad()
        model(row).log_softmax(0)[label].backward()
        for name, p in model.named_parameters():
            assert p.grad is not None
            total[name] += p.grad**2
    model.zero_grad()
    return total


def in_samples(total: dict[str, Tensor], names: list[str], samples: int) -> dict[str, Tensor]:
    row = torch.cat([total[name].flatten() for name in names])
    return {name: samples * total[name] / row.mean() for name in names}


def test_batches_of_one_sample_give_the_squared_gradients_exactly() -> None:
    model = mlp()
    total = sums_of_squares(model, X.double(), Y)
    found = fisher(model, layers_of(model), list(zip(X.double().split(1), Y.split(1), strict=True)), Classification())
    for known, names in zip(found, (["0.weight", "0.bias"], ["2.weight", "2.bias"]), strict=True):
        for name, expected in in_samples(total, names, 24).items():
            torch.testing.assert_close(known[name], expected, rtol=1e-6, atol=0)  # in float32


def test_random_signs_give_them_from_whole_batches_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SQUARES", 2000)
    model = mlp()
    total = sums_of_squares(model, X.double(), Y)
    first, second = fisher(model, layers_of(model), [(X.double(), Y)], Classification())
    for name, expected in (in_samples(total, ["2.weight", "2.bias"], 24) | in_samples(total, ["0.weight"], 24)).items():
        if name == "0.weight":  # its layer's average has the bias in it
            expected = in_samples(total, ["0.weight", "0.bias"], 24)[name]
        # A square of a sum with random signs varies by no more than sqrt 2 of itself: 5 standard errors of the mean.
        torch.testing.assert_close((first | second)[name], expected, rtol=5 * math.sqrt(2 / 2000), atol=0)


def test_void_targets_are_left_out() -> None:
    model, half = mlp(), Y.clone()
    half[12:] = -100
    data = [(X.double(), half)]
    kept = [(X.double()[:12], Y[:12])]
    everything, part = (fisher(model, layers_of(model), d, Classification()) for d in (data, kept))
    assert all(same(a, b) for a, b in zip(everything, part, strict=True))


def test_a_constant_input_before_batchnorm_says_nothing_and_a_batch_of_one_sample_is_no_error() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    x = X.double().clone()
    x[:, 2] = -0.42
    first = fisher(model, layers_of(model)[:1], [(x, Y)], Classification())[0]["0.weight"]
    assert first[:, 2].max() < 1e-20 < first[:, 0].min()
    fisher(model, layers_of(model), [(x[:1], Y[:1])], Classification())


def test_where_nothing_is_known_all_weights_are_alike() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Unused()
    used, unused = fisher(model, layers_of(model), [(X, Y)], Classification())
    assert used["used.weight"].std() > 1
    assert unused["unused.weight"].tolist() == [[24.0, 24.0], [24.0, 24.0]]
    constant = fisher(model, layers_of(model), [(X, Y)], Custom(lambda _, y: torch.zeros(len(y))))
    assert constant[0]["used.bias"].tolist() == [24.0, 24.0, 24.0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_model_stays_as_it_is_in_any_mode(mode: type[torch.no_grad]) -> None:
    posterior = tracked()
    before = snapshot(posterior.model)
    with mode():
        data = [(x.clone(), y.clone()) for x, y in problem(seed=1)]
        found = fisher(posterior.model, posterior._layers, data, Classification())
    assert same(before, snapshot(posterior.model))
    assert not posterior.model.training
    assert all(value.isfinite().all() for known in found for value in known.values())


def test_noise_goes_where_data_says_nothing() -> None:
    weights = {"layer.weight": normal(2, 500)}
    known = {"layer.weight": torch.cat([torch.zeros(1, 500), torch.full((1, 500), 300.0)]).double()}
    (layer,) = by_layer(weights, weights, {"layer.weight": torch.full((2, 500), 0.04).double()}, fisher=known)
    for kind in (tradi.FourierFeatures, tradi.Independent):
        plain = noise_of(kind(shrinkage=1.0, prior_samples=None), layer)["layer.weight"]
        informed = noise_of(kind(shrinkage=1.0, prior_samples=50.0), layer)["layer.weight"]
        # (n + m) / (I + m) with n = 150, the average of the two.
        torch.testing.assert_close(informed[0], plain[0] * math.sqrt(200 / 50), rtol=1e-12, atol=0)
        torch.testing.assert_close(informed[1], plain[1] * math.sqrt(200 / 350), rtol=1e-12, atol=0)


def test_choose_scale_measures_it_for_covariances_that_ask_and_files_keep_it(tmp_path: Path) -> None:
    posterior = tracked(covariance=tradi.FourierFeatures())
    chosen = posterior.choose_scale(problem(seed=1), refresh=problem(), members=2)
    plain = posterior.with_covariance(tradi.FourierFeatures(prior_samples=None))
    untold = plain.choose_scale(problem(seed=1), refresh=problem(), members=2)
    assert same(untold.noise(0), plain.noise(0))
    assert same(posterior.noise(0), plain.noise(0))  # not before the search
    assert not same(chosen.noise(0), plain.noise(0))
    chosen.save(tmp_path / "posterior.safetensors")
    loaded = tradi.load_posterior(tmp_path / "posterior.safetensors", posterior.model)
    assert same(loaded.draw(3), chosen.draw(3))


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_a_prior_that_is_none_is_an_error(wrong: float) -> None:
    with pytest.raises(ValueError, match="prior_samples must be positive and finite"):
        tradi.FourierFeatures(prior_samples=wrong)


@pytest.mark.parametrize("wrong", [math.nan, -math.inf, math.inf])
def test_a_sample_whose_likelihood_is_not_finite_says_nothing(wrong: float) -> None:
    def log_prob(output: Tensor, target: Tensor) -> Tensor:
        each = output.log_softmax(1).gather(1, target[:, None])[:, 0]
        return torch.where(target == 2, each + wrong, each)  # NaN: a target that does not count

    model = mlp()
    single = list(zip(X.double().split(1), Y.split(1), strict=True))
    found = fisher(model, layers_of(model), single, Custom(log_prob))
    kept = [(x, y) for x, y in single if y.item() != 2]
    assert 0 < len(kept) < len(single)
    expected = fisher(model, layers_of(model), kept, Custom(log_prob))
    for known, other in zip(found, expected, strict=True):
        for name, value in known.items():
            # As many samples are counted in each pass, over however many passes.
            torch.testing.assert_close(value / value.mean(), other[name] / other[name].mean(), rtol=1e-6, atol=0)
            assert value.isfinite().all()
