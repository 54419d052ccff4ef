"""Runs of a hundred steps and of millions: no tuning, no stagnation, and passing over steps keeps the memory."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import tradi
from tests import reference
from tests.runs import lead, normal
from tradi.filter.gains import RESOLUTION
from tradi.filter.kalman import State

NOTHING = torch.empty(0)


def shares(steps: int, g: float = 10.0) -> Tensor:
    """What step t counts in the estimate: t^g - (t-1)^g, of a sum of 1."""
    edges = (torch.arange(steps + 1, dtype=torch.float64) / steps) ** g
    return edges.diff()


def exact(path: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and variance of a whole path, (steps, weights), in float64."""
    c = shares(len(path))[:, None]
    mean = (c * path).sum(0)
    return mean, (c * (path - mean) ** 2).sum(0)


def follow(path: Tensor, kalman: tradi.Kalman, dtype: torch.dtype = torch.float32) -> State:
    """The state after a path of one block of weights."""
    path = path.to(dtype)
    state = State(torch.zeros_like(path[0]), torch.zeros_like(path[0]))
    for weight in path:
        state.update(kalman, weight, weight, 0.0)
    return state


def standard_error(steps: int, g: float = 10.0) -> float:
    """Of the mean of independent observations of unit variance: the root of the sum of squared shares.

    The sum is g^2 / (2g - 1) / steps. Past RESOLUTION steps a look at t stands for t / RESOLUTION steps at most,
    and the sum is at most g / 2 / RESOLUTION, which is smaller than what is returned here.
    """
    return math.sqrt(g**2 / (2 * g - 1) / min(steps, RESOLUTION))


@pytest.mark.parametrize("every", [2, 7, 50])
def test_looking_every_k_steps_gives_each_look_the_steps_since_the_last(every: int) -> None:
    path = normal(203, 3).cumsum(0)
    posterior = lead({"layer.w": path}, tradi.Kalman(every=every)).posterior()
    looks = reference.Trajectory()
    for t in [1, *range(every, 204, every)]:
        looks.look(t, path[t - 1].tolist())
    assert posterior.mean["layer.w"].tolist() == pytest.approx(looks.mean, rel=1e-11)
    assert posterior.variance["layer.w"].tolist() == pytest.approx(looks.variance, rel=1e-11)


@pytest.mark.parametrize("gain", [tradi.FadingMemory(), tradi.StationaryNoise(1e-3, 1.0)], ids=repr)
def test_looking_every_k_steps_keeps_the_memory_in_steps(gain: tradi.FadingMemory) -> None:
    t = torch.arange(900, dtype=torch.float64)[:, None]
    path = torch.sin(2 * math.pi * t / 600)
    each, tenth = (
        follow(path, tradi.Kalman(mean_gain=gain, variance_gain=gain, every=k), torch.float64) for k in (1, 10)
    )
    # A look stands for the 9 steps before it too, on average 4.5 steps in which the signal moves by 2 pi / 600 at
    # most. Without compounding the memory would be ten times longer and the estimates unlike.
    assert abs(each.mean - tenth.mean).item() < 4.5 * 2 * math.pi / 600
    assert tenth.second.item() == pytest.approx(each.second.item(), rel=0.1)


def test_thinned_estimate_of_a_smooth_path_is_the_exact_weighted_one() -> None:
    t = torch.linspace(0, 1, 20_000, dtype=torch.float64)[:, None]
    path = torch.cat([t, torch.sin(9 * t), (-5 * t).exp()], 1)
    state = follow(path, tradi.Kalman(), torch.float64)
    mean, variance = exact(path)
    # Past RESOLUTION steps each look stands for up to step / RESOLUTION steps before it: a shift of at most one part
    # in RESOLUTION of the time scale t, on which the second path moves 9 times its amplitude.
    torch.testing.assert_close(state.mean, mean, rtol=0, atol=9 / RESOLUTION)
    torch.testing.assert_close(state.second, variance, rtol=2e-2, atol=0)
    assert 20_000 - state.observed < 20_000 / RESOLUTION


def test_thinned_estimate_of_a_noisy_path_errs_as_much_as_its_looks_allow() -> None:
    steps, weights = 20_000, 500
    path = 0.3 + 0.1 * normal(steps, weights)
    state = follow(path, tradi.Kalman())
    mean, variance = exact(path)
    error = standard_error(steps)
    assert (state.mean - mean).double().std().item() < 1.1 * 0.1 * error  # 1.1: a std of 500 is known to 3%
    # E = (1 - sum of squared shares) of the truth; averaged over weights, each known to sqrt(2) errors.
    assert state.second.mean().item() == pytest.approx(0.01, rel=error**2 + 4 * math.sqrt(2 / weights) * error)
    assert (state.second / variance - 1).double().std().item() < 1.1 * math.sqrt(2) * error


