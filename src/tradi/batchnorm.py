"""Exact refresh of running statistics: what BatchNorm would have seen with other weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from tradi.batches import arguments

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def running_layers(model: nn.Module) -> dict[str, _NormBase]:
    """The layers that keep running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _NormBase) and module.running_mean is not None
    }


@torch.no_grad()
def refreshed(model: nn.Module, state: dict[str, Tensor], data: Iterable[tuple[Any, Any]]) -> dict[str, Tensor]:
    r"""Running statistics over the data for weights that are not the model's own (paper, section 3.5).

    $$ \bar s = \sum_b n_b s_b \big/ \sum_b n_b $$

    over the statistics s_b of batches of n_b samples: with batches of one size this is the cumulative average of
    `BatchNorm(momentum=None)`, and a short last batch counts by its length.

    Args:
        model: gives the layers; their mode and momentum are restored, whatever happens.
        state: weights and buffers to run it with, by name.
        data: (inputs, target) pairs.
    """
    layers = running_layers(model)
    fresh = {f"{name}.{part}": torch.zeros_like(getattr(m, part)) for name, m in layers.items() for part in STATISTICS}
    with _collecting(list(layers.values())):
        for inputs, _ in data:
            functional_call(model, state | fresh, *arguments(inputs))
    return fresh


@contextmanager
def _collecting(layers: list[_NormBase]) -> Iterator[None]:
    seen = dict.fromkeys(layers, 0)

    def weigh(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        """A layer that is used twice in a pass sees twice as much."""
        assert isinstance(layer, _NormBase)
        x = args[0] if args else kwargs["input"]
        samples = len(x)
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and x[:, 0].numel() == 1:
            raise ValueError(
                "BatchNorm cannot be refreshed on a batch of one sample: use drop_last=True or larger batches"
            )
        seen[layer] += samples
        layer.momentum = samples / seen[layer]

    before = [(layer.training, layer.momentum) for layer in layers]
    hooks = [layer.register_forward_pre_hook(weigh, with_kwargs=True) for layer in layers]
    try:
        for layer in layers:
            layer.train()
        yield
    finally:
        for layer, hook, (training, momentum) in zip(layers, hooks, before, strict=True):
            hook.remove()
            layer.train(training)
            layer.momentum = momentum
