"""StreetHazards (Hendrycks et al. 2019): simulated street scenes, with anomalous objects in the test images.

Its label values are 1 to 14, each one more than in the published list: background, 12 classes, anomaly. Background has
no class here, since the paper counts 12; the publishers train on it as a thirteenth.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path, PurePosixPath

from tradi.data.bounded import read_bounded
from tradi.data.decoding import Legend, Pairs, segmentation, warn_of_other_counts
from tradi.data.root import data_root, find
from tradi.data.segmentation import Segmentation
from tradi.storage.typed import parsed

SIZE = (1280, 720)
LISTS = {
    "train": "StreetHazards/train/train.odgt",
    "validation": "StreetHazards/train/validation.odgt",
    "test": "StreetHazards/test/test.odgt",
}

PUBLISHED = {"train": 5_125, "validation": 1_031, "test": 1_500}  # images, section 4.4

LEGEND = Legend(
    {
        "building": (70, 70, 70),
        "fence": (190, 153, 153),
        "other": (250, 170, 160),
        "pedestrian": (220, 20, 60),
        "pole": (153, 153, 153),
        "road line": (157, 234, 50),
        "road": (128, 64, 128),
        "sidewalk": (244, 35, 232),
        "vegetation": (107, 142, 35),
        "car": (0, 0, 142),
        "wall": (102, 102, 156),
        "traffic sign": (220, 220, 0),
        "anomaly": (60, 250, 240),
    },
    first=2,
    void=(0, 1),
)


def streethazards(root: str | PathLike[str] | None = None, size: tuple[int, int] = SIZE) -> Segmentation:
    """StreetHazards with its 12 classes, decoded once per size and cached; anomalies are OOD in testing.

    A warning is issued if the numbers of images differ from the published ones.

    Args:
        root: folder of all data sets; see `data_root`.
        size: width and height to resize images to.

    Returns:
        training, validation and test images with their labels.

    Raises:
        FileNotFoundError: if StreetHazards is not below the root, or files are missing.
        ValueError: if a file is damaged.
    """
    lists = {part: find(data_root(root), (path,), "streethazards") for part, path in LISTS.items()}
    parts = {part: listed(path) for part, path in lists.items()}
    warn_of_other_counts(lists["train"].parents[1], "StreetHazards", parts, PUBLISHED)
    return segmentation("StreetHazards", parts, size, LEGEND, held_out=("anomaly",))


def listed(path: Path) -> Pairs:
    """The images and labels in an `.odgt` list, whose paths are relative to its folder.

    Raises:
        FileNotFoundError: if a listed file is missing.
        ValueError: if the list is damaged, empty, or names a file outside its folder.
    """
    content = read_bounded(path)
    try:
        entries = parsed(content.decode())
        pairs = [(_inside(path, entry["fpath_img"]), _inside(path, entry["fpath_segm"])) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is not a list of images and labels ({error!r}): delete it and fetch it again"
        ) from error
    if not pairs:
        raise ValueError(f"{path} lists no images: delete it and fetch it again")
    for image, label in pairs:
        if image.name != label.name:
            raise ValueError(
                f"{path} pairs {image} with {label}, the labels of another image: delete it and fetch it again"
            )
    missing = [file for pair in pairs for file in pair if not file.exists()]
    if missing:
        count = f"listed in {path}; {len(missing):,} missing in total"
        raise FileNotFoundError(f"{missing[0]} is missing ({count}): unpack the archives again")
    return pairs


def _inside(path: Path, name: str) -> Path:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\0" in name:
        raise ValueError(f"{name!r} leads outside its folder")
    return path.parent / place


def measure(path: Path) -> tuple[int, None]:
    """How many images a list has; no checksum of their contents is known."""
    return len(listed(path)), None
