"""All members of an MLP at once, by batched matrix products: for a few samples calls take longer than arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

FEW = 32  # samples up to which it pays (`loop_over_batched` in results/speed)

LAYERS = {
    *(nn.Sequential, nn.Linear, nn.Flatten, nn.Identity, nn.Dropout, nn.BatchNorm1d, nn.LayerNorm),
    *(nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
}


def is_mlp(model: nn.Module) -> bool:
    """Whether a model is made of layers that batch, in eval mode, and of nothing else, hooks included."""
    return all(
        type(module) in LAYERS and not (module.training or module._forward_hooks or module._forward_pre_hooks)
        for module in model.modules()
    )


def are_few(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a model is called with one tensor of a few samples."""
    return len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and args[0].ndim > 0 and len(args[0]) <= FEW


def stacked(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Weights and buffers of all members, by name, along a new first axis."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def together(model: nn.Module, states: dict[str, Tensor], x: Tensor) -> Tensor:
    """Outputs (members, samples, ...) of a model with each of the stacked states."""
    run = vmap(lambda state: functional_call(model, state, (x,)))
    outputs: Tensor = run(states)
    return outputs
