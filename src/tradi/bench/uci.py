"""The nine UCI regression sets of table 1, with their published splits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from tradi.bench.measures import REGRESSION, columns
from tradi.bench.methods import usual_methods
from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.tables import ByMethod, ByVariant, Paired, Published
from tradi.bench.toy import METHODS
from tradi.data.uci import NAMES, uci
from tradi.models import mlp
from tradi.models.regression import GaussianHead, TwoStage


@dataclass(frozen=True)
class Setting:
    """What differs between the sets: the recipe of table 1's authors is not known, and no recipe fits all nine.

    Args:
        epochs: on the squared error.
        batch: samples a step.
        dropout: after the hidden layer.
        weight_decay: L2.
    """

    epochs: int
    batch: int
    dropout: float = 0.0
    weight_decay: float = 0.0


# Chosen by `benchmarks/uci_recipe.py`, which holds back a part of the training rows and reads no test rows.
SETTINGS = {
    "bostonHousing": Setting(400, 32, dropout=0.2, weight_decay=1e-3),
    "concrete": Setting(300, 32, dropout=0.05, weight_decay=1e-4),
    "energy": Setting(300, 32, weight_decay=1e-3),
    "kin8nm": Setting(150, 128, dropout=0.02, weight_decay=1e-4),
    "naval-propulsion-plant": Setting(150, 128),
    "power-plant": Setting(150, 64),
    "protein-tertiary-structure": Setting(100, 128),
    "wine-quality-red": Setting(100, 32, dropout=0.3, weight_decay=1e-3),
    "yacht": Setting(400, 16, dropout=0.02, weight_decay=1e-4),
}
# Where the network has no dropout, MC Dropout trains one of its own that has.
OWN_DROPOUT = 0.05


def load(name: str, root: Path, split: int, seed: int) -> Data:
    """One published split; a tenth of its training part is set aside to choose scales and to stop on."""
    del seed  # the split says all
    source = uci(name, split, root, validation=0.1, seed=split)
    return Data(source.train, source.validation, source.test, unit=(source.target_mean, source.target_std))


def network(hidden: int, own: float, data: Data, dropout: float | None) -> nn.Module:
    """One hidden layer, of 50 (protein: 100)."""
    return GaussianHead(mlp(data.inputs, [hidden], dropout=own if dropout is None else dropout), hidden)


def _variant(name: str) -> Variant:
    protein, setting = name == "protein-tertiary-structure", SETTINGS[name]
    return Variant(
        name,
        partial(load, name),
        partial(network, 100 if protein else 50, setting.dropout),
        # A long stage on the mean, and a short one on the variance that stops on validation data.
        Recipe(
            "adam",
            1e-2,
            weight_decay=setting.weight_decay,
            batch=setting.batch,
            stages=TwoStage(mse_epochs=setting.epochs, nll_epochs=30, nll_rate=0.3, patience=5),
        ),
        splits=5 if protein else 20,
        methods=METHODS | usual_methods(dropout=None if setting.dropout else OWN_DROPOUT),
    )


def _published(rmse: tuple[float, ...], nll: tuple[float, ...]) -> Published:
    names = ("MC Dropout", "Deep Ensemble", "TRADI")
    return {name: {"rmse": error, "nll": loss} for name, error, loss in zip(names, rmse, nll, strict=True)}


# Table 1: RMSE and NLL of MC Dropout, Deep Ensembles and TRADI (the first two as their own papers report them).
PUBLISHED: dict[str, Published] = {
    "bostonHousing": _published((2.97, 3.28, 2.84), (2.46, 2.41, 2.36)),
    "concrete": _published((5.23, 6.03, 5.20), (3.04, 3.06, 3.03)),
    "energy": _published((1.66, 2.09, 1.20), (1.99, 1.38, 1.40)),
    "kin8nm": _published((0.10, 0.09, 0.09), (-0.95, -1.20, -0.98)),
    "naval-propulsion-plant": _published((0.01, 0.00, 0.00), (-3.80, -5.63, -2.83)),
    "power-plant": _published((4.02, 4.11, 4.02), (2.80, 2.79, 2.82)),
    "protein-tertiary-structure": _published((4.36, 4.71, 4.35), (2.89, 2.83, 2.80)),
    "wine-quality-red": _published((0.62, 0.64, 0.62), (0.93, 0.94, 0.93)),
    "yacht": _published((1.11, 1.58, 1.05), (1.55, 1.18, 1.18)),
}

UCI = Benchmark(
    "uci",
    "UCI regression (table 1)",
    tuple(_variant(name) for name in NAMES),
    METHODS,
    (
        ByVariant(
            columns(REGRESSION)[:2],  # RMSE and NLL, as published
            "UCI",
            "Mean ± standard deviation over the published splits, in the target's unit; NLL of the moment-matched "
            "Gaussian.",
            PUBLISHED,
        ),
        Paired(
            tuple(replace(column, digits=4) for column in columns(REGRESSION)[:2]),
            "UCI",
            "TRADI",
            ("Deep Ensemble of 5", "Deep Ensemble of 5, recalibrated", "TRADI, nothing tracked"),
        ),
        ByMethod(columns(REGRESSION)),
    ),
)
