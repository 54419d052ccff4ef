"""Transfer learning: a network that knows some classes is fine-tuned on a few images of others."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tradi.bench.measures import CLASSIFICATION, against_ood, columns
from tradi.bench.methods import Deep, Laplace, Method, Single, Tradi
from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.tables import ByMethod
from tradi.data import crop_and_flip, in_colour, mnist, notmnist
from tradi.data.cifar10 import TEST, TRAIN, read_batch
from tradi.data.images import Labelled, standardised
from tradi.data.root import find
from tradi.methods import TRADI
from tradi.models import mlp, wide_resnet

SIZES = (50, 200, 1000)  # images to fine-tune on; as many more are for validation
FAR = 1000  # images of a data set of another kind
KNOWN = "classes of the first training"  # an OOD set: its labels are none of the new ones


@dataclass(frozen=True)
class Scratch(Single):
    """A network that begins with random weights, and is trained on the few images alone."""

    def recipe(self, usual: Recipe) -> Recipe:
        return replace(usual, scratch=True)


@dataclass(frozen=True, kw_only=True)
class WithPrior(Tradi):
    """TRADI, whose prior is the posterior of the first training."""

    @property
    def tracker_name(self) -> str:
        return f"{super().tracker_name}, with a prior"

    def build(self, model: nn.Module, optimizer: Optimizer, steps: int, recipe: Recipe) -> TRADI:
        del steps
        return TRADI(model, optimizer, kalman=self.kalman, select=self.select, prior=recipe.prior)


METHODS: dict[str, Method] = {
    "From scratch": Scratch(),
    "Single network": Single(),
    "Laplace, last layer": Laplace(members=10),
    "Deep Ensemble of 5": Deep(),
    "TRADI": Tradi(members=10),
    "TRADI with a prior": WithPrior(members=10),
}


def first_half(root: Path, split: int, seed: int) -> Data:
    """CIFAR-10's classes 0 to 4, at half of its size."""
    del split, seed
    return _cifar(root, None, 0)


def second_half(size: int, root: Path, split: int, seed: int) -> Data:
    """A few images of CIFAR-10's classes 5 to 9; against the first five, and against letters."""
    del split
    return _cifar(root, size, seed)


def digits(root: Path, split: int, seed: int) -> Data:
    """MNIST."""
    del split, seed
    source = mnist(root)
    return Data(source.train, source.validation, source.test)


