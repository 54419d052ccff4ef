"""The batches that several processes hold, for each of them: a loader's part becomes the whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import distributed

from tradi._torch import tree_map
from tradi.ensemble.batches import check_reiterable


class gathered:  # noqa: N801 (read as a verb: fit(tradi.gathered(loader)))
    """The batches of all processes, from the part that each of them loads, such as by a `DistributedSampler`.

    Every process is given all batches in the same order: the first ones of all processes, then the second ones, and so
    on. So all come to the statistics, the scale and the posterior of the whole data. Parts need not be of equal
    length. All processes must iterate together, as they do where they call `fit`, `condition`, `choose_scale`,
    `refresh` or `predict` together. Batches travel through main memory, one per process at a time. Without a process
    group these are the loader's own.

    Args:
        loader: of this process's part.

    Raises:
        TypeError: if it cannot be iterated more than once.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        check_reiterable(loader, "loader")
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        if not (distributed.is_available() and distributed.is_initialized()):
            yield from self.loader
            return
        own = iter(self.loader)
        while True:
            every: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(every, [tree_map(_in_main_memory, batch) for batch in islice(own, 1)])
            if not any(every):
                return
            yield from (batch for batches in every for batch in batches)


def _in_main_memory(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf
