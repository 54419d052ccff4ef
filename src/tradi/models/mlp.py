"""Multi-layer perceptrons: the paper's networks for toy, UCI and MNIST experiments."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from tradi.models.initialisation import he_initialised


def mlp(
    inputs: int, hidden: Sequence[int], outputs: int | None = None, *, batchnorm: bool = False, dropout: float = 0.0
) -> nn.Sequential:
    """Linear, (BatchNorm), ReLU, (Dropout) for every hidden width, then a Linear if `outputs` is given.

    Weights are initialised as in He et al. (2015), as in the paper's section 3.1.

    Args:
        inputs: number of inputs.
        hidden: widths of the hidden layers.
        outputs: number of outputs; None for no output layer.
        batchnorm: whether to add BatchNorm.
        dropout: dropout rate; 0 for no dropout layers.

    Returns:
        the network, in training mode.
    """
    layers: list[nn.Module] = []
    for width in hidden:
        layers.append(nn.Linear(inputs, width))
        layers += [nn.BatchNorm1d(width)] if batchnorm else []
        layers.append(nn.ReLU())
        layers += [nn.Dropout(dropout)] if dropout else []
        inputs = width
    layers += [nn.Linear(inputs, outputs)] if outputs else []
    return he_initialised(nn.Sequential(*layers))
