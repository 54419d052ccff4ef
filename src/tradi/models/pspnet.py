"""PSPNet (Zhao et al., 2017): the paper's network for StreetHazards and BDD Anomaly."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tradi.models.initialisation import he_initialised
from tradi.models.resnet import ResNet

BINS = (1, 2, 3, 6)  # bins per side at each level of the pyramid (section 3.2)
DROPOUT = 0.1  # before the logits, as in the authors' network; the paper does not mention it


def pspnet(classes: int) -> PSPNet:
    """PSPNet with a dilated ResNet-50, for colour images of any size.

    Weights are initialised as in He et al. (2015); `load_backbone(path, model.backbone)` loads ImageNet weights.

    Args:
        classes: number of classes.

    Returns:
        the network, in training mode.
    """
    return he_initialised(PSPNet(ResNet(), classes))


class PSPNet(nn.Module):
    """Features, a pyramid of averages for the context of the scene, and logits for every pixel (figure 3).

    In training mode the output is a pair: the logits and those of the auxiliary head after layer 3, both at image size.
    The loss is the first's plus 0.4 times the second's (sections 4 and 5.2). In eval mode the output is the logits
    alone. A training batch needs at least two images, since BatchNorm has one value per image at the pyramid's top.

    Args:
        backbone: returns features after layers 3 and 4.
        classes: number of logits per pixel.
    """

    def __init__(self, backbone: ResNet, classes: int) -> None:
        super().__init__()
        third, fourth = backbone.channels
        level = fourth // len(BINS)
        self.backbone = backbone
        self.pyramid = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(bins), *_activated(nn.Conv2d(fourth, level, 1, bias=False)))
            for bins in BINS
        )
        self.head = _head(2 * fourth, fourth // 4, classes)
        self.auxiliary = _head(third, third // 4, classes)

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        third, fourth = self.backbone(image)
        context = [_resized(level(fourth), fourth) for level in self.pyramid]
        logits = _resized(self.head(torch.cat([fourth, *context], 1)), image)
        return (logits, _resized(self.auxiliary(third), image)) if self.training else logits


def _head(inputs: int, inner: int, classes: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, inner, 3, padding=1, bias=False)
    return nn.Sequential(*_activated(conv), nn.Dropout2d(DROPOUT), nn.Conv2d(inner, classes, 1))


def _activated(conv: nn.Conv2d) -> list[nn.Module]:
    return [conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU(inplace=True)]


def _resized(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, like.shape[2:], mode="bilinear")
