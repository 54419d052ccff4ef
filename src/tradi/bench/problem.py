"""What every method of a benchmark is given: one split of one problem, in memory or, of scenes, on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi.bench.boxes import DetectionProblem
from tradi.bench.identity import fingerprint, some
from tradi.bench.measures import Measure
from tradi.bench.segmentation import SegmentationProblem
from tradi.prediction.likelihoods import Classification, Gaussian, Likelihood

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Data:
    """One split of one problem.

    Args:
        train, validation, test: inputs and targets, standardised with training statistics.
        ood: inputs that belong to no class, by name.
        unit: mean and standard deviation of a regression target, in whose unit results are reported.
        extra: further tensors that a benchmark's figures need, by name.
        probes: inputs made out of validation data that belong to no class, by name: what settings may be chosen by.
        augment: what is done to the inputs of every training batch.
        at_once: samples that pass through a network together.
        refreshed: training samples that BatchNorm statistics are recomputed on.
        measures: of predictions for test data; by default `measures.CLASSIFICATION` or `measures.REGRESSION`.
    """

    train: Pair
    validation: Pair
    test: Pair
    ood: dict[str, Tensor] = field(default_factory=dict)
    unit: tuple[float, float] = (0.0, 1.0)
    extra: dict[str, Tensor] = field(default_factory=dict)
    probes: dict[str, Tensor] = field(default_factory=dict)
    augment: Callable[[Tensor], Tensor] | None = None
    at_once: int = 1000
    refreshed: int = 5120
    measures: tuple[Measure[[Any, Tensor]], ...] | None = None

    @property
    def is_regression(self) -> bool:
        return self.test[1].is_floating_point()

    @property
    def inputs(self) -> int:
        return self.train[0].shape[1]

    @property
    def about(self) -> dict[str, int | str]:
        """How many samples there are, and a fingerprint of them."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        tensors = [tensor for part in parts.values() for tensor in part] + list(self.ood.values())
        counts = {name: len(x) for name, (x, _) in parts.items()} | {name: len(x) for name, x in self.ood.items()}
        return {**counts, "fingerprint": fingerprint(map(some, tensors))}

    @property
    def validation_batches(self) -> list[Pair]:
        x, y = self.validation
        return list(zip(x.split(self.at_once), y.split(self.at_once), strict=True))

    @property
    def training_batches(self) -> list[Pair]:
        """Training data as it is, without augmentation, shuffled, the same order every time."""
        x, y = self.train
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        # BatchNorm cannot see a batch of one sample.
        return [(x[part], y[part]) for part in order.split(min(512, self.at_once)) if len(part) > 1]

    @property
    def likelihood(self) -> Likelihood:
        """What outputs mean."""
        return Gaussian() if self.is_regression else Classification()

    @property
    def refresh_batches(self) -> list[Tensor]:
        """Shuffled training inputs, the same ones every time."""
        x = self.train[0]
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: self.refreshed]
        # BatchNorm cannot see a batch of one sample.
        return [batch for batch in x[order].split(512) if len(batch) > 1]

    def first(self, samples: int) -> Data:
        """A few samples of everything, for a quick look."""
        train, validation, test = ((x[:samples], y[:samples]) for x, y in (self.train, self.validation, self.test))
        ood, probes = ({name: x[:samples] for name, x in part.items()} for part in (self.ood, self.probes))
        return replace(self, train=train, validation=validation, test=test, ood=ood, probes=probes)

    def training(self, batch: int) -> Shuffled:
        """Batches to train on, in an order of torch's own random numbers."""
        return Shuffled(self.train, batch, self.augment)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """What classification minimises; regression has its two stages."""
        return F.cross_entropy(output, target)


@dataclass(frozen=True, eq=False)
class Shuffled:
    """Training batches in memory, in a new order every time; a last batch of one sample is left out."""

    pair: Pair
    batch: int
    augment: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        samples = len(self.pair[0])
        return samples // self.batch + (samples % self.batch > 1)

    def __iter__(self) -> Iterator[Pair]:
        x, y = self.pair
        order = torch.randperm(len(x))
        x, y = x[order], y[order]  # once an epoch: then every batch is a view
        for i in range(len(self)):
            part = slice(i * self.batch, (i + 1) * self.batch)
            yield x[part] if self.augment is None else self.augment(x[part]), y[part]


Problem = Data | SegmentationProblem | DetectionProblem