@pytest.mark.parametrize("steps", [100, 100_000])
def test_default_needs_no_tuning_for_short_or_long_runs(steps: int) -> None:
    weights, truth, std = 400, 0.5, 0.02
    kalman = tradi.Kalman()
    state = State(torch.zeros(weights), torch.zeros(weights))
    generator = torch.Generator().manual_seed(steps)
    seen = truth + std * torch.randn(weights, generator=generator)
    for t in range(1, steps + 1):
        if kalman.observes(t):  # draw only what is looked at
            seen = truth + std * torch.randn(weights, generator=generator)
        state.update(kalman, seen, seen, 0.0)
    error = standard_error(steps)
    known = 4 / math.sqrt(weights)  # four sigmas of an average over the weights
    assert state.mean.mean().item() == pytest.approx(truth, abs=std * error * known)
    assert (state.mean - truth).square().mean().sqrt().item() < std * error * (1 + known)
    share = error**2  # the sum of squared shares: what the mean takes from the variance
    assert state.second.mean().item() == pytest.approx(
        std**2 * (1 - share), rel=math.sqrt(2) * error * known + share / 2
    )


def test_default_of_100_steps_by_way_of_the_public_interface() -> None:
    path = 0.5 + 0.02 * normal(100, 40, 10, dtype=torch.float32)
    posterior = lead({"layer.weight": path}).posterior()
    mean, variance = exact(path.double().flatten(1))
    torch.testing.assert_close(posterior.mean["layer.weight"].flatten().double(), mean, rtol=1e-6, atol=0)
    # d = w - mu keeps 1e-7 of w, and w is 25 times its std: 5e-6 of d^2 at each look.
    torch.testing.assert_close(posterior.variance["layer.weight"].flatten().double(), variance, rtol=5e-5, atol=0)


@pytest.mark.parametrize("start", [10**6, 10**7])
def test_float32_follows_a_small_move_after_millions_of_steps(start: int) -> None:
    kalman = tradi.Kalman()
    state = State(torch.ones(4), torch.zeros(4), step=start, observed=start)
    moved, end = torch.full((4,), 1.01), start + start // 5
    while (following := next(t for t in range(state.step + 1, end + 2) if kalman.observes(t) or t > end)) <= end:
        state.step = following - 1  # jump over the steps at which nothing happens
        state.update(kalman, moved, moved, 0.0)
    left = (start / state.observed) ** 10
    # A gain of 10 / t would add 1e-7 of 1 or less, which rounds to nothing: the mean would stay at 1 for ever.
    torch.testing.assert_close(state.mean, torch.full((4,), 1.01 - 0.01 * left), rtol=0, atol=0.01 * 0.01)
    expected = 0.01**2 * left * (1 - left)  # two values, seen with shares left and 1 - left
    torch.testing.assert_close(state.second, torch.full((4,), expected), rtol=0.02, atol=0)


@pytest.mark.parametrize("around", [1, 999, 2500, 10**5, 10**6, 3 * 10**6, 10**8])
def test_looks_are_never_further_apart_than_the_resolution_allows(around: int) -> None:
    kalman = tradi.Kalman()
    longest = max(1, around // RESOLUTION) + 1
    looks = [t for t in range(around, around + 3 * longest + 1) if kalman.observes(t)]
    gaps = [b - a for a, b in itertools.pairwise(looks)]
    assert looks[0] - around <= longest
    assert all(longest // 3 <= gap <= longest for gap in gaps)  # and not much closer: that is what keeps the gain up


@pytest.mark.parametrize("every", [1, 3, 4, 50])
@pytest.mark.parametrize(("step", "stride"), [(1, 1), (2 * RESOLUTION, 2), (8 * RESOLUTION, 8), (33 * RESOLUTION, 32)])
def test_looks_are_as_far_apart_as_both_the_option_and_the_resolution_say(every: int, step: int, stride: int) -> None:
    kalman = tradi.Kalman(every=every)
    apart = max(every, stride)
    looks = [t for t in range(step + 1, step + RESOLUTION) if kalman.observes(t)]
    assert looks == [t for t in range(step + 1, step + RESOLUTION) if t % apart == 0]
    assert len(looks) > 3
