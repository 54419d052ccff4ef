"""StreetHazards and BDD Anomaly (table 3): PSPNet with a ResNet-50, begun with ImageNet weights or from scratch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from tradi.bench.camvid import METHODS
from tradi.bench.pixels import TABLES
from tradi.bench.published import Figures, table3_pixels
from tradi.bench.recipe import Recipe
from tradi.bench.segmentation import SegmentationProblem
from tradi.bench.spec import Benchmark, Variant
from tradi.data import streethazards
from tradi.data.bdd import LEGEND as BDD_LEGEND
from tradi.data.bdd import bdd_anomaly
from tradi.data.streethazards import LEGEND as STREETHAZARDS_LEGEND
from tradi.data.streethazards import SIZE
from tradi.models import PSPNet, ResNet, load_backbone, pspnet
from tradi.models.initialisation import he_initialised

BACKBONES = ("ImageNet/resnet50.safetensors", "ImageNet/resnet50.pth")  # torchvision's or timm's, below the data root

# Rate, decay, momentum and weight decay of those who published both data sets, whom the paper follows; batch and epochs
# are ours.
RECIPE = Recipe("sgd", 0.02, weight_decay=1e-4, momentum=0.9, epochs=20, batch=8, decay="polynomial")

Size = tuple[int, int]
Load = Callable[[Size, Path, int, int], SegmentationProblem]


def load_streethazards(size: Size, root: Path, split: int, seed: int) -> SegmentationProblem:
    """Simulated streets; strange objects in them are OOD."""
    del split, seed
    return SegmentationProblem(streethazards(root, size), STREETHAZARDS_LEGEND, at_once=2, refreshed=64)


def load_bdd(size: Size, root: Path, split: int, seed: int) -> SegmentationProblem:
    """Photographs of streets; motorcycles and trains are OOD."""
    del split, seed
    return SegmentationProblem(bdd_anomaly(root, size), BDD_LEGEND, at_once=2, refreshed=64)


def with_backbone(load: Load, size: Size, root: Path, split: int, seed: int) -> SegmentationProblem:
    """The same, and the file of ImageNet weights that networks begin with."""
    found = [root / path for path in BACKBONES if (root / path).exists()]
    if not found:
        raise FileNotFoundError(
            f"{root / BACKBONES[0]} (or .pth) is missing: put a state_dict of ResNet-50 there, as torchvision and timm "
            "publish it, or train without it (--variants scratch)"
        )
    return replace(load(size, root, split, seed), backbone=found[0])


def network(scenes: SegmentationProblem, dropout: float | None) -> nn.Module:
    """PSPNet, whose dropout is its own."""
    del dropout
    model = pspnet(scenes.classes)
    if scenes.backbone is not None:
        load_backbone(scenes.backbone, model.backbone)
    return model


def tiny(scenes: SegmentationProblem, dropout: float | None) -> nn.Module:
    """The same with a fraction of the layers and channels, for quick runs."""
    del dropout
    return he_initialised(PSPNet(ResNet((1, 1, 1, 1), width=4), scenes.classes))


def _benchmark(name: str, title: str, load: Load, published: dict[str, Figures]) -> Benchmark:
    def variant(kind: str, own: Callable[[Path, int, int], SegmentationProblem], optional: bool) -> Variant:
        small = Variant(kind, partial(load, (64, 48)), tiny, RECIPE)
        return Variant(kind, own, network, RECIPE, optional=optional, heavy=True, miniature=small)

    variants = (
        variant("imagenet", partial(with_backbone, load, SIZE), optional=False),
        variant("scratch", partial(load, SIZE), optional=True),
    )
    return Benchmark(name, title, variants, METHODS, TABLES, published=table3_pixels(published))


STREETHAZARDS = _benchmark(
    "streethazards",
    "StreetHazards (table 3)",
    load_streethazards,
    {
        "MCP": (88.7, 6.9, 26.9, 0.055),
        "Gaussian perturbation": (57.1, 2.4, 71.0, 0.185),
        "MC Dropout": (69.9, 6.0, 32.0, 0.092),
        "Deep Ensemble": (90.0, 7.2, 25.4, 0.051),
        "TRADI": (89.2, 7.2, 25.3, 0.049),
    },
)
BDD_ANOMALY = _benchmark(
    "bdd-anomaly",
    "BDD Anomaly (table 3)",
    load_bdd,
    {
        "MCP": (86.0, 5.4, 27.7, 0.159),
        "Gaussian perturbation": (86.0, 4.8, 27.7, 0.158),
        "MC Dropout": (85.2, 5.0, 29.3, 0.181),
        "Deep Ensemble": (87.0, 6.0, 25.0, 0.170),
        "TRADI": (86.1, 5.6, 26.9, 0.157),
    },
)
