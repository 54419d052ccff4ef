"""What must hold of the filter whatever the numbers are: symmetries, scaling laws, no drift, proper covariances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import tradi
from tests.runs import PRESETS, lead
from tradi.filter.equations import AlgorithmOne, Equations, Gains, ReleasedCode, Trajectory
from tradi.filter.kalman import Observation, State, observe

PROPERTY = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
EQUATIONS: list[Equations] = [Trajectory(), AlgorithmOne(), ReleasedCode()]
SHARES = st.floats(1e-6, 1.0)
SEEDS = st.integers(0, 2**31)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def follow(equations: Equations, path: Tensor, slopes: Tensor, gains: Gains, joint: bool = False) -> State:
    """The state after a path of weights, (steps, weights), with gradients, each step with the same gains."""
    mean, second = equations.start(path[0], 4, path.shape[1])
    state = State(mean, second.diag() if joint else second)
    for weight, slope in zip(path, slopes, strict=True):
        needed = slope if equations.needs_gradient else None
        observe(equations, [Observation(state.mean, state.second, weight, needed, 0.1)], gains)
    return state


@pytest.mark.parametrize("equations", EQUATIONS, ids=lambda e: type(e).__name__)
@PROPERTY
@given(seed=SEEDS, mean=SHARES, variance=SHARES, joint=st.booleans())
def test_the_order_of_weights_does_not_matter(
    equations: Equations, seed: int, mean: float, variance: float, joint: bool
) -> None:
    path, slopes, gains = normal(seed, 5, 7), normal(seed + 1, 5, 7), Gains(mean, variance)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    one, other = (follow(equations, path[:, i], slopes[:, i], gains, joint) for i in (torch.arange(7), order))
    assert torch.equal(one.mean[order], other.mean)
    moved = one.second[order][:, order] if joint else one.second[order]
    torch.testing.assert_close(moved, other.second, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("preset", PRESETS)
@PROPERTY
@given(seed=SEEDS, cuts=st.lists(st.integers(1, 11), unique=True, max_size=4))
def test_how_weights_are_grouped_in_parameters_does_not_matter(preset: str, seed: int, cuts: list[int]) -> None:
    path = normal(seed, 6, 12)
    whole = lead({"layer.weight": path}, PRESETS[preset]).posterior()
    sizes = np.diff([0, *sorted(cuts), 12]).tolist()
    pieces = {f"layer.w{i}": piece for i, piece in enumerate(path.split(sizes, 1))}
    parts = lead(pieces, PRESETS[preset]).posterior()
    assert torch.equal(torch.cat([parts.mean[name] for name in pieces]), whole.mean["layer.weight"])
    if preset != "paper" and preset != "released":  # whose start depends on a weight's shape
        assert torch.equal(torch.cat([parts.variance[name] for name in pieces]), whole.variance["layer.weight"])


@PROPERTY
@given(seed=SEEDS, power=st.integers(-60, 60), mean=SHARES, variance=SHARES)
def test_the_default_scales_with_the_weights(seed: int, power: int, mean: float, variance: float) -> None:
    # Powers of 2 are exact: c w has mean c mu and variance c^2 sigma^2, bit for bit.
    path, gains, c = normal(seed, 6, 5), Gains(mean, variance), 2.0**power
    one, scaled = (follow(Trajectory(), scale * path, path, gains) for scale in (1.0, c))
    assert torch.equal(scaled.mean, c * one.mean)
    assert torch.equal(scaled.second, c * c * one.second)


@PROPERTY
@given(seed=SEEDS, shift=st.floats(-1e3, 1e3), mean=SHARES, variance=SHARES)
def test_the_default_moves_with_the_weights(seed: int, shift: float, mean: float, variance: float) -> None:
    path, gains = normal(seed, 6, 5), Gains(mean, variance)
    one, moved = (follow(Trajectory(), path + by, path, gains) for by in (0.0, shift))
    torch.testing.assert_close(moved.mean, one.mean + shift, rtol=0, atol=1e-15 * (1 + abs(shift)) * 20)
    torch.testing.assert_close(moved.second, one.second, rtol=1e-9, atol=1e-12 * (1 + abs(shift)))


@PROPERTY
@given(seed=SEEDS, mean=SHARES, variance=SHARES)
def test_a_joint_covariance_is_one_and_its_diagonal_is_the_variance(seed: int, mean: float, variance: float) -> None:
    path, gains = normal(seed, 9, 6), Gains(mean, variance)
    joint, each = follow(Trajectory(), path, path, gains, joint=True), follow(Trajectory(), path, path, gains)
    largest = joint.second.diagonal().max().item()
    torch.testing.assert_close(joint.second, joint.second.T, rtol=1e-14, atol=1e-15 * largest)
    assert torch.linalg.eigvalsh(joint.second).min().item() >= -1e-12 * max(largest, 1e-300)
    torch.testing.assert_close(joint.second.diagonal(), each.second, rtol=1e-12, atol=1e-300)
    assert (each.second >= 0).all()


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e-160, 1e-30, 1.0, 1e30, 1e150])
def test_denormal_and_huge_weights_give_finite_means_and_variances_that_are_not_negative(size: float) -> None:
    path = size * normal(0, 20, 4)
    state = follow(Trajectory(), path, path, Gains(0.1, 0.1))
    assert state.mean.isfinite().all()
    assert state.second.isfinite().all()
    assert (state.second >= 0).all()
    assert (state.mean.abs() <= path.abs().amax(0) * (1 + 1e-12)).all()


GAINS: dict[str, Any] = {
    "fading": tradi.FadingMemory(),
    "whole run": tradi.FadingMemory(1.0),
    "released mean": tradi.StationaryNoise(1e-4, 10.0),
    "released variance": tradi.StationaryNoise(5e-5, 10.0),
}


@pytest.mark.parametrize("name", GAINS)
def test_gains_do_not_drift_over_a_million_steps(name: str) -> None:
    """What is left of a start at step 1000, by a million factors and by one call."""
    gain, start, end = GAINS[name], 1000, 1_000_000
    steps = range(start + 1, end + 1)
    logs = [math.log1p(-gain(t - 1, t)) for t in steps]
    assert all(log < 0 for log in logs)
    left = math.fsum(logs)
    at_once = gain(start, end)
    # 1 - Q is rounded to 1e-16 at each of a million steps, at random: a thousand of them, and ten times that at most.
    assert math.log1p(-at_once) == pytest.approx(left, rel=1e-9) if at_once < 1 else left < -30


@pytest.mark.parametrize("size", [1e-250, 1e-12, 1.0, 1e12, 1e250])
@pytest.mark.parametrize("ratio", [1e-50, 1e-12, 1.0, 1e12, 1e50])
def test_gains_are_shares_for_any_noise(size: float, ratio: float) -> None:
    gain = tradi.StationaryNoise(size * ratio, size)
    for since, step in ((0, 1), (1, 2), (10**6, 10**6 + 1), (10**12, 10**12 + 7)):
        assert 0 < gain(since, step) <= 1
