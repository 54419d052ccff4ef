"""What follows from the paper's equations and the released constants, each seen happening."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import tradi
from tests import reference
from tests.runs import lead, mlp, normal, steps
from tradi.filter.kalman import State


def forgotten(q: float, count: int) -> float:
    """What is left of the start after so many steps: the product of all 1 - Q, by the literal recursion."""
    gain = reference.Gain(q)
    return math.prod(1 - gain.next() for _ in range(count))


def test_mean_driven_by_the_true_displacement_from_the_first_weights_is_an_identity() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    weight = model[0].weight
    assert isinstance(weight, torch.nn.Parameter)
    state = State(weight.detach().flatten().clone(), torch.zeros(12, dtype=torch.float64))
    for _ in steps(model, optimizer, 40):
        assert weight.grad is not None
        state.update(tradi.Kalman.paper(), weight.detach().flatten(), weight.grad.flatten(), 0.1)
        # 40 roundings of numbers below 1
        torch.testing.assert_close(state.mean, weight.detach().flatten(), rtol=0, atol=1e-14)


def test_mean_started_at_zero_only_nears_the_weights_geometrically() -> None:
    model = mlp()
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI.paper(model, optimizer)
    for t in steps(model, optimizer, 40):
        mean = tracker.posterior().mean
        for name, p in model.named_parameters():  # the error is w(0) times the product of all 1 - Q
            expected = first[name] * forgotten(1e-4, t)
            torch.testing.assert_close(p.detach() - mean[name], expected, rtol=1e-10, atol=1e-13)


def test_paper_variance_goes_negative_in_the_state_and_sampling_survives_it() -> None:
    # Weights that grow and then fall: the mean lags above them, and w^2 - mu^2 < 0 wears the small He variance down.
    down = torch.cat([torch.full((3000, 1), 5.0), torch.full((3000, 1), 0.1)]).double() * torch.ones(8)
    up = torch.linspace(0, 1, 6000, dtype=torch.float64)[:, None] * torch.ones(8)
    path = torch.cat([down, up], 1).view(-1, 2, 8)
    tracker = lead({"layer.weight": path}, tradi.Kalman.paper(), tradi.FourierFeatures.paper())
    posterior = tracker.posterior()
    variance = posterior.variance["layer.weight"]
    assert (variance[0] < 0).all()
    assert (variance[1] > 0).all()
    noise = posterior.noise(0)["layer.weight"]
    assert (noise[0] == 0).all()
    assert noise[1].abs().min() > 0
    member = dict(posterior.sample(2)[1].named_parameters())["layer.weight"]
    assert member.isfinite().all()
    assert torch.equal(member[0], posterior.mean["layer.weight"][0])


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_run_of_600_steps_has_not_forgotten_the_he_start_but_the_default_has(preset: str) -> None:
    path = torch.full((600, 5, 13), 0.2, dtype=torch.float64)
    kept = forgotten(5e-5, 600)
    assert kept > 0.45
    start = reference.start(preset, (5, 13), 13)[0]
    posterior = lead({"layer.weight": path}, getattr(tradi.Kalman, preset)()).posterior()
    assert (posterior.variance["layer.weight"] > 0.45 * start).all()
    mean = 0.2 * (1 - forgotten(1e-4, 600))  # still on its way from 0
    torch.testing.assert_close(posterior.mean["layer.weight"], torch.full((5, 13), mean).double(), rtol=1e-6, atol=0)
    assert mean < 0.75 * 0.2
    default = lead({"layer.weight": path}).posterior()
    assert default.variance["layer.weight"].max() < 1e-30  # the weights did not move
    torch.testing.assert_close(default.mean["layer.weight"], path[0], rtol=1e-14, atol=0)


def unit_noise(covariance: tradi.Covariance, members: int) -> Tensor:
    """Noise of a layer, in units of each weight's own std: (members, weights)."""
    spread = torch.linspace(0.01, 0.1, 50, dtype=torch.float64)  # each weight's own std
    path = 0.05 * normal(50, seed=3) + spread * normal(100, 50, seed=4)
    path[-1] = 0.05 * normal(50, seed=5)  # the final weights: a layer's usual spread
    posterior = lead({"layer.weight": path}, covariance=covariance).posterior()
    std = posterior.variance["layer.weight"].sqrt()
    return torch.stack([posterior.noise(i)["layer.weight"] / std for i in range(members)])


def correlations(noise: Tensor) -> Tensor:
    """Of every two weights, over members."""
    between = torch.corrcoef(noise.T)
    return between[~torch.eye(len(between), dtype=torch.bool)]


def test_shared_phases_move_a_layer_together_each_weight_by_its_own_std() -> None:
    noise = unit_noise(tradi.FourierFeatures.paper(), 400)
    # Weights d = 0.07 apart correlate by exp(-d^2 / 2): the noise inside a layer differs by d of its size.
    assert correlations(noise).min() > 0.95
    inside = noise.std(1).square().mean().sqrt()
    assert inside < 0.1 * noise.square().mean().sqrt()


def test_released_phases_move_the_weights_of_a_layer_almost_independently() -> None:
    noise = unit_noise(tradi.FourierFeatures.released(), 400)
    off = correlations(noise)
    assert off.square().mean().sqrt() < 1.2 / math.sqrt(400)  # what independent noise shows in 400 members
    assert off.abs().max() < 5 / math.sqrt(400)
    assert noise.square().mean().item() == pytest.approx(1, rel=0.1)
