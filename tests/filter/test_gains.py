"""Gains are functions of the step alone: closed forms against the literal recursion and the textbook filter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from filterpy.kalman import KalmanFilter

import tradi
from tests import reference
from tests.runs import lead, mlp, normal, steps
from tradi.filter.gains import Gain

GAINS: list[Gain] = [
    tradi.FadingMemory(),
    tradi.FadingMemory(1.0),
    tradi.FadingMemory(1 / 10.5),
    tradi.StationaryNoise(1e-4, 10.0),
    tradi.StationaryNoise(5e-5, 10.0),
    tradi.StationaryNoise(2.0, 0.5),
]


def scalar_filter(x: float, P: float, q: float, r: float) -> KalmanFilter:
    """The textbook filter of one number: x' = x + u + noise(q), z = x + noise(r)."""
    kf = KalmanFilter(dim_x=1, dim_z=1, dim_u=1)
    kf.x, kf.P = np.array([[x]]), np.array([[P]])
    kf.F = kf.H = kf.B = np.eye(1)
    kf.Q, kf.R = np.array([[q]]), np.array([[r]])
    return kf


@pytest.mark.parametrize(("q", "r"), [(1e-4, 10.0), (5e-5, 10.0), (1e-12, 1.0), (1.0, 1.0), (1e6, 1.0)])
def test_closed_form_is_the_recursion(q: float, r: float) -> None:
    closed, literal = tradi.StationaryNoise(q, r), reference.Gain(q, r)
    worst = max(abs(closed(t - 1, t) / literal.next() - 1) for t in range(1, 100_001))
    assert worst < 1e-10


@pytest.mark.parametrize("gain", GAINS, ids=repr)
def test_a_gain_over_several_steps_compounds(gain: Gain) -> None:
    for since, step in ((0, 1), (0, 7), (1, 2), (3, 4), (3, 19), (999, 1002), (5000, 5100)):
        left = math.prod(1 - gain(i - 1, i) for i in range(since + 1, step + 1))
        # Each of the up to 100 factors is rounded to 1e-16 of 1, whatever remains of 1 - left.
        assert gain(since, step) == pytest.approx(1 - left, rel=0, abs=1e-13)
        assert 0 < gain(since, step) <= 1


def test_fading_memory_forgets_the_start_and_remembers_a_share_of_the_run() -> None:
    gain = tradi.FadingMemory(1 / 3)
    assert gain(0, 1) == 1
    for t in (10, 1000, 10**6):
        assert gain(t - 1, t) == pytest.approx(1 - ((t - 1) / t) ** 3, rel=1e-9)
        assert gain(t - 1, t) == pytest.approx(3 / t, rel=2 / t)
        assert gain(t // 2, t) == pytest.approx(1 - 0.5**3)


@pytest.mark.parametrize(("q", "memory"), [(1e-4, 316), (5e-5, 447)])
def test_steady_state_is_the_square_root_of_the_noise_ratio(q: float, memory: int) -> None:
    steady = tradi.StationaryNoise(q, 10.0)(99_999, 100_000)
    ratio = math.sqrt(q / 10)
    # The fixed point of Q = (Q + rho) / (Q + rho + 1) is sqrt(rho) (sqrt(1 + rho / 4) - sqrt(rho) / 2).
    assert steady == pytest.approx(ratio * (math.sqrt(1 + ratio**2 / 4) - ratio / 2), rel=1e-10)
    assert steady == pytest.approx(ratio, rel=ratio)
    assert 1 / steady == pytest.approx(memory, abs=1)


def test_presets_have_the_released_constants() -> None:
    for kalman in (tradi.Kalman.paper(), tradi.Kalman.released()):
        assert kalman.mean_gain == tradi.StationaryNoise(1e-4, 10.0)
        assert kalman.variance_gain == tradi.StationaryNoise(5e-5, 10.0)
        assert kalman.every == 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tradi.FadingMemory(1.1), r"share must be above 0 and at most 1 .*, got 1\.1"),
        (lambda: tradi.FadingMemory(0.0), r"share must be above 0 and at most 1 .*, got 0\.0"),
        (lambda: tradi.FadingMemory(math.nan), r"share must be above 0 and at most 1 .*, got nan"),
        (lambda: tradi.StationaryNoise(0.0, 1.0), r"process .* must be positive and finite, got 0\.0"),
        (lambda: tradi.StationaryNoise(1.0, -2.0), r"observation .* must be positive and finite, got -2\.0"),
        (lambda: tradi.StationaryNoise(math.nan, 1.0), r"process .* must be positive and finite, got nan"),
    ],
)
def test_bad_options_say_what_where_and_which(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_mean_is_filterpys_with_the_descent_step_as_control_input(preset: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    tracker = tradi.TRADI(model, optimizer, kalman=getattr(tradi.Kalman, preset)())
    filters = [scalar_filter(0.0, 0.0, 1e-4, 10.0) for _ in range(8)]
    for _ in steps(model, optimizer, 60):
        weight = model[3].weight
        assert isinstance(weight, torch.nn.Parameter)
        assert weight.grad is not None
        rows = zip(filters, weight.flatten().tolist(), weight.grad.flatten().tolist(), strict=True)
        for kf, w, g in rows:
            kf.predict(u=np.array([[-0.1 * g]]))
            kf.update(w)
        mean = tracker.posterior().mean["3.weight"].flatten().tolist()
        assert mean == pytest.approx([kf.x.item() for kf in filters], rel=1e-11)


def test_variance_of_algorithm_one_is_filterpys_with_its_growth_as_control_input() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman.paper())
    filters = [scalar_filter(2 / 4, 0.0, 5e-5, 10.0) for _ in range(8)]
    for _ in steps(model, optimizer, 60):
        weight, posterior = model[3].weight, tracker.posterior()
        assert isinstance(weight, torch.nn.Parameter)
        assert weight.grad is not None
        means = posterior.mean["3.weight"].flatten().tolist()  # linear in the variance once the mean is known
        rows = zip(filters, weight.flatten().tolist(), weight.grad.flatten().tolist(), means, strict=True)
        for kf, w, g, mu in rows:
            kf.predict(u=np.array([[0.1**2 * (g - mu) ** 2]]))
            kf.update(w**2 - mu**2)
        variance = posterior.variance["3.weight"].flatten().tolist()
        assert variance == pytest.approx([kf.x.item() for kf in filters], rel=1e-11)


@pytest.mark.parametrize("g", [1.0, 3.0, 10.5])
def test_fading_memory_is_filterpys_gain_for_a_fading_process_noise(g: float) -> None:
    r = 0.7  # only q / r matters
    gain = tradi.FadingMemory(1 / g)
    path = normal(300, 1).cumsum(0)
    kf = scalar_filter(path[0].item(), r, math.nan, r)  # Q(1) = 1: the first observation is the estimate, P = r
    for t in range(2, 301):
        x = 1 / (t - 1)
        kf.predict(Q=r * ((1 + x) ** g + (1 - x) ** g - 2))
        kf.update(path[t - 1].item())
        # q is a difference that cancels to x^2: its rounding, 1e-16 / x^2 at worst, is what remains.
        assert kf.K.item() == pytest.approx(gain(t - 1, t), rel=1e-10)
        assert kf.P.item() == pytest.approx(r * gain(t - 1, t), rel=1e-10)
    kalman = tradi.Kalman(mean_gain=gain, variance_gain=gain)
    mean = lead({"layer.w": path}, kalman).posterior().mean["layer.w"]
    assert mean.item() == pytest.approx(kf.x.item(), rel=1e-10)
