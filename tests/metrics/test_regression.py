from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from sklearn.metrics import root_mean_squared_error
from torch import Tensor

import tradi
from tradi import metrics
from tradi.metrics.types import Mixture


def mixture(means: Tensor, variances: Tensor) -> Mixture:
    def log_prob(y: Tensor) -> Tensor:
        each = torch.distributions.Normal(means, variances.sqrt()).log_prob(y)
        return cast(Tensor, each.logsumexp(0) - math.log(len(means)))

    epistemic = means.var(0, correction=0)
    mean, variance = means.mean(0), variances.mean(0) + epistemic
    found = SimpleNamespace(
        means=means, variances=variances, mean=mean, variance=variance, epistemic=epistemic, log_prob=log_prob
    )
    return cast(Mixture, found)


def sample(members: int, n: int, seed: int = 0) -> tuple[Mixture, Tensor]:
    g = torch.Generator().manual_seed(seed)
    means = torch.randn(members, n, generator=g, dtype=torch.float64) * 2
    variances = torch.rand(members, n, generator=g, dtype=torch.float64) * 2 + 0.05
    return mixture(means, variances), torch.randn(n, generator=g, dtype=torch.float64) * 3


def crps_by_integration(prediction: Mixture, y: Tensor) -> float:
    """The definition, the integral of (F(x) - [x >= y])^2."""
    found = []
    for i, target in enumerate(y.tolist()):
        means, sds = prediction.means[:, i].numpy(), prediction.variances[:, i].sqrt().numpy()

        def cdf(x: float, means: np.ndarray = means, sds: np.ndarray = sds) -> float:
            return float(stats.norm.cdf(x, means, sds).mean())

        low = min(target, float((means - 12 * sds).min()))
        high = max(target, float((means + 12 * sds).max()))
        below = integrate.quad(lambda x, cdf=cdf: cdf(x) ** 2, low, target, limit=200)[0]
        above = integrate.quad(lambda x, cdf=cdf: (1 - cdf(x)) ** 2, target, high, limit=200)[0]
        found.append(below + above)
    return float(np.mean(found))


def test_rmse() -> None:
    prediction, y = sample(3, 50)
    assert metrics.rmse(prediction.mean, y) == pytest.approx(root_mean_squared_error(y, prediction.mean))
    assert metrics.rmse(y, y) == 0


def test_likelihoods() -> None:
    prediction, y = sample(4, 50)
    sds = prediction.variances.sqrt()
    densities = stats.norm.pdf(y, prediction.means, sds).mean(0)
    assert metrics.mixture_nll(prediction, y) == pytest.approx(-np.log(densities).mean())
    moments = stats.norm.logpdf(y, prediction.mean, prediction.variance.sqrt())
    assert metrics.gaussian_nll(prediction.mean, prediction.variance, y) == pytest.approx(-moments.mean())


def test_one_member_is_a_gaussian() -> None:
    prediction, y = sample(1, 50)
    mean, variance = prediction.means[0], prediction.variances[0]
    assert metrics.mixture_nll(prediction, y) == pytest.approx(metrics.gaussian_nll(mean, variance, y))
    assert metrics.mixture_crps(prediction, y) == pytest.approx(metrics.gaussian_crps(mean, variance, y))


@pytest.mark.parametrize("members", [1, 3])
def test_crps_is_the_integral(members: int) -> None:
    prediction, y = sample(members, 12)
    assert metrics.mixture_crps(prediction, y) == pytest.approx(crps_by_integration(prediction, y), abs=1e-6)


def test_crps_far_from_the_target_is_the_distance() -> None:
    mean, tiny = torch.tensor([0.0, 1e6]), torch.tensor([1e-12, 1e-12])
    y = torch.tensor([5.0, 0.0])
    assert metrics.gaussian_crps(mean, tiny, y) == pytest.approx((5 + 1e6) / 2, rel=1e-6)
    apart = mixture(torch.tensor([[0.0], [2.0]]), torch.full((2, 1), 1e-12))
    # Two points at 0 and 2: the CRPS at 1 is E|X - 1| - E|X - X'| / 2 = 1 - 1 / 2.
    assert metrics.mixture_crps(apart, torch.tensor([1.0])) == pytest.approx(0.5, abs=1e-5)


def test_coverage_is_that_of_the_central_interval() -> None:
    prediction, y = sample(3, 60)
    levels = torch.tensor([0.5, 0.9])
    inside = np.zeros((2, len(y)), dtype=bool)
    for i, target in enumerate(y.tolist()):
        means, sds = prediction.means[:, i].numpy(), prediction.variances[:, i].sqrt().numpy()
        for j, level in enumerate(levels.tolist()):
            low, high = (
                optimize.brentq(lambda x, q=q, m=means, s=sds: stats.norm.cdf(x, m, s).mean() - q, -60, 60)
                for q in ((1 - level) / 2, (1 + level) / 2)
            )
            inside[j, i] = low <= target <= high
    found = metrics.coverage(prediction, y, levels)
    assert found.tolist() == pytest.approx(inside.mean(1).tolist())
    assert 0 < found[0] < found[1] < 1


def test_coverage_of_a_calibrated_prediction_is_the_level() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.randn(20_000, generator=g)
    levels = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0])
    found = metrics.coverage(mixture(torch.zeros(2, 20_000), torch.ones(2, 20_000)), y, levels)
    # Five standard errors of a share at 20,000 samples are at most 0.018.
    torch.testing.assert_close(found, levels.double(), atol=0.018, rtol=0)
    assert found[-1] == 1


def test_bad_arguments_are_named() -> None:
    y, ones = torch.zeros(3), torch.ones(3)
    prediction = mixture(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"mean \(2,\) and y \(3,\)"):
        metrics.rmse(y[:2], y)
    with pytest.raises(ValueError, match="y must be finite, got nan"):
        metrics.rmse(y, y * math.nan)
    with pytest.raises(ValueError, match=r"variance must be finite and positive, got 0\.0 \(3 of 3"):
        metrics.gaussian_nll(y, y, y)
    with pytest.raises(ValueError, match="variance must be finite and positive, got nan"):
        metrics.gaussian_crps(y, ones * math.nan, y)
    with pytest.raises(ValueError, match="variance must be finite and positive, got inf"):
        metrics.gaussian_nll(y, ones * math.inf, y)
    with pytest.raises(ValueError, match="mean must not be empty"):
        metrics.rmse(y[:0], y[:0])
    with pytest.raises(ValueError, match=r"levels must be in \[0, 1\], got 95\.0"):
        metrics.coverage(prediction, y, torch.tensor([95.0]))
    for metric in (metrics.mixture_nll, metrics.mixture_crps):
        with pytest.raises(ValueError, match=r"mean \(3,\) and y \(2,\)"):
            metric(prediction, y[:2])
        with pytest.raises(ValueError, match="y must be finite, got inf"):
            metric(prediction, y + math.inf)


def test_an_interval_includes_its_ends_and_one_level_will_do() -> None:
    prediction = tradi.GaussianMixture(torch.zeros(1, 1), torch.ones(1, 1))
    assert metrics.coverage(prediction, torch.zeros(1), torch.tensor(0.0)).tolist() == [1.0]


def test_targets_may_require_gradients() -> None:
    assert metrics.rmse(torch.zeros(2), torch.ones(2, requires_grad=True)) == 1
