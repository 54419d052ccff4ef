"""Weight initialisation of all networks here."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from tradi._torch import CONVOLUTIONS

Model = TypeVar("Model", bound=nn.Module)


def he_initialised(model: Model) -> Model:
    r"""Initialise weights as in He et al. (2015), biases with 0 (the paper's section 3.1), and return the same model.

    $$ w \sim \mathcal N(0, 2 / n_{in}) $$

    For a transposed convolution n_in is torch's fan-in (as in `Kalman.paper()`), which counts the inputs of the
    backward pass: either direction suffices (their section 2.2). BatchNorm keeps torch's defaults, scale 1 and shift 0,
    and so does PReLU, slope 0.25.
    """
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, (nn.Linear, *CONVOLUTIONS))]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return model
