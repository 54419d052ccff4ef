"""The nine UCI regression sets of table 1, with their published splits."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import nn

from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.toy import METHODS
from tradi.data.uci import NAMES, uci
from tradi.models import mlp
from tradi.regression import MeanVariance, TwoStage

LARGE = {"kin8nm", "naval-propulsion-plant", "power-plant", "protein-tertiary-structure"}  # over 5,000 rows
# A long stage on the mean, and a short one on the variance that stops on validation data.
STAGES = TwoStage(mse_epochs=150, nll_epochs=30, nll_rate=0.1, patience=5)
# Of 0, 1e-4, 1e-3, 3e-3 and 1e-2, chosen by `benchmarks/uci_recipe.py`, which holds back a part of the training rows.
WEIGHT_DECAY = {
    "bostonHousing": 1e-2,
    "concrete": 1e-3,
    "energy": 1e-3,
    "kin8nm": 1e-3,
    "naval-propulsion-plant": 0.0,
    "power-plant": 1e-4,
    "protein-tertiary-structure": 0.0,
    "wine-quality-red": 1e-2,
    "yacht": 3e-3,
}


def load(name: str, root: Path, split: int, seed: int) -> Data:
    """One published split; a tenth of its training part is set aside to choose scales and to stop on."""
    del seed  # the split says all
    source = uci(name, split, root, validation=0.1, seed=split)
    return Data(source.train, source.validation, source.test, unit=(source.target_mean, source.target_std))


def network(hidden: int, data: Data, dropout: float | None) -> nn.Module:
    """One hidden layer, of 50 (protein: 100)."""
    return MeanVariance(mlp(data.inputs, [hidden], dropout=dropout or 0.0), hidden)


def _variant(name: str) -> Variant:
    protein = name == "protein-tertiary-structure"
    return Variant(
        name,
        partial(load, name),
        partial(network, 100 if protein else 50),
        Recipe("adam", 1e-2, weight_decay=WEIGHT_DECAY[name], batch=128 if name in LARGE else 32, stages=STAGES),
        splits=5 if protein else 20,
    )


UCI = Benchmark("uci", "UCI regression (table 1)", tuple(_variant(name) for name in NAMES), METHODS)
