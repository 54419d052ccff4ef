"""MNIST (table 2) and MNIST against notMNIST (table 3, first block), under three training recipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from tradi.bench.ivon import Ivon
from tradi.bench.measures import CLASSIFICATION, against_ood, columns
from tradi.bench.methods import Tradi, usual_methods
from tradi.bench.problem import Data
from tradi.bench.published import table3
from tradi.bench.recipe import Recipe
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.tables import ByMethod
from tradi.bench.yardsticks import YARDSTICKS
from tradi.data import mnist, notmnist
from tradi.models import mlp

RECIPES = {
    # As the authors released it, but for its length: 9 epochs with the rate divided by 10 after 3 and 6.
    "adam": Recipe("adam", 1e-3, weight_decay=1e-2, epochs=9, decay=(3, 6)),
    "sgd": Recipe("sgd", 0.1, weight_decay=5e-4, momentum=0.9, epochs=12, decay="cosine"),
    "adamw": Recipe("adamw", 2e-3, weight_decay=5e-2, epochs=12, decay="cosine"),
}

HELD_OUT = (3, 9)  # of mnist-near

METHODS = usual_methods(multi=2) | {
    "IVON": Ivon(),
    "TRADI as in the paper": Tradi.paper(),
    "TRADI as released": Tradi.released(),
}


def network(data: Data, dropout: float | None) -> nn.Module:
    """Three hidden layers of 200 with BatchNorm (section 4.3), and the released script's dropout of 0.1."""
    classes = int(data.train[1].max()) + 1
    return mlp(data.inputs, [200, 200, 200], classes, batchnorm=True, dropout=0.1 if dropout is None else dropout)


def load(root: Path, split: int, seed: int) -> Data:
    """MNIST as vectors; 5,000 training images are set aside to choose scales on."""
    del split, seed
    source = mnist(root)
    return Data(source.train, source.validation, source.test)


def load_with_ood(root: Path, split: int, seed: int) -> Data:
    """The same, and notMNIST, which nothing but the final evaluation sees."""
    del split, seed
    source = mnist(root, ood={"notMNIST": notmnist(root).images})
    return Data(source.train, source.validation, source.test, dict(source.ood), probes=probes(source.validation[0]))


def load_near(root: Path, split: int, seed: int) -> Data:
    """Eight digits; the evaluation alone sees what is near them: the two others, and digits lying on their side."""
    del split, seed
    source = mnist(root)
    train, validation, test = (_without(HELD_OUT, *part) for part in (source.train, source.validation, source.test))
    images, labels = source.test
    unknown = {
        "held-out digits": images[torch.isin(labels, torch.tensor(HELD_OUT))],
        "rotated digits": test[0].view(-1, 28, 28).rot90(1, (1, 2)).reshape(len(test[0]), -1),
    }
    return Data(train, validation, test, unknown)


def _without(digits: tuple[int, ...], images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Images of the other digits, whose classes are numbered without gaps."""
    left = [digit for digit in range(10) if digit not in digits]
    number = torch.full((10,), -1)
    number[left] = torch.arange(len(left))
    kept = number[labels] >= 0
    return images[kept], number[labels[kept]]


def probes(images: Tensor) -> dict[str, Tensor]:
    """Validation images that are digits no more: far (inverted, shuffled, mere noise) and near (turned, mixed)."""
    generator = torch.Generator().manual_seed(0)
    low, high = images.min(), images.max()
    others = images[torch.randperm(len(images), generator=generator)]
    return {
        "turned": images.view(-1, 28, 28).rot90(1, (1, 2)).reshape(len(images), -1),
        "mixed": (images + others) / 2,
        "inverted": low + high - images,
        "shuffled": images[:, torch.randperm(images.shape[1], generator=generator)],
        "noise": low + (high - low) * torch.rand(images.shape, generator=generator),
    }


MNIST = Benchmark(
    "mnist",
    "MNIST (table 2)",
    (Variant("sgd", load, network, replace(RECIPES["sgd"], epochs=30)),),  # better than 12 on validation data
    METHODS,
    (ByMethod(columns(CLASSIFICATION)),),
    seeds=tuple(range(5)),
    published={  # table 2
        "Deep Ensemble": {"nll": 0.035, "accuracy": 0.9888},
        "MC Dropout": {"nll": 0.065, "accuracy": 0.9819},
        "SWAG": {"nll": 0.041, "accuracy": 0.9878},
        "TRADI": {"nll": 0.044, "accuracy": 0.9863},
    },
)

MNIST_OOD = Benchmark(
    "mnist-ood",
    "MNIST against notMNIST (table 3), under three recipes",
    tuple(Variant(name, load_with_ood, network, recipe) for name, recipe in RECIPES.items()),
    METHODS | YARDSTICKS,
    (against_ood(),),
    seeds=tuple(range(5)),
    published=table3(
        "notMNIST",
        {
            "MCP": (94.0, 96.0, 24.6, 0.305),
            "Gaussian perturbation": (94.8, 96.4, 19.2, 0.500),
            "MC Dropout": (91.8, 94.9, 35.6, 0.494),
            "Deep Ensemble": (97.2, 98.0, 9.2, 0.462),
            "SWAG": (90.9, 94.4, 31.9, 0.529),
            "TRADI": (96.7, 97.6, 11.0, 0.407),
        },
    ),
)

MNIST_NEAR = Benchmark(
    "mnist-near",
    "MNIST without two digits, against these and against digits lying on their side, under three recipes",
    tuple(Variant(name, load_near, network, recipe) for name, recipe in RECIPES.items()),
    METHODS | YARDSTICKS,
    (against_ood(),),
    seeds=tuple(range(5)),
)
