from __future__ import annotations

import math

import torch
from torch import nn

from tradi.models import mlp


def test_layers_come_in_order() -> None:
    kinds = [type(layer) for layer in mlp(5, [7, 8], 3, batchnorm=True, dropout=0.1)]
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout]
    assert kinds == [*hidden, *hidden, nn.Linear]
    assert [type(layer) for layer in mlp(5, [7])] == [nn.Linear, nn.ReLU]


def test_weights_start_as_he() -> None:
    torch.manual_seed(0)
    linear = next(iter(mlp(784, [200])))
    assert isinstance(linear, nn.Linear)
    # 156,800 weights: the standard error of their standard deviation is 0.2%
    assert abs(linear.weight.std().item() / math.sqrt(2 / 784) - 1) < 0.01
    assert not linear.bias.any()
