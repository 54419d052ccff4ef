"""Every private torch name that tradi uses, and what happens if a torch version lacks it.

Enters: nothing from tradi. Leaves: functions and types under public names.
Who may import it: every room. No other module uses a torch name that begins with an underscore.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "CONVOLUTIONS",
    "DROPOUTS",
    "NORMS",
    "BatchNorm",
    "DispatchMode",
    "RunningNorm",
    "checkpointed_module",
    "compiled_module",
    "compiled_or_plain",
    "default_store",
    "foreach_add_",
    "foreach_addcmul_",
    "foreach_copy_",
    "foreach_lerp_",
    "foreach_mul",
    "foreach_mul_",
    "foreach_norm",
    "foreach_sub",
    "foreach_sub_",
    "is_on_stack",
    "module_tables",
    "step_frame",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_unflatten",
    "uncompiled",
    "version_of",
]

try:
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
except ImportError as error:  # pragma: no cover
    raise ImportError(
        f"torch {torch.__version__} has no torch.utils._pytree, which tradi needs: install torch>=2.6,<3"
    ) from error

try:  # sees every operation of the thread that entered it
    from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
except ImportError as error:  # pragma: no cover
    raise ImportError(
        f"torch {torch.__version__} has no TorchDispatchMode, which tradi needs: install torch>=2.6,<3"
    ) from error

RunningNorm = nn.modules.batchnorm._NormBase  # BatchNorm and InstanceNorm: layers with running statistics
BatchNorm = nn.modules.batchnorm._BatchNorm
NORMS: tuple[type[nn.Module], ...] = (RunningNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def _family(module: str, base: str, public: Sequence[str]) -> tuple[Any, ...]:
    """The private base class of a family of layers, or its public classes if torch has no such base."""
    found = getattr(getattr(nn.modules, module), base, None)
    return (found,) if found is not None else tuple(getattr(nn, name) for name in public)


CONVOLUTIONS: Any = _family(
    "conv", "_ConvNd", ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
)
DROPOUTS: Any = _family(
    "dropout", "_DropoutNd", ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"]
)


# One call for a list of tensors instead of one per tensor. torch's own optimizers use these operations too.
def _foreach(name: str, one: Callable[..., Any]) -> Callable[..., Any]:
    """torch's operation on lists or, if torch has none, `one` applied to each tensor in turn."""

    def in_turn(tensors: Sequence[Tensor], *others: Any, **options: Any) -> tuple[Any, ...]:
        rows = zip(tensors, *(o if isinstance(o, list | tuple) else [o] * len(tensors) for o in others), strict=True)
        return tuple(one(*row, **options) for row in rows)

    found: Callable[..., Any] = getattr(torch, f"_foreach_{name}", in_turn)
    return found


foreach_add_ = _foreach("add_", Tensor.add_)
foreach_addcmul_ = _foreach("addcmul_", Tensor.addcmul_)
foreach_copy_ = _foreach("copy_", Tensor.copy_)
foreach_lerp_ = _foreach("lerp_", Tensor.lerp_)
foreach_mul = _foreach("mul", Tensor.mul)
foreach_mul_ = _foreach("mul_", Tensor.mul_)
foreach_norm = _foreach("norm", torch.linalg.vector_norm)
foreach_sub = _foreach("sub", Tensor.sub)
foreach_sub_ = _foreach("sub_", Tensor.sub_)


def module_tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """The module's own dictionaries of parameters and of buffers, by local name."""
    return module._parameters, module._buffers


def version_of(tensor: Tensor) -> int:
    """How many times a tensor was changed in place; 0 if torch does not count."""
    return int(getattr(tensor, "_version", 0))


def step_frame() -> FrameType | None:
    """Called from a hook of an optimizer's step: torch's own frame that runs this step; None if it is not found."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "torch.optim.optimizer":
        frame = frame.f_back
    return frame


def default_store() -> Any:
    """What the processes of the default group share, as `torch.distributed.Store`; None if torch does not say."""
    find = getattr(torch.distributed.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def is_on_stack(frame: FrameType | None) -> bool:
    """Whether the call is still running in this thread."""
    above: FrameType | None = sys._getframe(1)
    while above is not None and above is not frame:
        above = above.f_back
    return above is not None


def compiled_module(model: nn.Module) -> nn.Module | None:
    """The module that `torch.compile` wrapped, or None."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else None


def checkpointed_module(model: nn.Module) -> nn.Module | None:
    """The module that `checkpoint_wrapper` put activation checkpointing around, or None."""
    inner = getattr(model, "_checkpoint_wrapped_module", None)
    return inner if isinstance(inner, nn.Module) else None


def uncompiled(forward: Any) -> Any:
    """What `torch.compile` was given to make this function, or None."""
    given = getattr(forward, "_torchdynamo_orig_callable", None)
    inlined = getattr(given, "__globals__", {}).get("__name__") == "torch._dynamo.external_utils"
    return getattr(given, "__wrapped__", given) if inlined else given


def compiled_or_plain(model: nn.Module) -> Callable[..., Any]:
    """The model's forward pass, compiled once per batch size; uncompiled where there is no compiler."""
    fast = torch.compile(model, dynamic=False)

    def forward(x: Tensor) -> Any:
        with torch._dynamo.config.patch(suppress_errors=True):
            return fast(x)

    return forward
