"""How much data says about each weight: where it says nothing, noise is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tradi._torch import tree_map
from tradi.ensemble.batches import Caller, batches
from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.copying import sharing
from tradi.posterior.layers import Layer
from tradi.prediction.likelihoods import Likelihood, per_value
from tradi.progress import track

# Squares that an estimate averages over, at the least: its standard error is then a quarter of its value.
SQUARES = 32


def fisher(
    model: nn.Module, layers: Sequence[Layer], data: Iterable[Any], likelihood: Likelihood
) -> list[dict[str, Tensor]]:
    r"""What n samples say about each weight of each layer, n on average over the layer.

    $$ I_k = n F_k / \bar F, \quad F_k = \sum_i g_{ik}^2 = \mathbb E \Big(\sum_i s_i g_{ik}\Big)^2, \quad
       g_{ik} = \partial \log p(y_i \mid x_i) / \partial \omega_k $$

    F is the diagonal of the empirical Fisher information. With independent random signs s_i it takes one backward pass
    a batch, whatever its size, and no gradient of any single sample. Dropout is off, and BatchNorm takes the
    statistics of the batch, as it did in training: what it normalises away is no information.

    Args:
        model: with its final weights; it is left as it is.
        layers: whose weights are asked about.
        data: (inputs, target) batches, gone through as often as it takes to have `SQUARES` of them.
        likelihood: of every target under the model's output; NaN is left out.
    """
    with torch.inference_mode(False), torch.enable_grad():
        model = sharing(model).eval()
        normalisers = running_layers(model).values()
        own = dict(model.named_parameters())
        weights = {name: own[name].requires_grad_() for layer in layers for name in layer.mean}
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        generator = torch.Generator().manual_seed(0)
        like = next(iter(weights.values())).detach()
        caller = Caller(model)
        squares = passes = samples = 0
        while squares < SQUARES:
            passes += 1
            for inputs, target in track(batches(data, "validation", like), "measuring Fisher information"):
                for layer in normalisers:
                    layer.train(isinstance(target, Tensor) and len(target) > 1)  # one sample has no statistics
                args, kwargs = caller.arguments(tree_map(_recordable, inputs), target)
                values = per_value(likelihood, model(*args, **kwargs), tree_map(_recordable, target))
                values = values.reshape(len(values), -1)
                # A row of NaN alone is left out beforehand: the gradient of its mean would be NaN, times 0 too.
                each = values[~values.isnan().all(1)].nanmean(1)
                each = each[each.isfinite()]
                squares += 1
                samples += len(each)
                if not each.requires_grad:
                    continue
                signs = torch.randint(0, 2, (len(each),), generator=generator).to(each) * 2 - 1
                gradients = torch.autograd.grad(each @ signs, list(weights.values()), allow_unused=True)
                for name, gradient in zip(weights, gradients, strict=True):
                    if gradient is not None:
                        total[name] += gradient.square()
    return [_in_samples({name: total[name] for name in layer.mean}, samples / passes) for layer in layers]


def _in_samples(squares: dict[str, Tensor], samples: float) -> dict[str, Tensor]:
    average = sum(s.double().sum().item() for s in squares.values()) / sum(s.numel() for s in squares.values())
    # Where no sample reaches a layer, or log_prob has no gradient, all weights are alike.
    return {name: s * (samples / average) if average > 0 else s + samples for name, s in squares.items()}


def _recordable(leaf: Any) -> Any:
    """Tensors made in inference mode cannot take part in a backward pass; copies can."""
    return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf
