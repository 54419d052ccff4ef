"""CamVid's cars, pedestrians and sign-symbols as boxes; bicyclists are left out of training, and come up in testing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import nn

from tradi.bench.boxes import DetectionProblem
from tradi.bench.methods import usual_methods
from tradi.bench.objects import TABLES
from tradi.bench.recipe import Recipe
from tradi.bench.spec import Benchmark, Variant
from tradi.data.camvid import camvid_boxes
from tradi.models import detector

# Not chosen by anything: the usual rate of Adam, and epochs that a machine without a graphics processor can bear.
RECIPE = Recipe("adam", 1e-3, weight_decay=1e-4, epochs=100, batch=8, decay="cosine")

ROWS = (
    "Single network",
    "MC Dropout",
    "Gaussian perturbation",
    "Deep Ensemble of 3",
    "TRADI",
    "TRADI, nothing tracked",
)
METHODS = usual_methods(members=10, searched=5, deep=3)


def load(size: tuple[int, int], root: Path, split: int, seed: int) -> DetectionProblem:
    """CamVid's boxes at a width and height."""
    del split, seed
    return DetectionProblem(camvid_boxes(root, size))


def network(problem: DetectionProblem, dropout: float | None) -> nn.Module:
    """The detector, whose dropout is its own."""
    del dropout
    return detector(problem.classes)


def small(problem: DetectionProblem, dropout: float | None) -> nn.Module:
    """The same with fewer channels."""
    del dropout
    return detector(problem.classes, width=4)


CAMVID_DETECTION = Benchmark(
    "camvid-detection",
    "Objects in CamVid at half its size, without bicyclists, against these",
    (
        Variant(
            "240x180",
            partial(load, (240, 180)),
            network,
            RECIPE,
            heavy=True,
            miniature=Variant("240x180", partial(load, (48, 36)), small, RECIPE),
        ),
    ),
    {name: METHODS[name] for name in ROWS},
    TABLES,
    seeds=(0, 1),
)
