"""Which steps can be tracked: one bad step must not spoil what was tracked of all the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from tradi._torch import foreach_norm


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The Euclidean norm of each tensor: no value is larger, and it is NaN if one is. Squares are at least float32."""
    wide = [t if t.dtype.itemsize > 2 else t.float() for t in tensors]
    return list(foreach_norm(wide, 2)) if wide else []


def all_usable(values: Iterable[Tensor]) -> bool:
    """Whether second moments can hold the squares of these numbers and of their differences. A device is asked once."""
    together: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for value in values:
        if not value.is_meta:  # which has no values
            together.setdefault((value.device, value.dtype), []).append(value)
    # 1e18 in float32, 8e152 in float64
    limits = {dtype: torch.finfo(dtype).max ** 0.5 / 16 for _, dtype in together}
    return all(bool(torch.stack(found).max() <= limits[dtype]) for (_, dtype), found in together.items())
