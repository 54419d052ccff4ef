"""Which steps can be tracked: one bad step must not spoil what was tracked of all the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tradi._torch import foreach_norm


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> list[float]:
    """The Euclidean norm of each tensor, not finite if its values cannot be used. A device is asked once.

    No value is larger than the norm, and it is NaN if one is. It is infinite if second moments cannot hold the squares
    of values and of their differences.
    """
    found = [0.0] * len(tensors)  # on the meta device there are no values
    together: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for number, tensor in enumerate(tensors):
        if not tensor.is_meta:
            together.setdefault((tensor.device, tensor.dtype), []).append(number)
    for (_, dtype), numbers in together.items():
        dense = [_dense(tensors[number]) for number in numbers]
        sizes = torch.stack(tuple(foreach_norm(dense if dtype.itemsize > 2 else [t.float() for t in dense], 2)))
        limit = torch.finfo(sizes.dtype).max ** 0.5 / 16  # 1e18 in float32, 8e152 in float64
        for number, size in zip(numbers, sizes.tolist(), strict=True):
            found[number] = math.inf if size > limit else size
    return found


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()
