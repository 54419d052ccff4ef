from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate, optimize, stats
from sklearn.linear_model import BayesianRidge
from torch import Tensor

from tradi.posterior.linear_regression import TAKEN, Sums, fit, highest, most_probable


def rows(n: int, P: int, noise: float = 0.3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, targets, relative noise variances and the weights behind them."""
    generator = torch.Generator().manual_seed(seed)
    phi = torch.randn(n, P, generator=generator, dtype=torch.float64) * torch.logspace(-1, 1, P, dtype=torch.float64)
    v = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5
    theta = torch.randn(P, generator=generator, dtype=torch.float64)
    y = phi @ theta + noise * v.sqrt() * torch.randn(n, generator=generator, dtype=torch.float64)
    return phi, y, v, theta


@pytest.mark.parametrize(("n", "P"), [(50, 4), (5, 4), (3, 7), (1, 3)])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 30.0])
def test_mean_covariance_and_noise_are_those_of_dense_formulas(n: int, P: int, kappa: float) -> None:
    phi, y, v, _ = rows(n, P)
    found = fit(Sums.of(phi, y, v), kappa)
    # As a Gaussian process: the kernel is phi phi^T / kappa + diag(v), in units of tau.
    K = phi @ phi.T / kappa + v.diag()
    mean = phi.T @ torch.linalg.solve(K, y) / kappa
    covariance = torch.eye(P, dtype=torch.float64) / kappa - phi.T @ torch.linalg.solve(K, phi) / kappa**2
    torch.testing.assert_close(found.mean, mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(torch.cholesky_inverse(found.factor), covariance, rtol=1e-6, atol=1e-8)
    assert found.noise == pytest.approx((y @ torch.linalg.solve(K, y)).item() / n, rel=1e-6)
    assert found.rows == n


@pytest.mark.parametrize(("n", "P"), [(30, 4), (3, 6)])
def test_log_evidence_is_the_marginal_likelihood_of_a_gaussian_process_but_for_a_constant(n: int, P: int) -> None:
    phi, y, v, _ = rows(n, P)

    def reference(kappa: float) -> float:
        """log N(y; 0, tau K) at the most probable tau, by scipy."""
        K = (phi @ phi.T / kappa + v.diag()).numpy()
        tau = (y.numpy() @ torch.linalg.solve(torch.from_numpy(K), y).numpy()) / n
        return float(stats.multivariate_normal(cov=tau * K).logpdf(y.numpy()))

    sums = Sums.of(phi, y, v)
    constants = [fit(sums, kappa).log_evidence - reference(kappa) for kappa in (1e-4, 1e-2, 1.0, 1e2, 1e4)]
    assert constants == pytest.approx([constants[0]] * 5, abs=1e-6)
    assert constants[0] == pytest.approx(n / 2 * math.log(2 * math.pi * math.e) + v.log().sum().item() / 2, abs=1e-6)


def test_log_evidence_is_the_integral_of_likelihood_times_prior() -> None:
    phi, y, v, _ = rows(6, 1)
    sums = Sums.of(phi, y, v)

    def integral(kappa: float) -> float:
        tau = fit(sums, kappa).noise

        def density(theta: float) -> float:
            residual = (y - phi[:, 0] * theta) / (tau * v).sqrt()
            likelihood = (-residual.square() / 2 - (2 * math.pi * tau * v).log() / 2).sum().exp().item()
            return likelihood * float(stats.norm(0, math.sqrt(tau / kappa)).pdf(theta))

        centre = fit(sums, kappa).mean.item()
        return math.log(integrate.quad(density, centre - 30, centre + 30, points=[centre], limit=200)[0])

    ours, theirs = ([f(kappa) for kappa in (0.01, 0.1, 1.0)] for f in (lambda k: fit(sums, k).log_evidence, integral))
    assert [a - ours[0] for a in ours] == pytest.approx([b - theirs[0] for b in theirs], abs=1e-6)


def test_the_most_probable_precision_is_that_of_bayesian_ridge_and_of_a_fine_search() -> None:
    phi, y, v, _ = rows(200, 5)
    flat, ones = phi / v.sqrt()[:, None], torch.ones(200)
    sums = Sums.of(flat, y / v.sqrt(), ones)
    found = most_probable(sums)
    ridge = BayesianRidge(fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0, max_iter=10_000, tol=1e-12)
    ridge.fit(flat.numpy(), (y / v.sqrt()).numpy())
    # Golden sections of sixteen decades: 37 nats times 0.618^24, a thousandth.
    assert found == pytest.approx(ridge.lambda_ / ridge.alpha_, rel=2e-3)
    best = fit(sums, found)
    torch.testing.assert_close(best.mean, torch.from_numpy(ridge.coef_), rtol=1e-4, atol=1e-6)
    assert best.noise == pytest.approx(1 / ridge.alpha_, rel=1e-4)
    exact = optimize.minimize_scalar(
        lambda k: -fit(sums, math.exp(k)).log_evidence, bounds=(-9, 9), method="bounded", options={"xatol": 1e-9}
    )
    assert math.log(found) == pytest.approx(exact.x, abs=2e-3)
    assert math.log(most_probable(sums, near=found * 300)) == pytest.approx(exact.x, abs=0.2)  # a shorter search


@pytest.mark.parametrize("near", [None, 1e-9])
def test_weights_that_could_fit_every_row_leave_a_tenth_of_them_to_the_noise(near: float | None) -> None:
    phi, y, v, _ = rows(12, 30, noise=0.0)
    sums = Sums.of(phi, y, v)
    kappa = most_probable(sums, near)
    # The rows that weights take up are the trace of the matrix that makes fitted targets of targets.
    flat = phi / v.sqrt()[:, None]
    hat = flat @ torch.linalg.solve(flat.T @ flat + kappa * torch.eye(30, dtype=torch.float64), flat.T)
    taken = hat.trace().item()
    assert taken < 1.001 * TAKEN * 12
    if near is not None:  # where all of them would be taken
        assert taken == pytest.approx(TAKEN * 12, rel=1e-3)
    assert fit(sums, kappa).noise > 1e-6 * y.var().item()
    many = Sums.of(*rows(200, 30)[:3])
    exact = optimize.minimize_scalar(
        lambda k: -fit(many, math.exp(k)).log_evidence, bounds=(-9, 9), method="bounded", options={"xatol": 1e-9}
    )
    assert math.log(most_probable(many)) == pytest.approx(exact.x, abs=2e-3)  # as ever, where rows are left


def test_weights_that_the_rows_know_nothing_of_keep_their_prior() -> None:
    phi, y, v, _ = rows(40, 3)
    phi[:, 2] = 0
    found = fit(Sums.of(phi, y, v), 4.0)
    assert found.mean[2] == 0
    assert torch.cholesky_inverse(found.factor)[2].tolist() == [0, 0, 0.25]


def test_draws_have_the_mean_and_the_covariance() -> None:
    phi, y, v, _ = rows(20, 3)
    found = fit(Sums.of(phi, y, v), 1.0)
    n = 20_000
    z = torch.randn(n, 3, generator=torch.Generator().manual_seed(1))
    draws = torch.stack([found.draw(one, 2.5) for one in z])
    covariance = 2.5 * torch.cholesky_inverse(found.factor)
    deviation = covariance.diagonal().sqrt()
    # Standard errors: a deviation over sqrt n of the mean; of a covariance s_i s_j sqrt((1 + r^2) / n). Five of them.
    assert ((draws.mean(0) - found.mean).abs() < 5 * deviation / math.sqrt(n)).all()
    error = (deviation[:, None] * deviation).square().add(covariance.square()).div(n).sqrt()
    assert ((draws.T.cov() - covariance).abs() < 5 * error).all()


def test_sums_add_up_and_may_count_rows_several_times() -> None:
    phi, y, v, _ = rows(30, 4)
    whole = Sums.of(phi, y, v)
    parts = Sums.of(phi[:7], y[:7], v[:7]) + Sums.of(phi[7:], y[7:], v[7:])
    thrice, repeated = whole.times(3.0), Sums.of(phi.repeat(3, 1), y.repeat(3), v.repeat(3))
    for a, b in ((whole, parts), (thrice, repeated)):
        torch.testing.assert_close(a.precision, b.precision)
        torch.testing.assert_close(a.target, b.target)
        assert a.square == pytest.approx(b.square)
        assert a.rows == b.rows


def test_a_perfect_fit_leaves_noise_above_0() -> None:
    phi, _, v, theta = rows(5, 5, seed=3)
    for kappa in (1e-12, most_probable(Sums.of(phi, phi @ theta, v))):
        found = fit(Sums.of(phi, phi @ theta, v), kappa)
        assert found.noise > 0
        assert math.isfinite(found.log_evidence)
        if kappa == 1e-12:
            torch.testing.assert_close(found.mean, theta, rtol=1e-2, atol=1e-2)


def test_targets_of_nothing_but_zeros_and_features_of_nothing_but_zeros_are_no_error() -> None:
    phi, y, v, _ = rows(9, 2)
    for sums in (Sums.of(phi, 0 * y, v), Sums.of(0 * phi, y, v), Sums.of(0 * phi, 0 * y, v)):
        kappa = most_probable(sums)
        assert kappa > 0
        assert torch.equal(fit(sums, kappa).mean, torch.zeros(2))


@pytest.mark.parametrize("peak", [-9.9, -2.0, 0.0, 3.3, 9.9])
def test_golden_sections_find_a_peak(peak: float) -> None:
    # An interval of 20, and one in 0.618^-24 of it is left.
    assert highest(lambda x: -(abs(x - peak) ** 1.5), -10.0, 10.0) == pytest.approx(peak, abs=20 * 0.6181**24)
    assert highest(lambda x: x, -10.0, 10.0) == pytest.approx(10, abs=1e-3)
