"""Copies of a user's model: what is copied, what is shared, and an error where there can be no copy."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from types import MethodType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from tradi._torch import checkpointed_module, compiled_module, tree_leaves, uncompiled, version_of
from tradi.sharding import is_fully_sharded


def is_named(thing: object, name: str, libraries: Sequence[str]) -> bool:
    """Whether a thing is of a class of this name in one of these libraries, none of which is imported for that."""
    return any(kind.__name__ == name and kind.__module__.split(".")[0] in libraries for kind in type(thing).__mro__)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile, DataParallel, DistributedDataParallel and Fabric's wrappers.

    Activation checkpointing around the whole model is left out too, unless `fully_shard` gathers weights there.
    """
    while True:
        parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        if parallel or is_named(model, "_FabricModule", ("lightning", "lightning_fabric")):
            model = model.module  # type: ignore[assignment]
            continue
        inner = compiled_module(model) or checkpointed_module(model)
        if inner is None or is_fully_sharded(model):
            return model
        model = inner


def copied(model: nn.Module, own: Collection[str] = (), memo: dict[int, Any] | None = None) -> nn.Module:
    """A copy of the user's own module: all that training can change is copied, and frozen parameters are shared.

    A frozen parameter (`requires_grad=False`) has an object of its own in the copy, around the same memory.
    `Snapshot` notices if it changes after all. Parameters of other classes than torch's are copied.

    Args:
        model: it is left as it is.
        own: names of parameters that are copied though they are frozen.
        memo: of `copy.deepcopy`, by which what refers to the model is copied with it.

    Raises:
        RuntimeError: if the module cannot be copied; it says why.
    """
    model = unwrap(model)
    named = model.named_parameters()
    return _copy(model, [p for name, p in named if not p.requires_grad and name not in own], memo)


def sharing(model: nn.Module, own: Collection[str] = ()) -> nn.Module:
    """A module of its own that shares all parameters with a snapshot, which nobody changes; buffers are copied.

    Args:
        model: it is left as it is.
        own: names of parameters that are copied.

    Raises:
        RuntimeError: if the module cannot be copied; it says why.
    """
    return _copy(model, [p for name, p in model.named_parameters() if name not in own])


def _copy(model: nn.Module, shared: list[nn.Parameter], memo: dict[int, Any] | None = None) -> nn.Module:
    memo = {} if memo is None else memo
    memo |= _optimizers(model)
    # torch refuses to copy what a forward left behind on a module (the old weight_norm, a cached activation).
    memo |= {id(t): t.detach().clone() for t in _attributes(model) if not t.is_leaf}
    for parameter in shared:
        if type(parameter) is nn.Parameter and not parameter.is_inference():  # of which torch counts the changes
            memo[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    try:
        return _uncompiled(model, _without_autocast(copy.deepcopy(model, memo)))
    except Exception as error:
        raise RuntimeError(f"the model cannot be copied, and members need a copy of it: {error}") from error


def _without_autocast(model: nn.Module) -> nn.Module:
    """A copy as it was before accelerate put mixed precision around its forward; outputs of its layers stay views."""
    own = vars(model).pop("_original_forward", None)
    if own is not None:
        vars(model)["forward"] = own  # bound to the copy, as copies of bound methods are
    return model


def _uncompiled(model: nn.Module, copy_of: nn.Module) -> nn.Module:
    """A copy whose parts run as they are written.

    Lightning puts a compiled function in place of a module's forward, and in a copy that would still run the original.
    Compiled submodules would be compiled again for every copy, and pass over the hooks that conditioning needs.
    """
    copies = dict(zip(model.modules(), copy_of.modules(), strict=True))
    for module in copies.values():
        written = uncompiled(vars(module).get("forward"))
        if isinstance(written, MethodType):
            owner = written.__self__
            written = MethodType(written.__func__, copies.get(owner, owner))  # type: ignore[call-overload]
        if written is not None:
            vars(module)["forward"] = written
    return copy_of


class Snapshot:
    """A network whose weights must stay as they are, some of which it may share with a live model.

    Changes in place are noticed by torch's version counter; those by way of `parameter.data` are not counted. A deep
    copy shares nothing.

    Args:
        model: the network.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        counted = ((name, p) for name, p in model.named_parameters() if not p.is_inference())
        self._versions = [(name, p, version_of(p)) for name, p in counted]

    @property
    def model(self) -> nn.Module:
        """The network, as it was: see `check`."""
        self.check()
        return self._model

    def check(self) -> None:
        """Raise if the network is not what it was.

        Raises:
            RuntimeError: if a weight was changed in place since.
        """
        for name, parameter, version in self._versions:
            if version_of(parameter) != version:
                raise RuntimeError(
                    f"{name} was changed in place (by an optimizer, load_state_dict or hand) after this snapshot was "
                    "taken, which shares frozen weights with the live model: take it again, or take "
                    "copy.deepcopy(posterior), which shares nothing, before frozen weights change"
                )

    def __reduce__(self) -> tuple[type[Snapshot], tuple[nn.Module]]:
        return Snapshot, (self.model,)  # whose tensors count from 0


def tensors_in(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that a module holds, by name, detached but not copied."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()} | dict(model.named_buffers())


def check_copyable(model: nn.Module) -> None:
    """Raise now for a model that could not be copied after training; its tensors are not copied here.

    Raises:
        TypeError: if the module cannot be copied; it says why.
    """
    tensors = [*model.parameters(), *model.buffers(), *_attributes(model)]
    try:
        copy.deepcopy(model, _optimizers(model) | {id(tensor): tensor for tensor in tensors})
    except Exception as error:
        raise TypeError(f"the model cannot be copied, and members need a copy of it: {error}") from error


def _attributes(model: nn.Module) -> list[Tensor]:
    """Tensors that modules hold as plain attributes, also in lists and dictionaries, or as buffers."""
    return [leaf for leaf in _held(model) if isinstance(leaf, Tensor)]


def _optimizers(model: nn.Module) -> dict[int, Any]:
    """Optimizers that modules hold, as Fabric makes a LightningModule do: a copy of a model needs no copy of them.

    A copy would also make torch hook the steps of Fabric's wrapper, which then count twice.
    """
    return {id(leaf): leaf for leaf in _held(model) if isinstance(leaf, Optimizer)}


def _held(model: nn.Module) -> Iterator[Any]:
    return (leaf for module in model.modules() for leaf in tree_leaves(list(vars(module).values())))
