"""Refresh of running statistics: what BatchNorm would have seen in training with other weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tradi._torch import BatchNorm, RunningNorm
from tradi.ensemble.batches import Caller, Pair
from tradi.ensemble.parameter_swap import ParameterSwap

State = dict[str, Tensor]

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def running_layers(model: nn.Module) -> dict[str, RunningNorm]:
    """The layers that keep running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, RunningNorm) and module.running_mean is not None
    }


def statistics_of(model: nn.Module, state: State) -> State:
    """The running statistics in a state, or else the model's own, by name."""
    names = [f"{prefix}.{part}" for prefix in running_layers(model) for part in STATISTICS]
    own = dict(model.named_buffers())
    return {name: state.get(name, own[name]) for name in names}


@torch.no_grad()
def refreshed(
    model: nn.Module,
    swap: ParameterSwap,
    caller: Caller,
    states: list[State],
    data: Iterable[Pair],
) -> list[State]:
    r"""Running statistics over the data for weights that are not the model's own (paper, section 3.5).

    $$ \bar s = \sum_b n_b s_b \big/ \sum_b n_b $$

    over the statistics s_b of batches of n_b samples: with batches of one size this is the cumulative average of
    `BatchNorm(momentum=None)`, and a short last batch counts by its length.

    Args:
        model: gives the layers; their mode and momentum are restored, whatever happens.
        swap: puts states into the model.
        caller: passes inputs to the model.
        states: weights and buffers to run it with, by name; for each of them statistics are collected.
        data: (inputs, target) pairs.
    """
    layers = running_layers(model)
    names = [(f"{name}.{part}", getattr(m, part)) for name, m in layers.items() for part in STATISTICS]
    every = [swap.with_state(state | {name: torch.zeros_like(value) for name, value in names}) for state in states]
    seen = [dict.fromkeys(layers.values(), 0) for _ in states]
    with collecting(list(layers.values())) as weigh:
        for inputs, target in data:
            args, kwargs = caller.arguments(inputs, target)
            for member, weigh.seen in zip(every, seen, strict=True):
                with member:
                    model(*args, **kwargs)
    return [{name: state[name] for name, _ in names} for state in (member.state for member in every)]


def paired(model: nn.Module, fresh: State, trained: State, trained_fresh: State) -> State:
    r"""A member's statistics, as training would have left them: the refresh moves them by what the weights changed.

    $$ m = m_{\text{run}} + (m_{\text{member}} - m_{\text{trained}}) \sqrt r, \quad
       v = v_{\text{run}} + (v_{\text{member}} - v_{\text{trained}})\, r, \quad
       r = \frac{v_{\text{run}} + \epsilon}{v_{\text{trained}} + \epsilon} $$

    A refresh sees other data than training did: fewer samples, no dropout, no augmentation. The trained network,
    refreshed on the same data, shows what that alone changes. A member without noise is exactly the trained network.

    Args:
        model: gives the layers.
        fresh: what `refreshed` found for the member.
        trained: the trained network's own statistics, by name.
        trained_fresh: what `refreshed` found for the trained network.
    """
    found = dict(trained)
    for prefix, layer in running_layers(model).items():
        mean, var = f"{prefix}.running_mean", f"{prefix}.running_var"
        ratio = (trained[var] + layer.eps) / (trained_fresh[var] + layer.eps)
        found[mean] = trained[mean] + (fresh[mean] - trained_fresh[mean]) * ratio.sqrt()
        found[var] = (trained[var] + (fresh[var] - trained_fresh[var]) * ratio).clamp_min(0)
    return found


class Weigh:
    """A hook that gives a batch its share in the average of those that were seen: momentum n_b over the sum so far."""

    seen: dict[RunningNorm, int]

    def __call__(self, layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        assert isinstance(layer, RunningNorm)
        x = args[0] if args else kwargs["input"]
        samples = x.shape[0]
        if isinstance(layer, BatchNorm) and x.numel() == x.shape[1]:
            raise ValueError(
                "BatchNorm cannot be refreshed on a batch of one sample: use drop_last=True or larger batches"
            )
        self.seen[layer] += samples  # a layer that is used twice in a pass sees twice as much
        vars(layer)["momentum"] = samples / self.seen[layer]  # as setting it does, without torch's search for its kind


@contextmanager
def collecting(layers: list[RunningNorm]) -> Iterator[Weigh]:
    """The layers in training mode, averaging the statistics of what they see; `seen` begins with 0 for each of them."""
    before = [(layer.training, layer.momentum) for layer in layers]
    weigh = Weigh()
    hooks = [layer.register_forward_pre_hook(weigh, with_kwargs=True) for layer in layers]
    try:
        for layer in layers:
            layer.train()
        yield weigh
    finally:
        for layer, hook, (training, momentum) in zip(layers, hooks, before, strict=True):
            hook.remove()
            layer.train(training)
            layer.momentum = momentum
