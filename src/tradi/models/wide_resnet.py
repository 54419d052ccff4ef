"""Wide residual networks (Zagoruyko and Komodakis, 2016): the paper's network for CIFAR-10."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from tradi.models.initialisation import he_initialised


def wide_resnet(
    depth: int = 28, width: int = 10, classes: int = 10, dropout: float = 0.3, channels: int = 3
) -> nn.Sequential:
    """WRN-depth-width: a convolution, three groups of residual blocks, global average pooling, a Linear (table 1).

    Args:
        depth: number of convolutions, 6n + 4 for n blocks per group.
        width: factor on the 16, 32 and 64 channels of the groups.
        classes: number of outputs.
        dropout: rate inside a block.
        channels: channels of an image.

    Returns:
        the network, in training mode.

    Raises:
        ValueError: if `depth` is not 6n + 4, or `width` is below 1.
    """
    blocks, rest = divmod(depth - 4, 6)
    if blocks < 1 or rest:
        raise ValueError(f"depth must be 6n + 4 with n >= 1, such as 16, 28 or 40, got {depth}")
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    narrow, middle, wide = 16 * width, 32 * width, 64 * width
    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv=_convolution(channels, 16),
        group1=_group(blocks, 16, narrow, 1, dropout),
        group2=_group(blocks, narrow, middle, 2, dropout),
        group3=_group(blocks, middle, wide, 2, dropout),
        norm=nn.BatchNorm2d(wide),
        relu=nn.ReLU(inplace=True),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        head=nn.Linear(wide, classes),
    )
    return he_initialised(nn.Sequential(parts))


class Block(nn.Module):
    """Two pre-activated 3x3 convolutions with dropout between them, in parallel with a shortcut (figure 1d).

    If the shape changes, the shortcut is a 1x1 convolution of the activated input, otherwise the input itself.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.activate = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True))
        self.residual = nn.Sequential(
            _convolution(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            _convolution(outputs, outputs),
        )
        changes = inputs != outputs or stride != 1
        self.project = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activate(x)
        shortcut = x if self.project is None else self.project(activated)
        return shortcut + self.residual(activated)


def _group(blocks: int, inputs: int, outputs: int, stride: int, dropout: float) -> nn.Sequential:
    first = Block(inputs, outputs, stride, dropout)
    return nn.Sequential(first, *(Block(outputs, outputs, 1, dropout) for _ in range(blocks - 1)))


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
