"""Copies of a user's model: the module inside its wrappers, and an error where there can be no copy."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from tradi._torch import compiled_module


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile, DataParallel and DistributedDataParallel wrappers."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
            continue
        inner = compiled_module(model)
        if inner is None:
            return model
        model = inner


def copied(model: nn.Module) -> nn.Module:
    """A copy of the user's own module.

    Raises:
        RuntimeError: if the module cannot be copied; it says why.
    """
    model = unwrap(model)
    # torch refuses to copy what a forward left behind on a module (the old weight_norm, a cached activation).
    left = {id(t): t.detach().clone() for t in _attributes(model) if not t.is_leaf}
    try:
        return copy.deepcopy(model, left)
    except Exception as error:
        raise RuntimeError(f"the model cannot be copied, and members need a copy of it: {error}") from error


def check_copyable(model: nn.Module) -> None:
    """Raise now for a model that could not be copied after training; its tensors are not copied here.

    Raises:
        TypeError: if the module cannot be copied; it says why.
    """
    tensors = [*model.parameters(), *model.buffers(), *_attributes(model)]
    try:
        copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    except Exception as error:
        raise TypeError(f"the model cannot be copied, and members need a copy of it: {error}") from error


def _attributes(model: nn.Module) -> list[Tensor]:
    """Tensors that modules hold as plain attributes."""
    return [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
