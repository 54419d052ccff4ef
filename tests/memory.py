"""How much memory tensors hold, counted and not measured."""

from __future__ import annotations

import gc

from torch import Tensor, UntypedStorage, nn


def live_bytes() -> int:
    """Bytes of all tensors that there are, memory that several share counted once."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (Tensor, nn.Parameter)]
    return sum({data.data_ptr(): data.nbytes() for data in map(_storage, tensors) if data is not None}.values())


def _storage(tensor: Tensor) -> UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except NotImplementedError:  # a wrapper that torch.func left behind in another test, which holds nothing itself
        return None