def letters(size: int, root: Path, split: int, seed: int) -> Data:
    """A few images of notMNIST; against digits, and against CIFAR-10's in grey."""
    del split
    images = notmnist(root)
    coloured, _ = read_batch(find(root, (TEST,), "cifar10"))
    grey = coloured[:FAR, :, 2:-2, 2:-2].float().mean(1)
    # Identical images, of which there are many, are on one side.
    known = torch.tensor([zlib.crc32(image.numpy().tobytes()) % 2 == 0 for image in images.images])
    train, validation = _drawn((images.images[known], images.labels[known]), size, seed)
    others = {"train": train[0], "validation": validation[0], "test": images.images[~known], "CIFAR-10": grey}
    source = mnist(root, ood=others)  # standardised as digits are, which the network knows
    x = source.ood
    return Data(
        (x["train"], train[1]),
        (x["validation"], validation[1]),
        (x["test"], images.labels[~known]),
        {KNOWN: source.test[0][:: len(source.test[0]) // FAR], "CIFAR-10": x["CIFAR-10"]},
    )


def convolutional(head: str, data: Data, dropout: float | None) -> nn.Module:
    """WRN-10-1, whose head has a name of its own."""
    body = wide_resnet(10, 1, 5, 0.0 if dropout is None else dropout)[:-1]
    return nn.Sequential(OrderedDict([("body", body), (head, nn.Linear(64, int(data.train[1].max()) + 1))]))


def fully_connected(head: str, data: Data, dropout: float | None) -> nn.Module:
    """Three hidden layers of 200 with BatchNorm, and a head that has a name of its own."""
    body = mlp(data.inputs, [200, 200, 200], batchnorm=True, dropout=0.1 if dropout is None else dropout)
    return nn.Sequential(OrderedDict([("body", body), (head, nn.Linear(200, 10))]))


def _drawn(pool: Labelled, size: int, seed: int) -> tuple[Labelled, Labelled]:
    """Images to fine-tune on, and as many for validation, others for every seed."""
    order = torch.randperm(len(pool[0]), generator=torch.Generator().manual_seed(seed))
    one, two = order[:size], order[size : 2 * size]
    return (pool[0][one], pool[1][one]), (pool[0][two], pool[1][two])


def _cifar(root: Path, size: int | None, seed: int) -> Data:
    """The first training's data, or that of the second, standardised as the first is."""
    batches = [read_batch(find(root, (path,), "cifar10")) for path in (*TRAIN, TEST)]
    test = batches.pop()
    train = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    first, second = ((_only(train, new), _only(test, new)) for new in (False, True))
    end = len(first[0][0]) * 9 // 10
    parts = [(first[0][0][:end], first[0][1][:end]), (first[0][0][end:], first[0][1][end:]), first[1]]
    if size is None:
        source = standardised(parts, {}, 5, over=(0, 2, 3))
        pairs = (source.train, source.validation, source.test)
        train_, validation, tested = ((_laid_out(x), y) for x, y in pairs)
        return Data(train_, validation, tested, augment=_changed, at_once=128, refreshed=1024)
    tuning, held = _drawn(second[0], size, seed)
    images = notmnist(root).images
    far = in_colour(images[:: len(images) // FAR])
    new = {"train": tuning[0], "validation": held[0], "test": second[1][0], "known": first[1][0], "far": far}
    x = {name: _laid_out(one) for name, one in standardised(parts, new, 5, over=(0, 2, 3)).ood.items()}
    return Data(
        (x["train"], tuning[1]),
        (x["validation"], held[1]),
        (x["test"], second[1][1]),
        {KNOWN: x["known"], "notMNIST": x["far"]},
        augment=_changed,
        at_once=128,
        refreshed=1024,
    )


def _only(part: Labelled, new: bool) -> Labelled:
    """Images of one half of the classes, which are numbered from 0."""
    images, labels = part
    mine = (labels >= 5) == new
    return images[mine], labels[mine] % 5


def _laid_out(images: Tensor) -> Tensor:
    """Half the size, channels last: a quarter of the time."""
    images = F.avg_pool2d(images, 2) if images.shape[2] == 32 else images
    return images.contiguous(memory_format=torch.channels_last)


def _changed(images: Tensor) -> Tensor:
    return _laid_out(crop_and_flip(images, 2))


CIFAR = Variant(
    "cifar10 0 to 4",
    first_half,
    partial(convolutional, "first"),
    Recipe("sgd", 0.1, weight_decay=5e-4, momentum=0.9, epochs=20, decay="cosine"),
    heavy=True,
)
DIGITS = Variant(
    "digits",
    digits,
    partial(fully_connected, "digits"),
    Recipe("sgd", 0.1, weight_decay=5e-4, momentum=0.9, epochs=3, decay="cosine"),
    heavy=True,
)
TUNING = Recipe("sgd", 0.0, weight_decay=5e-4, momentum=0.9, batch=32, decay="cosine")
# The rate, and epochs by size: chosen on validation images of seed 100, which no table has, by a single network's NLL.
SETTINGS = {"cifar10": (0.05, {50: 40, 200: 20, 1000: 10}), "letters": (0.01, {50: 40, 200: 40, 1000: 10})}


def _recipe(name: str, size: int) -> Recipe:
    rate, epochs = SETTINGS[name]
    return replace(TUNING, lr=rate, epochs=epochs[size])


TRANSFER = Benchmark(
    "transfer",
    "Transfer learning: a network that knows some classes, fine-tuned on a few images of others",
    tuple(
        Variant(
            f"{name}-{size}",
            partial(load, size),
            partial(network, head),
            _recipe(name, size),
            before=before,
        )
        for name, load, network, head, before in (
            ("cifar10", second_half, convolutional, "second", CIFAR),
            ("letters", letters, fully_connected, "letters", DIGITS),
        )
        for size in SIZES
    ),
    METHODS,
    (ByMethod(columns(CLASSIFICATION)), against_ood()),
    seeds=tuple(range(5)),
)
