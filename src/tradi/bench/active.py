"""Active learning: 20 labels, and then those that each method asks for, up to 500."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tradi import metrics
from tradi.acquisition import BatchBALD, bald, random
from tradi.bench.measures import CLASSIFICATION, REGRESSION, columns
from tradi.bench.methods import Deep, Dropout, Method, Single, Tradi, Untracked
from tradi.bench.mnist import load as load_mnist
from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe
from tradi.bench.rounds import Asking, Rounds
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.tables import ByMethod, Column, Needed
from tradi.data.uci import uci
from tradi.models import GaussianHead, TwoStage, mlp

POOL, TESTED = 2_000, 2_000  # images without a label, and test images
MEMBERS = 10
ROUNDS = Rounds((20, 60, 140, 260, 380, 500))
RANDOM = "Single network, random"


def methods(own: dict[str, Method], dropout: float | None = None) -> dict[str, Method]:
    """All rows; those of one task alone come after the baseline."""
    tradi = Tradi(members=MEMBERS)
    return {
        RANDOM: Asking(Single(), random),
        **own,
        "MC Dropout": Asking(Dropout(members=MEMBERS, dropout=dropout), bald),
        "Deep Ensemble of 5, random": Asking(Deep(runs=5), random),
        "Deep Ensemble of 5": Asking(Deep(runs=5), bald),
        "TRADI, random": Asking(tradi, random),
        "TRADI": Asking(tradi, bald),
        "TRADI, nothing tracked": Asking(Untracked(members=MEMBERS), bald),
        "TRADI, BatchBALD": Asking(tradi, BatchBALD()),
    }


def load_images(root: Path, split: int, seed: int) -> Data:
    """A pool of MNIST's training images and a part of its test images, others for each seed."""
    whole, generator = load_mnist(root, split, seed), torch.Generator().manual_seed(seed)
    (x, y), (test, labels) = whole.train, whole.test
    pool = torch.randperm(len(x), generator=generator)[:POOL]
    tested = torch.randperm(len(test), generator=generator)[:TESTED]
    return replace(whole, train=(x[pool], y[pool]), test=(test[tested], labels[tested]))


def image_network(data: Data, dropout: float | None) -> nn.Module:
    """Two hidden layers of 100, without BatchNorm, which few labels suffice for badly."""
    return mlp(data.inputs, [100, 100], 10, dropout=0.1 if dropout is None else dropout)


def load_table(name: str, root: Path, split: int, seed: int) -> Data:
    """A published split, another one for each seed: its training part is the pool."""
    del split
    source = uci(name, seed, root, validation=0.0, seed=seed)
    return Data(source.train, source.validation, source.test, unit=(source.target_mean, source.target_std))


def table_network(data: Data, dropout: float | None) -> nn.Module:
    """One hidden layer of 50, as in `uci`."""
    return GaussianHead(mlp(data.inputs, [50], dropout=dropout or 0.0), 50)


LABELS = methods({"Single network, confidence": Asking(Single(), metrics.one_minus_confidence)})
NUMBERS = methods({}, dropout=0.05)

# Looked at on validation images and on training rows that were held back, and tuned for no method.
IMAGES = Recipe("adam", 3e-3, weight_decay=1e-4, epochs=40, batch=32)
TABLES = Recipe("adam", 1e-2, weight_decay=1e-4, batch=32, stages=TwoStage(100, 20, nll_rate=0.3, patience=5))

ACCURACY, OF_LABELS = columns(CLASSIFICATION)[:2]
RMSE, OF_NUMBERS = columns(REGRESSION)[:2]
COST = (
    Column("a round, s", "round/seconds", digits=1),
    Column("of that beside its training %", "round/beside", 100, 0),
)


def _averaged(column: Column) -> Column:
    return replace(column, title=f"{column.title}, mean of rounds", metric=f"average/{column.metric}")


ACTIVE = Benchmark(
    "active",
    "Active learning: from 20 labels to 500",
    (
        Variant("mnist", load_images, image_network, IMAGES, methods=LABELS, rounds=ROUNDS),
        Variant("concrete", partial(load_table, "concrete"), table_network, TABLES, methods=NUMBERS, rounds=ROUNDS),
        Variant("kin8nm", partial(load_table, "kin8nm"), table_network, TABLES, methods=NUMBERS, rounds=ROUNDS),
    ),
    LABELS | NUMBERS,
    (
        Needed((ACCURACY, RMSE, OF_LABELS), ", labels needed", RANDOM),
        ByMethod((ACCURACY, OF_LABELS, _averaged(ACCURACY), *COST), ", in the last round"),
        ByMethod((RMSE, OF_NUMBERS, _averaged(RMSE), *COST), ", in the last round"),
    ),
    seeds=tuple(range(10)),
)
