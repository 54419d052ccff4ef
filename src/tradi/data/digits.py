"""Scikit-learn's handwritten digits, with some classes held out as out of distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tradi.data.images import Images, standardised
from tradi.extras import require


def digits(held_out: Sequence[int] = (8, 9), seed: int = 0) -> Images:
    """Scikit-learn's digits as vectors, split 60/15/25 into training, validation and test.

    Args:
        held_out: digits to leave out: they are the OOD images `unknown digits`, and the others are renumbered from 0.
        seed: seed of the split.

    Returns:
        training, validation and test images with their labels, and the digits that were left out as OOD images.
    """
    source = require("sklearn.datasets", "metrics").load_digits()
    images = torch.tensor(source.data, dtype=torch.float32)
    labels = torch.tensor(source.target)
    kept = [digit for digit in range(10) if digit not in held_out]
    inside = torch.isin(labels, torch.tensor(kept))
    x, y, ood = images[inside], torch.searchsorted(torch.tensor(kept), labels[inside]), images[~inside]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, validation, test = order.tensor_split([len(x) * 60 // 100, len(x) * 75 // 100])
    parts = [(x[part], y[part]) for part in (train, validation, test)]
    return standardised(parts, {"unknown digits": ood}, len(kept), over=(0, 1))
