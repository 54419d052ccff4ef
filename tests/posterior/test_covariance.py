"""Members' noise has the covariance it is said to have: against dense matrices, within sampling error."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

import tradi
from tests.runs import lead, normal
from tradi.posterior.layers import Layer

MEMBERS = 3000
SIGMAS = 5  # of 100 entries, five sigmas are passed by chance once in 20,000 seeds


def posterior_of(covariance: tradi.Covariance, kalman: tradi.Kalman | None = None) -> tradi.Posterior:
    """Two layers, "a" of a weight and a bias, "b" of a weight; stds from 0.02 to 0.4, final weights of spread 1."""
    weight = 0.2 * normal(60, 2, 3, seed=1) * torch.linspace(0.1, 2, 6).view(2, 3)
    paths = {"a.weight": weight, "a.bias": 0.1 * normal(60, 2, seed=2), "b.weight": 0.3 * normal(60, 3, seed=3)}
    for i, path in enumerate(paths.values()):
        path[-1] = normal(*path[-1].shape, seed=10 + i)
    return lead(paths, kalman, covariance).posterior()


def draws(posterior: tradi.Posterior, members: int = MEMBERS, seed: int = 0) -> Tensor:
    """Noise of many members, (members, weights of layer a, then of b)."""
    rows = [posterior.noise(i, seed) for i in range(members)]
    return torch.stack([flat(row) for row in rows])


def flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([values[name].flatten() for name in ("a.weight", "a.bias", "b.weight")])


def check_covariance(noise: Tensor, expected: Tensor) -> None:
    """Each entry of the sampled covariance (of known mean 0) is its expectation, to the products' standard error."""
    products = noise[:, :, None] * noise[:, None, :]
    error = products.std(0) / math.sqrt(len(noise))
    off = (products.mean(0) - expected).abs()
    assert (off <= SIGMAS * error).all(), f"{(off / error).max():.1f} standard errors off"
    assert (off / error).square().mean() < 2  # 1 on average: many entries each a little off would show here
    # and the error itself is small enough to tell right from wrong
    scale = expected.diagonal().sqrt()
    assert (error / scale / scale[:, None]).max() < 0.05
    assert (noise.mean(0).abs() <= SIGMAS * noise.std(0) / math.sqrt(len(noise))).all()


def layers(values: Tensor) -> tuple[Tensor, Tensor]:
    return values[:8], values[8:]


def dense(posterior: tradi.Posterior, covariance: tradi.FourierFeatures) -> Tensor:
    """(v v^T) o K, K the RBF Gram matrix of the final weights; different layers independent."""
    weights = flat(dict(posterior.model.named_parameters())).detach()
    variances = flat(posterior.variance).clamp_min(0)
    blocks = []
    for w, v in zip(layers(weights), layers(variances), strict=True):
        ell = covariance.length_scale * (1.0 if covariance.absolute else w.std(correction=0))
        pooled = (1 - covariance.shrinkage) * v + covariance.shrinkage * v.mean()
        K = torch.exp(-((w[:, None] - w[None, :]) ** 2) / (2 * ell**2))
        blocks.append(pooled.sqrt()[:, None] * K * pooled.sqrt())
    return torch.block_diag(*blocks)


@pytest.mark.parametrize(
    "covariance",
    [
        tradi.FourierFeatures(),
        tradi.FourierFeatures.paper(),
        tradi.FourierFeatures(length_scale=0.5, shrinkage=0.0),
        tradi.FourierFeatures(length_scale=0.4, absolute=True, shrinkage=0.5),
        tradi.FourierFeatures(features=1),
        tradi.FourierFeatures(features=64),
    ],
    ids=repr,
)
def test_members_covary_as_the_dense_rbf_matrix_whatever_the_number_of_features(
    covariance: tradi.FourierFeatures,
) -> None:
    posterior = posterior_of(covariance)
    check_covariance(draws(posterior), dense(posterior, covariance))


def test_presets_are_the_papers_and_the_released_scripts() -> None:
    paper, released = tradi.FourierFeatures.paper(), tradi.FourierFeatures.released()
    for preset in (paper, released):
        assert (preset.features, preset.length_scale, preset.absolute, preset.shrinkage) == (10, 1.0, True, 0.0)
    assert paper.shared_phases
    assert not released.shared_phases


