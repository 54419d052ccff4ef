"""CamVid in SegNet's layout: 480x360 PNGs in the folders train, val and test, with labels in trainannot and so on."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from os import PathLike
from pathlib import Path

from tradi.data.boxes import Boxed, boxed
from tradi.data.decoding import Legend, decode, paired, segmentation
from tradi.data.root import data_root, find
from tradi.data.segmentation import Segmentation
from tradi.progress import track

SIZE = (480, 360)
PARTS = {"train": "CamVid/train", "validation": "CamVid/val", "test": "CamVid/test"}
HELD_OUT = ("car", "pedestrian", "bicyclist")  # in CamVid-OOD, section 4.4
OBJECTS = ("car", "pedestrian", "bicyclist", "sign-symbol")  # that have boxes in `camvid_boxes`

LEGEND = Legend(
    {
        "sky": (128, 128, 128),
        "building": (128, 0, 0),
        "pole": (192, 192, 128),
        "road": (128, 64, 128),
        "pavement": (0, 0, 192),
        "tree": (128, 128, 0),
        "sign-symbol": (192, 128, 128),
        "fence": (64, 64, 128),
        "car": (64, 0, 128),
        "pedestrian": (64, 64, 0),
        "bicyclist": (0, 128, 192),
    },
    first=0,
    void=(11,),
)


def camvid(
    root: str | PathLike[str] | None = None, size: tuple[int, int] = SIZE, held_out: Collection[str] = ()
) -> Segmentation:
    """CamVid, decoded once per size and cached; with `held_out=HELD_OUT` it is CamVid-OOD.

    Args:
        root: folder of all data sets; see `data_root`.
        size: width and height to resize images to.
        held_out: classes that are unlabelled in training and validation, and OOD in testing.

    Returns:
        training, validation and test images with their labels.

    Raises:
        FileNotFoundError: if CamVid is not below the root.
        ValueError: if a file is damaged, or `held_out` has an unknown class.
    """
    folders = {part: find(data_root(root), (path,), "camvid") for part, path in PARTS.items()}
    parts = {part: paired(folder, labels_of(folder)) for part, folder in folders.items()}
    return segmentation("CamVid", parts, size, LEGEND, held_out)


def camvid_boxes(
    root: str | PathLike[str] | None = None,
    size: tuple[int, int] = SIZE,
    held_out: Collection[str] = ("bicyclist",),
    smallest: int = 24,
) -> Boxed:
    """CamVid with a box around every connected region of cars, pedestrians, bicyclists and sign-symbols.

    Objects of a class that touch in the image have one box together: CamVid has no instances.

    Args:
        root: folder of all data sets; see `data_root`.
        size: width and height to resize images to.
        held_out: those of the four classes that are OOD.
        smallest: pixels of a region at this size, from which it is an object.

    Returns:
        training, validation and test images with their boxes.

    Raises:
        FileNotFoundError: if CamVid is not below the root.
        ValueError: if a file is damaged, or `held_out` has another class.
    """
    return boxed(camvid(root, size), LEGEND, OBJECTS, held_out, smallest)


def labels_of(folder: Path) -> Path:
    """The label folder that belongs to an image folder."""
    return folder.with_name(f"{folder.name}annot")


def measure(folder: Path) -> tuple[int, str]:
    """How many labelled images a folder has, and the SHA-256 of their pixels and labels."""
    pairs, sha = paired(folder, labels_of(folder)), hashlib.sha256()
    for image, label in track(pairs, f"reading {folder.name}", len(pairs)):
        for values in decode(image, label, SIZE, LEGEND.meaning(())):
            sha.update(values.tobytes())
    return len(pairs), sha.hexdigest()
