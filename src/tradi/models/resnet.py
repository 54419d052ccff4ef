"""Dilated residual networks (He et al., 2016; Yu and Koltun, 2016): the backbone of PSPNet."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tradi.ensemble.files import check_same_architecture, model_tensors

EXPANSION = 4  # output channels of a bottleneck per inner channel


class ResNet(nn.Module):
    """ResNet-50 without its classifier, with features at an eighth of the image's size.

    Layers 3 and 4 have dilations instead of strides. Parameters are named as in files of ImageNet weights: see
    `load_backbone`.

    Args:
        blocks: bottlenecks in each of the four layers; (3, 4, 23, 3) is ResNet-101.
        width: channels inside the bottlenecks of the first layer; they double with every layer.
    """

    def __init__(self, blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        one, two, three, four = (width * 2**i for i in range(4))
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = _layer(blocks[0], width, one)
        self.layer2 = _layer(blocks[1], one * EXPANSION, two, stride=2)
        # The first block would have had the stride: its convolution keeps the dilation of the layer before.
        self.layer3 = _layer(blocks[2], two * EXPANSION, three, dilations=(1, 2))
        self.layer4 = _layer(blocks[3], three * EXPANSION, four, dilations=(2, 4))
        self.channels = (three * EXPANSION, four * EXPANSION)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features after layer 3 and after layer 4."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        third = self.layer3(self.layer2(self.layer1(x)))
        return third, self.layer4(third)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, added to the input or to a projection of it."""

    def __init__(self, inputs: int, inner: int, stride: int, dilation: int) -> None:
        super().__init__()
        outputs = inner * EXPANSION
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Sequential | None = None
        if inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(project, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(shortcut + self.bn3(self.conv3(x)))


def _layer(blocks: int, inputs: int, inner: int, stride: int = 1, dilations: tuple[int, int] = (1, 1)) -> nn.Sequential:
    first, later = dilations
    rest = (Bottleneck(inner * EXPANSION, inner, 1, later) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inputs, inner, stride, first), *rest)


def load_backbone(path: str | PathLike[str], backbone: ResNet) -> None:
    """Load ImageNet weights into a backbone.

    Names are those of torchvision and timm; the classifier, `fc.*`, is ignored. BatchNorm's batch counters may be
    missing, as in old files. Weights may be in half precision.

    Args:
        path: a safetensors file, or a `state_dict` written by torch.save.
        backbone: is changed in place.

    Raises:
        ValueError: if the file cannot be read, or a tensor is missing, unexpected or of another shape.
    """
    own = model_tensors(backbone)
    saved = {
        name: tensor.to(own[name].dtype) if name in own and tensor.is_floating_point() else tensor
        for name, tensor in _read(path).items()
        if not name.startswith("fc.")
    }
    counters = {name: tensor for name, tensor in own.items() if name.endswith("num_batches_tracked")}
    check_same_architecture(counters | saved, own, str(path))
    backbone.load_state_dict(counters | saved)


def _read(path: str | PathLike[str]) -> dict[str, Tensor]:
    try:
        if Path(path).suffix == ".safetensors":
            return load_file(path)
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # decoders raise many kinds of errors
        raise ValueError(f"{path} cannot be read as a file of weights: {error}") from error
    if not isinstance(saved, dict) or not all(isinstance(value, Tensor) for value in saved.values()):
        raise ValueError(f"{path} is not a state_dict (tensors by name): save model.state_dict()")
    return saved
