from __future__ import annotations

import math

import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from tradi.data import toy


def test_a_seed_is_one_problem_and_another_seed_another() -> None:
    assert torch.equal(toy(seed=3).y, toy(seed=3).y)
    assert not torch.equal(toy(seed=3).y, toy(seed=4).y)


def test_functions_have_unit_variance_and_the_kernel_as_covariance() -> None:
    draws = torch.stack([toy(points=2, seed=seed).truth[:, 0] for seed in range(400)])
    grid = toy(points=2).grid[:, 0]
    # 400 draws: the standard error of a variance is sqrt(2 / 400) = 0.07, of a covariance less
    assert abs(draws.var(0).mean() - 1) < 0.1
    far, near = (grid - grid[120]).abs() > 3, (grid - grid[120] - 1).abs() < 1e-3
    covariance = (draws * draws[:, 120:121]).mean(0)
    assert covariance[far].abs().max() < 0.25
    assert abs(covariance[near].item() - math.exp(-0.5)) < 0.2


def test_points_are_the_function_plus_noise_of_variance_0_3() -> None:
    residuals = []
    for seed in range(30):
        data = toy(points=100, seed=seed)
        nearest = (data.x - data.grid.T).abs().argmin(1)
        residuals.append(data.y - data.truth[nearest])
    # 3,000 points: standard error 0.3 sqrt(2 / 3000) = 0.008; the grid's step adds a slope times 0.01
    assert abs(torch.cat(residuals).var().item() - 0.3) < 0.03


def test_points_leave_a_gap_and_the_grid_reaches_beyond_them() -> None:
    data = toy(points=200, reach=3.0, beyond=2.0)
    assert data.x.abs().min() >= 0.5
    assert data.x.abs().max() <= 3.0
    assert data.grid.min().item() == -5.0
    assert data.grid.max().item() == 5.0


def test_the_ideal_is_the_gp_posterior_of_scikit_learn() -> None:
    data = toy(points=40, seed=1)
    regressor = GaussianProcessRegressor(RBF(1.0), alpha=0.3, optimizer=None).fit(data.x.numpy(), data.y[:, 0].numpy())
    mean, std = regressor.predict(data.grid.numpy(), return_std=True)
    ours = data.ideal()
    torch.testing.assert_close(ours[0][:, 0], torch.as_tensor(mean, dtype=torch.float32), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours[1][:, 0], torch.as_tensor(std**2 + 0.3, dtype=torch.float32), rtol=1e-4, atol=1e-5)
