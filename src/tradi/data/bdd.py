"""BDD Anomaly (Hendrycks et al. 2019): BDD100K's segmentation images, tested on those with a motorcycle or train."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from tradi.data.cache import cached, fingerprint_of
from tradi.data.decoding import Legend, Pairs, counts, paired, segmentation, values_in, warn_of_other_counts
from tradi.data.root import data_root, find
from tradi.data.segmentation import Segmentation
from tradi.progress import track

SIZE = (1280, 720)
HELD_OUT = ("train", "motorcycle")
PUBLISHED = {"train": 6_688, "validation": 951, "test": 361}  # images, section 4.4

# Image folders, in today's published layout and in the one before 2020.
FOLDERS = ("bdd100k/images/10k", "bdd100k/seg/images")

LEGEND = Legend(
    {
        "road": (128, 64, 128),
        "sidewalk": (244, 35, 232),
        "building": (70, 70, 70),
        "wall": (102, 102, 156),
        "fence": (190, 153, 153),
        "pole": (153, 153, 153),
        "traffic light": (250, 170, 30),
        "traffic sign": (220, 220, 0),
        "vegetation": (107, 142, 35),
        "terrain": (152, 251, 152),
        "sky": (70, 130, 180),
        "person": (220, 20, 60),
        "rider": (255, 0, 0),
        "car": (0, 0, 142),
        "truck": (0, 0, 70),
        "bus": (0, 60, 100),
        "train": (0, 80, 100),
        "motorcycle": (0, 0, 230),
        "bicycle": (119, 11, 32),
    },
    first=0,
    void=(255,),
)


def bdd_anomaly(root: str | PathLike[str] | None = None, size: tuple[int, int] = SIZE) -> Segmentation:
    """BDD Anomaly with 17 classes, built from BDD100K below the root, decoded once per size and cached.

    The test set is all images of BDD100K's training and validation sets that show a motorcycle or a train; the pixels
    of these are OOD. A warning is issued if the numbers of images differ from the published ones.

    Args:
        root: folder of all data sets; see `data_root`.
        size: width and height to resize images to.

    Returns:
        training, validation and test images with their labels.

    Raises:
        FileNotFoundError: if BDD100K is not below the root.
        ValueError: if a file is damaged, or a part would be empty.
    """
    folder = find(data_root(root), FOLDERS, "bdd100k")
    parts: dict[str, list[tuple[Path, Path]]] = {part: [] for part in PUBLISHED}
    for source, part in (("train", "train"), ("val", "validation")):
        pairs = labelled(folder / source)
        for pair, anomalous in zip(pairs, _anomalous(source, pairs).tolist(), strict=True):
            parts["test" if anomalous else part].append(pair)
    if not all(parts.values()):
        raise ValueError(f"{folder} gives {counts(parts)}: is it BDD100K, with labels 0 to 18?")
    warn_of_other_counts(folder, "BDD Anomaly", parts, PUBLISHED)
    return segmentation("BDD-Anomaly", parts, size, LEGEND, HELD_OUT)


def labelled(folder: Path) -> Pairs:
    """The images of a folder and their labels, in either layout."""
    if folder.parent.name == "10k":
        return paired(folder, folder.parents[2] / "labels/sem_seg/masks" / folder.name)
    return paired(folder, folder.parents[1] / "labels" / folder.name, "_train_id")


def measure(folder: Path) -> tuple[int, None]:
    """How many labelled images a folder has; no checksum of their contents is known."""
    return len(labelled(folder)), None


def _anomalous(name: str, pairs: Pairs) -> Tensor:
    """Which images show a held-out class at their published size: at a smaller one it might vanish."""
    values = [LEGEND.value(class_name) for class_name in HELD_OUT]
    labels = [label for _, label in pairs]

    def found() -> dict[str, Tensor]:
        shown = [bool(set(values) & set(values_in(label))) for label in track(labels, f"reading {name}", len(labels))]
        return {"anomalous": torch.tensor(shown)}

    return cached(f"BDD100K-{name}", fingerprint_of(labels), found)["anomalous"]
