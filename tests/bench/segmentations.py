"""A street of random pixels, small enough to look at whole."""

from __future__ import annotations

from pathlib import Path

from tests.data.samples import write
from tests.data.test_camvid import files
from tradi.bench.camvid import load
from tradi.bench.segmentation import SegmentationProblem

SIZE = (8, 6)


def scenes(root: Path, train: int = 4, validation: int = 2, test: int = 9) -> SegmentationProblem:
    """CamVid-OOD of images of 8 x 6 pixels, every class, OOD and void among them."""
    write(root, files({"train": train, "val": validation, "test": test}))
    return load(SIZE, root, 0, 0)
