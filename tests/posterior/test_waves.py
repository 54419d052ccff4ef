"""A table of a sum of cosines is the sum of cosines, to the rounding of float32."""

from __future__ import annotations

import math

import pytest
import torch

import tradi
from tests.runs import noise_of, normal
from tradi.posterior import covariance as covariance_module
from tradi.posterior.layers import Layer
from tradi.posterior.waves import ROUNDING, Table, Wave

CPU = torch.device("cpu")


def wave(seed: int, length: float, features: int = 10) -> Wave:
    generator = torch.Generator().manual_seed(seed)
    theta, m = (torch.randn(features, generator=generator) for _ in range(2))
    phi = 2 * math.pi * torch.rand(features, generator=generator)
    return Wave((theta.double() / length).numpy(), phi.numpy(), m.numpy())


@pytest.mark.parametrize("features", [1, 10, 64])
@pytest.mark.parametrize("spread", [1e-25, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 3.0, -1000.0])  # in units of the spread
@pytest.mark.parametrize("seed", range(4))
def test_a_table_is_the_function_to_float32_rounding(seed: int, offset: float, spread: float, features: int) -> None:
    function = wave(seed, 0.3 * spread, features)
    values = (spread * (normal(20_000, seed=seed) + offset)).float()
    table = function.table(values.min().item(), values.max().item(), CPU)
    exact = function(values.double())
    amplitude = abs(function.m).sum()
    # One rounding for the remainder, one for the entries, and two for adding three terms up.
    assert (table(values) - exact).abs().max().item() < 4 * ROUNDING * amplitude
    # The formula itself in float32 is less exact than that: its angles are rounded too.
    assert (table(values) - exact).square().mean() <= 1.1 * (function(values) - exact).square().mean()


def test_the_ends_of_the_range_are_in_the_table() -> None:
    function = wave(0, 0.5)
    for low, high in ((-1.0, 1.0), (0.3, 0.3), (-0.7, -0.1), (0.1, 40.0)):
        ends = torch.tensor([low, high])
        table = function.table(ends[0].item(), ends[1].item(), CPU)
        torch.testing.assert_close(table(ends).double(), function(ends.double()), rtol=0, atol=1e-6)


def test_entries_lie_a_power_of_two_apart_and_more_would_be_more_than_needed() -> None:
    for seed in range(20):
        function = wave(seed, 0.3)
        assert math.log2(function.spacing).is_integer()
        pairs = zip(function.theta.tolist(), function.m.tolist(), strict=True)
        remainder = (function.spacing / 2) ** 3 / 6 * sum(abs(m) * abs(theta) ** 3 for theta, m in pairs)
        allowed = ROUNDING * sum(map(abs, function.m.tolist()))
        assert remainder <= allowed < 8 * remainder * (1 + 1e-9)


def layer_of(size: int, dtype: torch.dtype = torch.float32) -> Layer:
    weight = {"l.weight": 0.02 * normal(size, seed=1).to(dtype), "l.bias": 0.02 * normal(30, seed=2).to(dtype)}
    variance = {name: 1e-4 * normal(*w.shape, seed=3).to(dtype).abs() for name, w in weight.items()}
    return Layer("l", weight, weight, variance)


@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 1.0])
def test_noise_of_a_large_layer_is_read_off_a_table_and_is_the_formulas(
    shrinkage: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    table = Wave.table

    def spy(self: Wave, lowest: float, highest: float, device: torch.device) -> Table:
        built.append(self)
        return table(self, lowest, highest, device)

    monkeypatch.setattr(Wave, "table", spy)
    covariance = tradi.FourierFeatures(shrinkage=shrinkage)
    layer = layer_of(70_001)
    fast = noise_of(covariance, layer)
    assert len(built) == 1
    exact = noise_of(covariance, layer_of(70_001, torch.float64))  # in float64 there is no table
    noise_of(tradi.FourierFeatures(length_scale=1e-5, absolute=True), layer)  # a table of it would be the larger part
    assert len(built) == 1
    monkeypatch.setattr(covariance_module, "DENSE", math.inf)
    direct = noise_of(covariance, layer)
    noise_of(covariance, layer_of(100))
    noise_of(tradi.FourierFeatures.released(), layer)  # nor is there one function of a layer to tabulate
    assert len(built) == 1
    for name, variance in layer.variance.items():
        std = variance.clamp_min(layer.mean_variance).sqrt().max().item()
        torch.testing.assert_close(fast[name], direct[name], rtol=0, atol=1e-5 * std)
        torch.testing.assert_close(fast[name].double(), exact[name], rtol=0, atol=1e-5 * std)
