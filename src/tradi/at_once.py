"""All members of an MLP at once, by batched matrix products: for a few samples calls take longer than arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

FEW = 8  # samples; what is gained falls with their number (`loop_over_batched` in results/speed)

LAYERS = {
    *(nn.Sequential, nn.Linear, nn.Flatten, nn.Identity, nn.Dropout, nn.BatchNorm1d, nn.LayerNorm),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
}


def is_mlp(model: nn.Module) -> bool:
    """Whether a model is made of layers that batch, as torch has them, in eval mode and without hooks."""
    return all(type(module) in LAYERS and not (module.training or _changed(module)) for module in model.modules())


def _changed(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def are_few(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a model is called with a few plain samples, (samples, features), and nothing else."""
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
        return False
    x = args[0]
    return x.ndim == 2 and len(x) <= FEW and x.layout == torch.strided


def pays(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether members of a model may be run at once on these inputs, and gain by it.

    Mixed precision is left out, whether the model's own or autocast's: batched products convert by rules of their own.
    """
    if not (are_few(args, kwargs) and is_mlp(model)):
        return False
    tensors = [*args, *model.parameters(), *model.buffers()]
    types = {tensor.dtype for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()}
    special = torch.is_autocast_enabled(args[0].device.type) or torch.jit.is_tracing()  # type: ignore[attr-defined]
    return len(types) == 1 and len(tensors) > 1 and not special


def stacked(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Weights and buffers of all members, by name, along a new first axis."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def run(model: nn.Module, states: dict[str, Tensor], x: Tensor) -> Tensor:
    """Outputs (members, samples, ...) of a model with each of the stacked states."""
    members = vmap(lambda state: functional_call(model, state, (x,)))
    outputs: Tensor = members(states)
    return outputs
