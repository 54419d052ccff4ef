"""The nine UCI regression sets of table 1, with their published splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from tradi.bench.methods import usual_methods
from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe
from tradi.bench.spec import Benchmark, Variant
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


UCI = Benchmark("uci", "UCI regression (table 1)", tuple(_variant(name) for name in NAMES), METHODS)
