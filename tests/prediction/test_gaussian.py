"""Mixtures of Gaussians against torch.distributions, float64 sums and sampling, near and far."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

import tradi
from tests.runs import normal

SHAPES = [(1, 1), (5, 7), (3, 4, 2, 3)]


def mixture(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tradi.GaussianMixture:
    return tradi.GaussianMixture(normal(*shape, seed=1).to(dtype), normal(*shape, seed=2).exp().to(dtype))


def log_density(means: Tensor, variances: Tensor, y: Tensor) -> Tensor:
    """By scipy, one member at a time, in float64."""
    m, v, at = means.double().numpy(), variances.double().numpy(), y.double().numpy()
    terms = [stats.norm.logpdf(at, m[j], np.sqrt(v[j])) for j in range(len(m))]
    return torch.from_numpy(np.asarray(special.logsumexp(terms, axis=0) - np.log(len(m))))


# float32: log densities are sums of numbers of order 1 to 10, each kept to 6e-8.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_density_agrees_with_scipy_and_with_torchs_mixture(
    shape: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    prediction = mixture(shape, dtype)
    y = 3 * normal(*shape[1:], seed=3).to(dtype)
    expected = log_density(prediction.means, prediction.variances, y)
    for found in (prediction.log_prob(y), prediction.distribution.log_prob(y)):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moments_are_the_mixtures(shape: tuple[int, ...]) -> None:
    prediction = mixture(shape)
    torch.testing.assert_close(prediction.mean, prediction.distribution.mean)
    torch.testing.assert_close(prediction.variance, prediction.distribution.variance)
    m, v = prediction.means.numpy(), prediction.variances.numpy()
    np.testing.assert_allclose(prediction.aleatoric, v.mean(0), rtol=1e-13)
    np.testing.assert_allclose(prediction.epistemic, (m**2).mean(0) - m.mean(0) ** 2, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(prediction.variance, (v + m**2).mean(0) - m.mean(0) ** 2, rtol=1e-12)
    assert prediction.mean.shape == prediction.distribution.batch_shape == shape[1:]


def test_total_variance_is_that_of_draws() -> None:
    prediction = mixture((6, 3))
    torch.manual_seed(0)
    draws = prediction.distribution.sample(torch.Size((200_000,)))
    spread = prediction.variance.sqrt()
    assert ((draws.mean(0) - prediction.mean).abs() < 5 * spread / math.sqrt(200_000)).all()
    squares = (draws - prediction.mean) ** 2
    assert ((squares.mean(0) - prediction.variance).abs() < 5 * squares.std(0) / math.sqrt(200_000)).all()


def test_moment_matched_gaussian_has_the_mixtures_moments_and_one_member_is_itself() -> None:
    prediction = mixture((4, 5))
    torch.testing.assert_close(prediction.moment_matched.mean, prediction.mean)
    torch.testing.assert_close(prediction.moment_matched.variance, prediction.variance)
    alone, y = mixture((1, 5)), normal(5, seed=3)
    torch.testing.assert_close(alone.moment_matched.log_prob(y), alone.log_prob(y))
    assert (alone.epistemic == 0).all()


def test_the_order_of_members_is_irrelevant_and_members_that_agree_have_no_epistemic_part() -> None:
    prediction, y = mixture((6, 4)), normal(4, seed=3)
    other = tradi.GaussianMixture(prediction.means.flip(0), prediction.variances.flip(0))
    for name in ("mean", "aleatoric", "epistemic", "variance"):
        torch.testing.assert_close(getattr(prediction, name), getattr(other, name))
    torch.testing.assert_close(prediction.log_prob(y), other.log_prob(y))
    same = tradi.GaussianMixture(prediction.means[:1].expand(8, 4), prediction.variances[:1].expand(8, 4))
    assert same.epistemic.max() < 1e-30
    torch.testing.assert_close(same.log_prob(y), log_density(same.means, same.variances, y))


@pytest.mark.parametrize("variance", [1e-30, 1e-10, 1.0, 1e30])
@pytest.mark.parametrize("sigmas", [0.0, 1.0, 1e3, 1e10])
def test_extreme_variances_and_values_far_away(variance: float, sigmas: float) -> None:
    means = torch.tensor([[0.0], [0.0]])
    variances = torch.tensor([[variance], [variance * 4]])
    y = torch.tensor([sigmas * math.sqrt(variance)])
    found = tradi.GaussianMixture(means, variances).log_prob(y)
    assert found.isfinite().all()
    # z^2 / 2 doubles the rounding of y, of the root and of the quotient.
    torch.testing.assert_close(found.double(), log_density(means, variances, y), rtol=1e-6, atol=1e-5)


def test_far_from_one_member_the_other_decides() -> None:
    prediction = tradi.GaussianMixture(torch.tensor([[0.0], [1e19]]), torch.tensor([[1e-30], [1.0]]))
    # (1e19)^2 / 1e-30 is past float32: the first member says 0, the second is at its mean.
    expected = -0.5 * math.log(2 * math.pi) - math.log(2)
    assert prediction.log_prob(torch.tensor([1e19])).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    means, variances = normal(5, 4, seed=1).to(dtype), normal(5, 4, seed=2).exp().to(dtype)
    y = torch.tensor([0.0, 3.0, -40.0, 300.0], dtype=dtype)  # (300 / std)^2 is past float16
    found = tradi.GaussianMixture(means, variances).log_prob(y)
    assert found.dtype == torch.float32
    apart = tradi.GaussianMixture(torch.tensor([[-300.0], [300.0]], dtype=dtype), torch.ones(2, 1, dtype=dtype))
    assert apart.variance.item() == pytest.approx(apart.means[1, 0].item() ** 2 + 1)  # past float16
    torch.testing.assert_close(found.double(), log_density(means, variances, y), rtol=2e-6, atol=2e-5)


ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("means", "variances", "message"),
    [
        (ONES, torch.ones(2, 4), r"means and variances must have one shape, got \(2, 3\) and \(2, 4\)"),
        (ONES, torch.ones(2, 3, 1), r"must have one shape"),
        (torch.ones(3), torch.ones(3), r"means must be \(members, batch, \.\.\.\), not empty, got shape \(3,\)"),
        (torch.ones(0, 3), torch.ones(0, 3), r"not empty, got shape \(0, 3\)"),
        (torch.ones(3, 0), torch.ones(3, 0), r"not empty, got shape \(3, 0\)"),
        (ONES * math.nan, ONES, r"means and variances must be finite"),
        (ONES, ONES * math.nan, r"means and variances must be finite"),
        (ONES * math.inf, ONES, r"means and variances must be finite"),
        (ONES, ONES * math.inf, r"means and variances must be finite"),
        (ONES, torch.tensor([[1.0, 1.0, -0.5]] * 2), r"variances must be positive, got a minimum of -0\.5.*softplus"),
        (ONES, torch.tensor([[1.0, 1.0, 0.0]] * 2), r"variances must be positive, got a minimum of 0\.0"),
    ],
)
def test_mixture_refuses(means: Tensor, variances: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tradi.GaussianMixture(means, variances)


@pytest.mark.parametrize("shape", [(3, 1), (1,), (2, 3)], ids=str)
def test_values_must_fit_the_prediction(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"y must have shape \(3,\), got"):
        tradi.GaussianMixture(ONES, ONES).log_prob(torch.zeros(shape))


def test_it_shows_its_size_and_both_kinds_of_spread() -> None:
    prediction = tradi.GaussianMixture(torch.tensor([[[0.0]], [[2.0]]]), torch.tensor([[[4.0]], [[4.0]]]))
    assert repr(prediction) == (
        "GaussianMixture(1 x 1 numbers, 2 members; mean standard deviation: aleatoric 2, epistemic 1)"
    )
