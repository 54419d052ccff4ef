"""The optimizer that takes the steps, inside what training libraries hand out, and the mode that it is in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from tradi.ensemble.copying import is_named

# They hold the real one in `.optimizer`. Lookahead does too, but is an optimizer itself, whose own steps count.
WRAPPERS = {
    "AcceleratedOptimizer": ("accelerate",),
    "LightningOptimizer": ("lightning", "pytorch_lightning"),
    "_FabricOptimizer": ("lightning", "lightning_fabric"),
}


def unwrapped(given: Any) -> list[Optimizer]:
    """The optimizers themselves, each once: of accelerate, Lightning and Fabric the one inside the wrapper.

    Args:
        given: one, or several.

    Raises:
        TypeError: if one of them is no optimizer.
    """
    one_alone = isinstance(given, Optimizer) or _is_wrapper(given) or not isinstance(given, Iterable)
    several = [_inside(one) for one in ([given] if one_alone else given)]
    for one in several:
        if not isinstance(one, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer or several of them, got {type(one).__name__}")
    return list(dict.fromkeys(several))


def check_train_mode(optimizers: Iterable[Optimizer]) -> None:
    """Raise where a schedule-free optimizer has put other weights into the model than those that were tracked.

    Raises:
        RuntimeError: if one is in eval mode: it steps in train mode alone.
    """
    for one in optimizers:
        flags = [getattr(one, "train_mode", None), *(group.get("train_mode") for group in one.param_groups)]
        if any(flag is False for flag in flags):
            raise RuntimeError(
                f"{type(one).__name__} is in eval mode, where the model holds other weights than in the steps that "
                "were seen: call optimizer.train() before posterior()"
            )


def _is_wrapper(given: Any) -> bool:
    return any(is_named(given, name, libraries) for name, libraries in WRAPPERS.items())


def _inside(given: Any) -> Any:
    while _is_wrapper(given):
        given = given.optimizer
    return given
