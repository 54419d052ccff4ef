"""From a standardised matrix and a target to an ensemble: network, training, conditioning, scale."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tradi.ensemble.ensemble import Ensemble, load_ensemble
from tradi.likelihoods import Classification, Gaussian
from tradi.methods.tradi import TRADI
from tradi.models.mlp import mlp
from tradi.models.regression import GaussianHead, TwoStage
from tradi.progress import track

Rows = tuple[Tensor, Tensor]  # inputs and target

AT_ONCE = 4096  # rows a pass, when nothing is trained
SMALLEST_VALIDATION = 5  # rows; fewer say nothing


@dataclass(frozen=True)
class Options:
    """How a network for a table is trained. The defaults were chosen on rows held back from training parts.

    Args:
        hidden: widths of the hidden layers; None takes 50 for up to 2,000 rows, and two layers of 100 for more.
        steps: optimizer steps, about, in at most 400 passes; a number's variance gets up to a fifth more. None takes
            6,000, and 12,000 for over 2,000 rows.
        batch: rows a step; None takes a fortieth of the rows, between 16 and 256.
        lr: Adam's learning rate; it falls along a half cosine.
        weight_decay: L2.
        dropout: after every hidden layer.
        patience: early stopping, in epochs without a lower validation loss.
        validation: share of the rows to stop on, and to choose the scale of the noise by.
        members: networks in the ensemble.
        seed: of everything random.

    Raises:
        ValueError: if an option is out of range.
    """

    hidden: tuple[int, ...] | None = None
    steps: int | None = None
    batch: int | None = None
    lr: float = 1e-2
    weight_decay: float = 1e-4
    dropout: float = 0.0
    patience: int = 5
    validation: float = 0.1
    members: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "patience", "members"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for width in self.hidden or ():
            if width < 1:
                raise ValueError(f"hidden must be widths of at least 1, got {self.hidden}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be finite and not negative, got {self.weight_decay}")
        for name in ("dropout", "validation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")

    def widths(self, rows: int) -> tuple[int, ...]:
        """Widths of the hidden layers, for so many training rows."""
        if self.hidden is not None:
            return self.hidden
        return (50,) if rows <= MANY else (100, 100)

    def batch_size(self, rows: int) -> int:
        """Rows a step."""
        return min(self.batch or min(max(rows // 40, 16), 256), rows)

    def epochs(self, rows: int) -> int:
        """Passes over the training rows."""
        steps = self.steps or (6_000 if rows <= MANY else 12_000)
        return min(max(round(steps / -(-rows // self.batch_size(rows))), 1), MOST_EPOCHS)


MANY = 2_000
MOST_EPOCHS = 400


class Shuffled:
    """Batches of rows in memory, in another order at every pass.

    Args:
        rows: inputs and target.
        size: rows a batch.
    """

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows, self.size = rows, size

    def __iter__(self) -> Iterator[Rows]:
        x, y = self.rows
        for part in torch.randperm(len(x)).split(self.size):
            yield x[part], y[part]


def in_order(rows: Rows, size: int = AT_ONCE) -> list[Rows]:
    """The rows as batches, in a fixed order."""
    return list(zip(rows[0].split(size), rows[1].split(size), strict=True))


def regression_network(inputs: int, hidden: Sequence[int], dropout: float = 0.0) -> GaussianHead:
    """A network that predicts the mean of a number and its variance, in double precision."""
    return GaussianHead(mlp(inputs, hidden, dropout=dropout), (inputs, *hidden)[-1]).double()


def classification_network(inputs: int, hidden: Sequence[int], classes: int, dropout: float = 0.0) -> nn.Module:
    """A network that predicts the logits of classes, in double precision."""
    return mlp(inputs, hidden, classes, dropout=dropout).double()


def fit_numbers(train: Rows, validation: Rows | None, options: Options) -> Ensemble:
    """Train on numbers, the mean first and then the variance (paper, section 3.3), and sample an ensemble.

    Args:
        train: standardised inputs (rows, columns) and target (rows, 1).
        validation: rows to stop on and to choose the scale by.
        options: of the training.
    """
    rows = len(train[0])
    with _seeded(options.seed):
        network = regression_network(train[0].shape[1], options.widths(rows), options.dropout)
        optimizer = _adam(network, options)
        tracker = TRADI(network, optimizer)
        stages = TwoStage(options.epochs(rows), max(options.epochs(rows) // 5, 1), 0.3, options.patience)
        held = None if validation is None else in_order(validation)
        stages.fit(network, optimizer, Shuffled(train, options.batch_size(rows)), held)
        posterior = tracker.posterior().fit(in_order(train), held, likelihood=Gaussian(), seed=options.seed)
        return settled(posterior.sample(options.members, seed=options.seed), network)


def fit_classes(train: Rows, validation: Rows | None, classes: int, options: Options) -> Ensemble:
    """Train on labels, until validation data asks to stop, and sample an ensemble.

    Args:
        train: standardised inputs (rows, columns) and labels (rows,).
        validation: rows to stop on and to choose the scale by.
        classes: how many there are.
        options: of the training.
    """
    rows = len(train[0])
    with _seeded(options.seed):
        network = classification_network(train[0].shape[1], options.widths(rows), classes, options.dropout)
        optimizer = _adam(network, options)
        tracker = TRADI(network, optimizer)
        _train_classes(network, optimizer, Shuffled(train, options.batch_size(rows)), validation, options)
        held = None if validation is None else in_order(validation)
        temperature = validation is not None and len(validation[0]) >= ENOUGH_TO_TEMPER
        posterior = tracker.posterior().fit(
            in_order(train), held, likelihood=Classification(), temperature=temperature, seed=options.seed
        )
        return settled(posterior.sample(options.members, seed=options.seed), network)


ENOUGH_TO_TEMPER = 100  # validation rows


def _train_classes(
    network: nn.Module, optimizer: torch.optim.Optimizer, data: Shuffled, validation: Rows | None, options: Options
) -> None:
    rows = len(data.rows[0])
    epochs = options.epochs(rows)
    best, waited = math.inf, 0
    for epoch in track(range(epochs), "training, epochs", epochs):
        optimizer.param_groups[0]["lr"] = options.lr * (0.3 + 0.35 * (1 + math.cos(math.pi * epoch / epochs)))
        network.train()
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimizer.step()
        if validation is None:
            continue
        network.eval()
        with torch.no_grad():
            loss = F.cross_entropy(network(validation[0]), validation[1]).item()
        best, waited = (loss, 0) if loss < best else (best, waited + 1)
        if waited >= options.patience:
            break


def settled(ensemble: Ensemble, network: nn.Module) -> Ensemble:
    """The members themselves, without the training data that they are drawn with: it can be pickled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ensemble.safetensors"
        ensemble.save(path)
        return load_ensemble(path, network)


def _adam(network: nn.Module, options: Options) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), options.lr, weight_decay=options.weight_decay, fused=True)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of our own; the user's generator stays where it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