@pytest.mark.parametrize(
    "covariance", [tradi.FourierFeatures.released(), tradi.Independent(), tradi.Independent(0.5)], ids=repr
)
def test_released_phases_and_independent_noise_have_a_diagonal_covariance(covariance: tradi.Independent) -> None:
    posterior = posterior_of(covariance)
    variances = [
        (1 - covariance.shrinkage) * v + covariance.shrinkage * v.mean() for v in layers(flat(posterior.variance))
    ]
    check_covariance(draws(posterior), torch.cat(variances).diag())


@pytest.mark.parametrize("kalman", [tradi.Kalman(), tradi.Kalman.released()], ids=["default", "released"])
def test_full_covariance_is_the_tracked_matrix(kalman: tradi.Kalman) -> None:
    posterior = posterior_of(tradi.FullCovariance(), kalman)
    tracked = torch.block_diag(*[matrix for layer in posterior._layers for matrix in layer.covariance.values()])
    torch.testing.assert_close(tracked.diagonal(), flat(posterior.variance), rtol=0, atol=0)
    check_covariance(draws(posterior), tracked)


def test_full_covariance_clamps_negative_eigenvalues_only() -> None:
    matrix = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)  # eigenvalues 3 and -1
    layer = Layer("l", {"l.w": torch.zeros(2)}, {}, {}, {("l.w",): matrix})
    root = layer.roots[("l.w",)]
    torch.testing.assert_close(root @ root.T, torch.full((2, 2), 1.5, dtype=torch.float64))


@pytest.mark.parametrize("shrinkage", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", [tradi.FourierFeatures, tradi.Independent])
def test_shrinkage_moves_each_variance_towards_its_layers_mean_and_clamps_first(
    kind: type[tradi.Independent], shrinkage: float
) -> None:
    kalman = tradi.Kalman.paper()
    base, shrunk = posterior_of(kind(shrinkage=0.0), kalman), posterior_of(kind(shrinkage=shrinkage), kalman)
    for posterior in (base, shrunk):
        for layer in posterior._layers:  # as the paper's equations may leave them
            next(iter(layer.variance.values())).view(-1)[0] = -0.5
    variances = [v.clamp_min(0) for v in layers(flat(base.variance))]
    wanted = torch.cat([(1 - shrinkage) * v + shrinkage * v.mean() for v in variances])
    one, other = flat(base.noise(3)), flat(shrunk.noise(3))
    positive = torch.cat(variances) > 0
    assert (one[~positive] == 0).all()
    ratio = (wanted / torch.cat(variances)).sqrt()[positive]
    torch.testing.assert_close(other[positive], one[positive] * ratio, rtol=1e-12, atol=0)
    assert ((other[~positive] == 0) == (shrinkage == 0)).all()
    assert flat(shrunk.variance).min() == -0.5  # clamped when sampling, never in the state


def test_scale_multiplies_the_noise_and_the_mean_network_is_scale_0() -> None:
    posterior = posterior_of(tradi.FourierFeatures())
    for scale in (0.0, 0.5, 3.0):
        member = dict(posterior.rescaled(scale).sample(3)[2].named_parameters())
        for name, noise in posterior.noise(2).items():
            torch.testing.assert_close(member[name].detach(), posterior.mean[name] + scale * noise)


def test_layers_share_no_theta_no_phase_and_no_m() -> None:
    # Layers of one pattern of values: 0 makes a shared phase visible, and pairs make a shared theta so.
    values = torch.tensor([0.0, 2.0, -2.0, 5.0], dtype=torch.float64)
    paths = {name: values + 0.1 * normal(20, 4, seed=i) for i, name in enumerate(("a.w", "b.w"))}
    for path in paths.values():
        path[-1] = values
    posterior = lead(paths, covariance=tradi.FourierFeatures(features=1, length_scale=1.0)).posterior()
    drawn = [posterior.noise(i) for i in range(MEMBERS)]
    a, b = (torch.stack([noise[name] for noise in drawn]) for name in ("a.w", "b.w"))
    k, j = torch.triu_indices(4, 4)  # values, squares and products
    seen = [torch.cat([n, n[:, k] * n[:, j]], 1).numpy() for n in (a, b)]
    ranks = stats.spearmanr(*seen).statistic[: seen[0].shape[1], seen[0].shape[1] :]
    assert abs(ranks).max() < SIGMAS / math.sqrt(MEMBERS - 1)
