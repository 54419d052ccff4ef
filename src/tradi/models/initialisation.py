"""How all networks here begin."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from tradi._torch import CONVOLUTIONS

Model = TypeVar("Model", bound=nn.Module)


def he_initialised(model: Model) -> Model:
    r"""Draw all weights as He et al. (2015), with zero biases, as in the paper's section 3.1; returns the model itself.

    $$ w \sim \mathcal N(0, 2 / n_{in}) $$

    Of a transposed convolution n_in is what torch (and `Kalman.paper()`) takes for it, the inputs of the backward pass:
    either direction is enough (their section 2.2). BatchNorm begins with scale 1 and shift 0 and PReLU with slope 0.25,
    as torch makes them.
    """
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, (nn.Linear, *CONVOLUTIONS))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model
