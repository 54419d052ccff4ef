from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tradi.models import PSPNet, ResNet, enet, wide_resnet
from tradi.models.initialisation import he_initialised

NETWORKS = {
    "wide_resnet": lambda: wide_resnet(10, 4),
    "enet": lambda: enet(12),
    "pspnet": lambda: he_initialised(PSPNet(ResNet((1, 1, 1, 1), 16), 12)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_start_as_he_and_everything_else_as_nothing(name: str) -> None:
    torch.manual_seed(0)
    layers = 0
    for layer in NETWORKS[name]().modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            layers += 1
            weight = layer.weight.detach()
            error = math.sqrt(0.5 / weight.numel())  # relative standard error of a standard deviation
            assert abs(weight.std().item() / math.sqrt(2 / weight[0].numel()) - 1) < 4.5 * error
            assert abs(weight.mean().item()) < 4.5 * math.sqrt(2 / weight[0].numel() / weight.numel())
            assert layer.bias is None or not layer.bias.any()
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert not layer.bias.any()
    assert layers > 10


def test_the_model_itself_comes_back() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    assert he_initialised(model) is model
