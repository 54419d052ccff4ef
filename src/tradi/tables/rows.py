"""Matrices on their way to a network: as tensors, and split in two."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tradi.tables.scaling import Matrix
from tradi.tables.training import SMALLEST_VALIDATION, Rows


def tensors(*arrays: NDArray[Any]) -> list[Tensor]:
    """The arrays as tensors of their own, in memory that torch may write to."""
    return [torch.from_numpy(np.array(array, order="C")) for array in arrays]


def held_out(x: Matrix, y: NDArray[Any], share: float, seed: int) -> tuple[Rows, Rows | None]:
    """Rows to train on, and rows to stop and choose the scale by.

    Labels are held out class by class as far as possible: one row of every class stays to train on.

    Args:
        x: inputs, (rows, columns).
        y: target, (rows, 1) numbers or (rows,) labels.
        share: of the rows to hold out, rounded, and at least 5; none are held out of fewer than 10, or for 0.
        seed: of the choice.
    """
    inputs, target = tensors(x, y)
    count = max(round(share * len(x)), SMALLEST_VALIDATION)
    if share == 0 or len(x) < 2 * SMALLEST_VALIDATION:
        return (inputs, target), None
    order = np.random.default_rng(seed).permutation(len(x))
    if y.ndim == 1:
        _, first = np.unique(y[order], return_index=True)
        stays = np.zeros(len(x), dtype=bool)
        stays[first] = True
        order = np.concatenate([order[~stays], order[stays]])
        count = min(count, int((~stays).sum()))
    held, rest = (torch.from_numpy(part) for part in np.split(order, [count]))
    if not len(held):
        return (inputs, target), None
    return (inputs[rest], target[rest]), (inputs[held], target[held])
