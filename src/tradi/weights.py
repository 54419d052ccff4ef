"""A model's weights: their names, their layers, and which of them to track."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

# Third-party layers (LlamaRMSNorm, EvoNorm2dS0) are named like torch's own.
_NORMALISATION = re.compile("norm", re.IGNORECASE)

Table = dict[str, Any]  # a module's parameters or buffers by their names in it
Predicate = Callable[[str, nn.Module, nn.Parameter], bool]
Select = str | type[nn.Module] | Predicate | Sequence[str | type[nn.Module] | Predicate]


@dataclass(eq=False)
class Weight:
    """One parameter of a model, under its first name if it is tied. Name and modules change where the model does.

    Args:
        name: as in `model.named_parameters()`.
        parameter: the live tensor.
        modules: the modules it lies in, outermost first; the last one owns it.
    """

    name: str
    parameter: nn.Parameter
    modules: tuple[nn.Module, ...]

    @property
    def layer(self) -> str:
        """Name of the module that owns the weight; weights of one layer are correlated."""
        return self.name.rpartition(".")[0]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it to track; one that waits for its first forward pass is not empty."""
        return not isinstance(self.parameter, nn.parameter.UninitializedParameter) and self.parameter.numel() == 0

    @property
    def fan_in(self) -> int:
        """Inputs of one unit of the layer; a bias has its layer's, a weight that scales single values has 1."""
        own = self.parameter
        siblings = (p for p in self.modules[-1].parameters(recurse=False) if p.ndim > 1)
        matrix = own if own.ndim > 1 else next(siblings, None)
        return 1 if matrix is None else max(matrix.shape[1:].numel(), 1)


def is_normalisation(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer: torch's by type, anybody's by name, if it scales single values."""
    if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        return True
    named = _NORMALISATION.search(type(module).__name__) is not None
    return named and all(parameter.ndim <= 1 for parameter in module.parameters(recurse=False))


def except_normalisation(name: str, module: nn.Module, parameter: nn.Parameter) -> bool:
    """The default selection: a normalisation layer's weights stay as trained."""
    del name, parameter
    return not is_normalisation(module)


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile, DataParallel and DistributedDataParallel wrappers."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, parallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def copied(model: nn.Module) -> nn.Module:
    """A copy of the user's own module, or an error that says why there can be none."""
    model = unwrap(model)
    # What a forward left behind on a module (the old weight_norm, a cached activation) torch refuses to copy.
    left = {id(t): t.detach().clone() for t in _attributes(model) if not t.is_leaf}
    try:
        return copy.deepcopy(model, left)
    except Exception as error:
        raise RuntimeError(f"the model cannot be copied, and members need a copy of it: {error}") from error


def check_copyable(model: nn.Module) -> None:
    """Raise now for a model that could not be copied after training; its tensors are spared the trial."""
    tensors = [*model.parameters(), *model.buffers(), *_attributes(model)]
    try:
        copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    except Exception as error:
        raise TypeError(f"the model cannot be copied, and members need a copy of it: {error}") from error


def _attributes(model: nn.Module) -> list[Tensor]:
    """Tensors that modules hold as plain attributes."""
    return [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]


class Slots:
    """Where a module keeps its parameters and buffers, looked up once, so that running it with others costs nothing.

    It does what `torch.func.functional_call` does, which looks everything up at every call and takes longer about
    that than a small network about its forward pass. The module must keep its structure.
    """

    def __init__(self, module: nn.Module) -> None:
        first: dict[Tensor, str] = {}  # tied tensors go by their first name
        self._tables: list[tuple[Table, dict[str, str], Table]] = []
        for prefix, owner in module.named_modules():
            for table in (owner._parameters, owner._buffers):
                own = {key: tensor for key, tensor in table.items() if tensor is not None}
                names = {key: first.setdefault(t, f"{prefix}.{key}" if prefix else key) for key, t in own.items()}
                if own:
                    self._tables.append((table, names, own))

    def holding(self, state: dict[str, Tensor]) -> Held:
        """Puts tensors in by name, whenever and as long as it is entered."""
        return Held(
            [
                (table, names, {key: state.get(name, own[key]) for key, name in names.items()}, own)
                for table, names, own in self._tables
            ]
        )


class Held:
    """Tensors that take turns with a module's own: in their places inside a `with`, which may come again and again.

    Args:
        places: a module's table of tensors, the names of these in the model, what to put in, and what belongs there.
    """

    def __init__(self, places: list[tuple[Table, dict[str, str], Table, Table]]) -> None:
        self._places = places

    def __enter__(self) -> None:
        for table, _, held, _ in self._places:
            table.update(held)

    def __exit__(self, *exception: object) -> None:
        for table, _, held, own in self._places:
            held.update(table)  # what the module made of them, for the next time
            table.update(own)

    @property
    def state(self) -> dict[str, Tensor]:
        """All of them by their names in the model, as the module left them."""
        return {name: held[key] for _, names, held, _ in self._places for key, name in names.items()}


def named_weights(model: nn.Module) -> dict[str, Weight]:
    """All parameters of the model by name, tied ones once."""
    modules = dict(model.named_modules(remove_duplicate=False))
    weights = {}
    for name, parameter in model.named_parameters():
        parts = name.split(".")[:-1]
        path = tuple(modules[".".join(parts[:depth])] for depth in range(len(parts) + 1))
        weights[name] = Weight(name, parameter, path)
    return weights


def check_trackable(weight: Weight) -> None:
    """Raise for what no Gaussian over real numbers can describe."""
    parameter = weight.parameter
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise TypeError(f"{weight.name} is not initialised yet: run one forward pass before attaching")
    if hasattr(parameter, "to_local"):
        raise TypeError(f"{weight.name} is sharded over processes (FSDP, DTensor), which is not supported: use DDP")
    if parameter.is_meta:
        raise TypeError(f"{weight.name} is on the meta device: give the model real weights before attaching")
    if not parameter.is_floating_point() or parameter.dtype.itemsize < 2:
        raise TypeError(
            f"{weight.name} has dtype {parameter.dtype}, which cannot be tracked: only real "
            "floating-point weights of 16 bits or more can; leave it out with select="
        )


def as_predicate(select: Select) -> Callable[[Weight], bool]:
    """Turn what users give as `select=` into a test of a weight.

    A string is a pattern of parameter or module names ("head", "blocks.*.weight"); a module type selects
    all weights in modules of that type; a function of (name, module, parameter) decides itself; of several,
    any one is enough.
    """
    if isinstance(select, str):
        pattern = select
        return lambda weight: fnmatchcase(weight.name, pattern) or fnmatchcase(weight.name, f"{pattern}.*")
    if isinstance(select, type):
        kind = select
        return lambda weight: any(isinstance(module, kind) for module in weight.modules)
    if callable(select):
        function = select
        return lambda weight: bool(function(weight.name, weight.modules[-1], weight.parameter))
    if isinstance(select, Sequence):
        tests = [as_predicate(one) for one in select]
        return lambda weight: any(test(weight) for test in tests)
    raise TypeError(
        f"select must be a name pattern, a module type, a function of (name, module, parameter) "
        f"or a sequence of these, got {select!r}"
    )


def flat(tensor: Tensor) -> Tensor:
    """All elements in one row, a view where the layout allows, dense if it was sparse."""
    tensor = tensor.detach()
    return (tensor.to_dense() if tensor.layout != torch.strided else tensor).reshape(-1)
