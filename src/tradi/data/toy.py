"""The paper's toy problem: a function drawn from a Gaussian process, noisy points on it, and the exact posterior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NOISE_VARIANCE = 0.3  # paper, section 4.1


@dataclass(frozen=True, eq=False)
class Toy:
    """Points of one function drawn from GP(0, RBF), and the function itself on a grid that reaches beyond them.

    Args:
        x: of the training points, (points, 1).
        y: noisy values there, (points, 1).
        grid: inputs where the function is known, (grid, 1).
        truth: the function there, without noise.
        noise_variance: variance of the noise on y.
    """

    x: Tensor
    y: Tensor
    grid: Tensor
    truth: Tensor
    noise_variance: float = NOISE_VARIANCE

    def ideal(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the exact GP posterior on the grid, noise included: the best possible prediction.

        Returns:
            the mean and the variance at every point of the grid, (points, 1) each.
        """
        x, grid = self.x.double(), self.grid.double()
        noisy = rbf(x, x) + self.noise_variance * torch.eye(len(x), dtype=torch.float64)
        solved = torch.linalg.solve(noisy, rbf(x, grid))
        mean = solved.T @ self.y.double()
        variance = 1 + self.noise_variance - (rbf(x, grid) * solved).sum(0)
        return mean.float(), variance[:, None].float()


def rbf(a: Tensor, b: Tensor) -> Tensor:
    """The RBF kernel with unit variance and length-scale."""
    return torch.exp(-0.5 * (a - b.T).square())


def toy(points: int = 60, seed: int = 0, reach: float = 3.0, beyond: float = 2.0) -> Toy:
    """Draw the toy problem (section 4.1).

    Args:
        points: number of training points.
        seed: seed of the function, the points and the noise.
        reach: points are in [-reach, reach], with a gap around 0.
        beyond: how far the grid extends beyond that on both sides.

    Returns:
        points, the grid, and the function on it.
    """
    generator = torch.Generator().manual_seed(seed)
    sides = torch.rand(points, 1, generator=generator, dtype=torch.float64) * (reach - 0.5) + 0.5
    signs = torch.where(torch.rand(points, 1, generator=generator) < 0.5, -1.0, 1.0)
    x = sides * signs
    grid = torch.linspace(-reach - beyond, reach + beyond, 241, dtype=torch.float64)[:, None]
    everywhere = torch.cat([x, grid])
    # The jitter makes the matrix positive definite; it is far below the noise.
    kernel = rbf(everywhere, everywhere) + 1e-6 * torch.eye(len(everywhere), dtype=torch.float64)
    function = torch.linalg.cholesky(kernel) @ torch.randn(len(everywhere), 1, generator=generator, dtype=torch.float64)
    noise = NOISE_VARIANCE**0.5 * torch.randn(points, 1, generator=generator, dtype=torch.float64)
    return Toy(x.float(), (function[:points] + noise).float(), grid.float(), function[points:].float())
