"""Scikit-learn's handwritten digits, some classes held out as out-of-distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tradi.extras import require


@dataclass(frozen=True, eq=False)
class Digits:
    """Standardised 8x8 images as vectors and their classes, renumbered from 0; `ood` are the held-out digits."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    ood: Tensor
    classes: int


def digits(held_out: Sequence[int] = (8, 9), seed: int = 0) -> Digits:
    """Split the digits 60/15/25; inputs are standardised with training statistics only."""
    source = require("sklearn.datasets", "metrics").load_digits()
    images = torch.tensor(source.data, dtype=torch.float32)
    labels = torch.tensor(source.target)
    kept = [digit for digit in range(10) if digit not in held_out]
    inside = torch.isin(labels, torch.tensor(kept))
    x, y, ood = images[inside], torch.searchsorted(torch.tensor(kept), labels[inside]), images[~inside]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, validation, test = order.tensor_split([len(x) * 60 // 100, len(x) * 75 // 100])
    mean, std = x[train].mean(), x[train].std()
    x, ood = (x - mean) / std, (ood - mean) / std
    return Digits((x[train], y[train]), (x[validation], y[validation]), (x[test], y[test]), ood, len(kept))
