"""Sums and decompositions whose last bit does not depend on the number of threads: a member is one network anywhere."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

ROW = 1 << 14  # numbers that one thread adds up; torch divides sums from 2^15 numbers on among threads


def total(values: Tensor) -> float:
    """The sum of all values, in float64."""
    row = values.reshape(-1)
    whole = len(row) // ROW * ROW
    sums = row[:whole].view(-1, ROW).sum(1, dtype=torch.float64).tolist()
    return math.fsum([*sums, row[whole:].sum(dtype=torch.float64).item()])


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of symmetric matrices in float64. numpy's threads are not those of torch."""
    if matrix.device.type != "cpu":
        values, vectors = torch.linalg.eigh(matrix.double())
        return values, vectors
    own, axes = np.linalg.eigh(matrix.detach().double().numpy())  # a plain tuple before numpy 1.25
    return torch.from_numpy(own), torch.from_numpy(axes)


def product(matrix: Tensor, vector: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
    if matrix.device.type != "cpu":
        return matrix @ vector
    return torch.from_numpy(matrix.detach().numpy() @ vector.detach().numpy())
