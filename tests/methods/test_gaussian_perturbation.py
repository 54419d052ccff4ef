from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.training import Custom, network, problem, train
from tradi.methods import GaussianPerturbation, SingleNetwork


def test_noise_is_white_with_the_given_deviation() -> None:
    model = nn.Linear(100, 100)
    members: Any = list(GaussianPerturbation(model, 0.05).sample(20))
    noise = torch.stack([member.weight - model.weight for member in members]).detach()
    # 200,000 numbers: the standard error of their standard deviation is 0.16%
    assert abs(noise.std().item() / 0.05 - 1) < 0.01
    assert abs(noise.mean().item()) < 0.0006


def test_all_trainable_weights_are_perturbed_unless_told_otherwise() -> None:
    model = network()
    model[0].requires_grad_(False)
    assert list(GaussianPerturbation(model).mean) == ["1.weight", "1.bias", "4.weight", "4.bias"]
    assert list(GaussianPerturbation(model, select=nn.Linear).mean) == ["4.weight", "4.bias"]
    with pytest.raises(ValueError, match="no trainable weight"):
        GaussianPerturbation(model, select="0")


def test_the_deviation_can_be_chosen_on_validation_data() -> None:
    model = network()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 40)
    method = GaussianPerturbation(model)
    chosen = method.choose_scale(problem(seed=1), refresh=problem(), tolerance=0)
    assert chosen.scale_search is not None
    nll = chosen.scale_search.nll
    assert chosen.scale > 0
    assert all(nll[chosen.scale] < nll[scale] for scale in nll if scale < chosen.scale)
    with pytest.raises(ValueError, match=r"std must be positive and finite, got -0\.1"):
        GaussianPerturbation(model, -0.1)


def test_the_search_starts_from_the_given_deviation() -> None:
    model: Any = nn.Linear(4, 3)
    x, y = problem(samples=1000, batch=1000)[0]

    def close_to_the_model(out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return -((out - model(x)).detach() * 1e4).square().mean(1) + 0 * labels

    # Outputs move by about 2 std, and (2 std 1e4)^2 = 0.005 at a std of 3.5e-6: far below the default of 0.01.
    chosen = GaussianPerturbation(model, 1e-5).choose_scale([(x, y)], likelihood=Custom(close_to_the_model))
    assert 1e-6 < chosen.scale * 1e-5 < 1e-5


def test_weights_that_cannot_be_perturbed_are_an_error() -> None:
    with pytest.raises(TypeError, match="cannot be tracked"):
        GaussianPerturbation(nn.Linear(2, 2, dtype=torch.complex64))


def test_a_single_network_has_no_noise_to_scale() -> None:
    with pytest.raises(ValueError, match="no noise to scale"):
        SingleNetwork(network()).choose_scale(problem(), refresh=problem())
