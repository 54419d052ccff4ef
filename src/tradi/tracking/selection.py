"""Which weights to track: a model's weights by name, and what `select=` means."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from tradi._torch import NORMS
from tradi.sharding import Place, is_sharded, local, plain_name

# Third-party layers (LlamaRMSNorm, EvoNorm2dS0) are named like torch's own.
_NORMALISATION = re.compile("norm", re.IGNORECASE)

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

    def __post_init__(self) -> None:
        self._is_sharded = is_sharded(self.parameter)  # asked at every step

    @property
    def layer(self) -> str:
        """Name of the module that owns the weight; weights of one layer are correlated."""
        return self.name.rpartition(".")[0]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it to track; one that waits for its first forward pass is not empty."""
        return not isinstance(self.parameter, nn.parameter.UninitializedParameter) and self.parameter.numel() == 0

    @property
    def local(self) -> Tensor:
        """What this process holds of it: all of it, unless it is sharded."""
        return local(self.parameter) if self._is_sharded else self.parameter

    @property
    def local_gradient(self) -> Tensor | None:
        """The gradient of what this process holds."""
        gradient = self.parameter.grad
        return gradient if gradient is None or not self._is_sharded else local(gradient)

    @property
    def place(self) -> Place | None:
        """Where that lies in the whole; None if it is not sharded."""
        return Place.of(self.name, self.parameter)

    @property
    def rows(self) -> int:
        """Length of its first dimension, whoever holds it; 1 of a single number."""
        return self.parameter.shape[0] if self.parameter.ndim else 1

    @property
    def fan_in(self) -> int:
        """Inputs of one unit of the layer; a bias has its layer's, a weight that scales single values has 1."""
        own = self.parameter
        siblings = (p for p in self.modules[-1].parameters(recurse=False) if p.ndim > 1)
        matrix = own if own.ndim > 1 else next(siblings, None)
        return 1 if matrix is None else max(matrix.shape[1:].numel(), 1)


def is_normalisation(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer: torch's by type, anybody's by name, if it scales single values."""
    if isinstance(module, NORMS):
        return True
    named = _NORMALISATION.search(type(module).__name__) is not None
    return named and all(parameter.ndim <= 1 for parameter in module.parameters(recurse=False))


def except_normalisation(name: str, module: nn.Module, parameter: nn.Parameter) -> bool:
    """The default selection: a normalisation layer's weights stay as trained."""
    del name, parameter
    return not is_normalisation(module)


def named_weights(model: nn.Module) -> dict[str, Weight]:
    """All parameters of the model by name, tied ones once."""
    # Activation checkpointing tells parameters by other names than modules, which all know by the plain ones.
    modules = {plain_name(name): module for name, module in model.named_modules(remove_duplicate=False)}
    weights = {}
    for name, parameter in model.named_parameters():
        parts = plain_name(name).split(".")[:-1]
        path = tuple(modules[".".join(parts[:depth])] for depth in range(len(parts) + 1))
        weights[name] = Weight(name, parameter, path)
    return weights


def check_trackable(weight: Weight) -> None:
    """Raise for what no Gaussian over real numbers can describe."""
    parameter = weight.parameter
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise TypeError(f"{weight.name} is not initialised yet: run one forward pass before attaching")
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
        _check_predicate(function)
        return lambda weight: bool(function(weight.name, weight.modules[-1], weight.parameter))
    if isinstance(select, Sequence):
        tests = [as_predicate(one) for one in select]
        return lambda weight: any(test(weight) for test in tests)
    raise TypeError(
        f"select must be a name pattern, a module type, a function of (name, module, parameter) "
        f"or a sequence of these, got {select!r}"
    )


def _check_predicate(function: Predicate) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some written in C do not say
        return
    try:
        signature.bind("name", None, None)
    except TypeError as error:
        raise TypeError(f"select= takes functions of (name, module, parameter), got one of {signature}") from error


def is_among(names: Collection[str], weight: Weight) -> bool:
    """Whether a weight has one of these names: a selection that reaches other processes, as functions may not."""
    return weight.name in names


def flat(tensor: Tensor) -> Tensor:
    """All elements in one row, a view where the layout allows, dense if it was sparse."""
    tensor = tensor.detach()
    return (tensor.to_dense() if tensor.layout != torch.strided else tensor).reshape(-1)
