"""Processes that train one network together must come to one posterior, whatever data each of them was given."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping

from torch import Tensor, distributed

from tradi._torch import default_store

TOLERANCE = 1e-3  # relative: sums of floating-point numbers may differ a little between devices
_fitted: Counter[str] = Counter()  # how often this process has fitted a posterior, by its means


def check_agreement(
    what: str, mean: Mapping[str, Tensor], member: Callable[[], Mapping[str, Tensor]], scale: float
) -> None:
    """Compare what was fitted here with what other processes came to, if there are any.

    Nobody waits: each process leaves its numbers in the store of the process group and reads those that are there, so
    that the last one notices. A posterior that one process fits by itself is compared with nothing.

    Args:
        what: was done, for the message.
        mean: the tracked means, which are the same for all.
        member: gives the weights of one that was fitted; called where there are other processes.
        scale: of its noise.

    Raises:
        RuntimeError: if two processes disagree; the message names the remedies.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    store = default_store()
    if store is None:
        return
    rank, own = distributed.get_rank(), [scale, _norm(member())]
    name = f"tradi/{what}/{_norm(mean):.5e}"
    _fitted[name] += 1
    name = f"{name}/{_fitted[name]}"
    store.set(f"{name}/{rank}", json.dumps(own))
    for other in range(distributed.get_world_size()):
        key = f"{name}/{other}"
        if other == rank or not store.check([key]):
            continue
        theirs = json.loads(store.get(key))
        if not all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(own, theirs, strict=True)):
            raise RuntimeError(
                f"{what} gave another posterior on rank {rank} (scale {own[0]:g}, member of norm {own[1]:g}) than on "
                f"rank {other} (scale {theirs[0]:g}, member of norm {theirs[1]:g}): each has data of its own, or "
                "BatchNorm's running statistics. "
                "Give every rank all of the data, by tradi.gathered(loader) where each loads a part; or fit on rank 0 "
                "alone, posterior.save(path) there, and tradi.load_posterior(path, model) on the others"
            )


def _norm(values: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in values.values()))
