"""What the speed of tracking is measured on: networks with a batch to train on, and lists of weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tradi.models import enet, mlp


@dataclass(frozen=True)
class Network:
    """A network, a batch for it, how many batches a data set to predict has, and an ordinary run's length in steps.

    Predictions of it are measured so many `rounds`.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    batches: int
    steps: int
    rounds: int = 8

    def train_step(self, optimizer: Optimizer) -> Callable[[], None]:
        def step() -> None:
            self.model.train()
            optimizer.zero_grad()
            F.cross_entropy(self.model(self.x), self.y).backward()
            optimizer.step()

        return step


def networks(quick: bool) -> dict[str, Network]:
    torch.manual_seed(0)
    few, height, width = (2, 45, 60) if quick else (8, 180, 240)
    return {
        # 9 epochs of 55,000 images, as `tradi bench mnist-ood` trains it; a test set of 10,000
        "mnist-mlp": Network(
            mlp(784, [200, 200, 200], 10, batchnorm=True, dropout=0.1),
            torch.randn(128, 784),
            torch.randint(10, (128,)),
            batches=2 if quick else 79,
            steps=3870,
        ),
        # 90 epochs of CamVid's 367 training images
        "enet": Network(
            enet(12),
            torch.randn(few, 3, height, width),
            torch.randint(12, (few, height, width)),
            batches=1 if quick else 8,  # 64 images; `tradi bench camvid-ood` refreshes on 96 and predicts 233
            steps=4140,
            rounds=4,
        ),
        "transformer": Network(
            Transformer(),
            torch.randint(256, (2 if quick else 16, 64)),
            torch.randint(256, (2 if quick else 16, 64)),
            batches=1 if quick else 8,
            steps=10_000,
        ),
    }


def convolutions() -> nn.Module:
    """A small convolutional network for images of 32x32."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = [*block(3, 32), nn.MaxPool2d(2), *block(32, 64), nn.MaxPool2d(2), *block(64, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Transformer(nn.Module):
    """A small language model on bytes: four blocks of width 128."""

    def __init__(self, width: int = 128, depth: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens))).transpose(1, 2)  # classes on axis 1


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norms[0](x)
        x = x + self.attention(seen, seen, seen, need_weights=False)[0]
        return x + self.feed(self.norms[1](x))


class Weights(nn.Module):
    """Weights of given shapes and nothing to run, with gradients that an optimizer may use."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList()
        for shape in shapes:
            layer = nn.Module()
            layer.register_parameter("weight", nn.Parameter(0.02 * torch.randn(shape)))
            layer.weight.grad = torch.zeros(1).expand(shape)  # type: ignore[union-attr]
            self.layers.append(layer)


def resnet18() -> list[tuple[int, ...]]:
    """The shapes of ResNet-18's 62 tensors, 11.7 million weights."""
    shapes: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    for inputs, width in ((64, 64), (64, 128), (128, 256), (256, 512)):
        for block, before in enumerate((inputs, width)):
            shapes += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if block == 0 and inputs != width:
                shapes += [(width, inputs, 1, 1), (width,), (width,)]
    return [*shapes, (1000, 512), (1000,)]


class Still(Optimizer):
    """An optimizer that moves nothing: what its steps take, beyond those that nobody follows, is the hooks on them."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    def step(self, closure: Any = None) -> None:
        del closure


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
