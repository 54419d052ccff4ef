"""The default equations, by either kernel, for any gains and weights; test_kalman.py has all of them, in training."""

from __future__ import annotations

import pytest
import torch

import tradi
from tests import reference
from tests.filter.test_kalman import EXACT, MEAN_FLOAT32, close, same
from tests.runs import lead, normal
from tradi.filter.equations import Gains
from tradi.filter.kalman import Observation, observe


class Given(tradi.FadingMemory):
    """Gains as listed."""

    def __init__(self, *gains: float) -> None:
        self.gains = gains

    def __call__(self, since: int, step: int) -> float:
        del since
        return self.gains[step - 1]


@pytest.mark.parametrize("covariance", [tradi.FourierFeatures(), tradi.FullCovariance()], ids=["each", "joint"])
def test_default_equations_hold_for_any_gains(covariance: tradi.Covariance) -> None:
    # A mean that starts anew while the variance does not, both anew, one that stands still, and ordinary ones.
    gains = [(1.0, 0.1), (0.3, 0.2), (1.0, 0.4), (0.5, 0.0), (1.0, 1.0), (0.2, 0.7), (1e-3, 1e-5)]
    path = normal(len(gains), 5)
    q_mean, q_variance = (Given(*column) for column in zip(*gains, strict=True))
    kalman = tradi.Kalman(mean_gain=q_mean, variance_gain=q_variance)
    for t in range(1, len(gains) + 1):
        mean, variance = path[0], torch.zeros(5, dtype=path.dtype)
        for weight, (q, r) in zip(path[:t], gains[:t], strict=True):
            d = weight - mean
            mean, variance = mean + q * d, (1 - r) * variance + r * (1 - q) * d**2
        found = lead({"layer.w": path[:t]}, kalman, covariance).posterior()
        close(found.mean["layer.w"], mean, EXACT)
        close(found.variance["layer.w"], variance, EXACT)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e12), (torch.float64, 1e60)], ids=str)
def test_weights_far_beyond_any_network(dtype: torch.dtype, size: float) -> None:
    path = size * normal(8, 20, dtype=dtype)
    posterior = lead({"layer.w": path}).posterior()
    filter_ = reference.Trajectory()
    for weights in path:
        filter_.step(weights.tolist(), [], [])
    tolerance = EXACT[0] if dtype == torch.float64 else MEAN_FLOAT32[0]
    same(posterior.mean["layer.w"] / size, [m / size for m in filter_.mean], (tolerance, 0.1 * tolerance))
    variance = [v / size / size for v in filter_.variance]
    same(posterior.variance["layer.w"] / size / size, variance, (10 * tolerance, 0.1 * tolerance))


@pytest.mark.parametrize(("q_mean", "q_variance"), [(1.0, 0.5), (0.5, 1e-9)])
def test_a_variance_that_all_but_stands_still_takes_no_more_from_a_leap(q_mean: float, q_variance: float) -> None:
    kalman = tradi.Kalman(mean_gain=Given(1.0, 0.5, 0.5, q_mean), variance_gain=Given(1.0, 0.5, 0.5, q_variance))
    path = torch.tensor([0.0, 1e-8, 0.0, 1.0], dtype=torch.float64)[:, None].expand(4, 32)
    before, after = (lead({"layer.w": path[:t]}, kalman).posterior() for t in (3, 4))
    d = 1 - before.mean["layer.w"]
    variance = before.variance["layer.w"]
    assert (variance > 0).all()
    assert (variance < 1e-16).all()
    expected = (1 - q_variance) * variance + q_variance * (1 - q_mean) * d**2
    torch.testing.assert_close(after.variance["layer.w"], expected, rtol=EXACT[0], atol=0)


def test_a_look_does_not_count_as_a_change_of_the_weights() -> None:
    weight = torch.randn(5)
    before = weight._version
    observe(tradi.Trajectory(), [Observation(torch.zeros(5), torch.zeros(5), weight, None, 0.0)], Gains(0.1, 0.1))
    assert weight._version == before
