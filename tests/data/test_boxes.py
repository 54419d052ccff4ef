from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage

from tests.data.samples import write
from tests.data.test_camvid import files
from tradi.data.boxes import boxes_of, regions
from tradi.data.camvid import LEGEND, camvid_boxes
from tradi.data.segmentation import OOD


def made(seed: int) -> np.ndarray:
    """A mask of few values with winding regions."""
    noise = np.random.default_rng(seed).normal(size=(30, 41))
    return np.digitize(ndimage.gaussian_filter(noise, 1.2), [-0.1, 0.1]).astype(np.uint8)


@pytest.mark.parametrize("seed", range(4))
def test_regions_and_boxes_are_scipys(seed: int) -> None:
    mask = made(seed)
    boxes, values, small = boxes_of(mask, (0, 2), smallest=6)
    expected, dropped = set(), np.zeros(mask.shape, dtype=bool)
    found = regions(mask, (0, 2))
    assert ((found < 0) == (mask == 1)).all()
    for value in (0, 2):
        numbered, count = ndimage.label(mask == value)
        for number, (rows, columns) in enumerate(ndimage.find_objects(numbered), 1):
            here = numbered == number
            assert len(np.unique(found[here])) == 1
            if here.sum() >= 6:
                expected.add((columns.start, rows.start, columns.stop, rows.stop, value))
            else:
                dropped |= here
        assert len(np.unique(found[mask == value])) == count
    assert len(expected) > 4
    assert {(*map(int, box), int(value)) for box, value in zip(boxes.tolist(), values, strict=True)} == expected
    assert np.array_equal(small.numpy(), dropped)
    assert dropped.any()


def test_a_spiral_is_one_region() -> None:
    mask = np.zeros((9, 9), np.uint8)
    mask[0], mask[:, 8], mask[8], mask[2:, 0] = 1, 1, 1, 1
    mask[2, :7], mask[2:7, 6], mask[6, 2:7], mask[4:7, 2], mask[4, 2:5] = 1, 1, 1, 1, 1  # inwards
    boxes, _, _ = boxes_of(mask, (1,), 1)
    assert boxes.tolist() == [[0, 0, 9, 9]]


def test_a_mask_without_objects_has_none() -> None:
    boxes, values, small = boxes_of(np.zeros((5, 4), np.uint8), (1, 2), 3)
    assert boxes.shape == (0, 4)
    assert values.shape == (0,)
    assert not small.any()


def test_camvids_boxes_are_those_of_its_masks_and_what_is_held_out_is_ood(tmp_path: Path) -> None:
    write(tmp_path, files({"train": 3, "val": 2, "test": 2}))
    data = camvid_boxes(tmp_path, (32, 24), held_out=("bicyclist",), smallest=20)
    assert data.names == ("car", "pedestrian", "sign-symbol")
    assert [len(part) for part in (data.train, data.validation, data.test)] == [3, 2, 2]
    part = data.train
    for record, boxes, labels, ignored in zip(part.frames.records, part.boxes, part.labels, part.ignored, strict=True):
        values = torch.from_numpy(record["label"].copy())
        assert boxes.shape == (len(labels), 4)
        for name, label in (("car", 0), ("pedestrian", 1), ("sign-symbol", 2), ("bicyclist", OOD)):
            mask = values == LEGEND.value(name)
            assert ((labels == label).sum() > 0) == bool(mask.any() and not ignored[mask].all()) or label == OOD
            for x0, y0, x1, y1 in boxes[labels == label].int().tolist():
                assert mask[y0:y1, x0:x1].sum() >= 16
        assert ignored[values == 11].all()
        assert ignored[values == LEGEND.value("bicyclist")].all()
        assert not ignored[values == LEGEND.value("sky")].any()
    assert torch.equal(part[1:].boxes[0], part.boxes[1])
    assert torch.equal(part[1:].ignored, part.ignored[1:])


def test_mistakes_are_named(tmp_path: Path) -> None:
    write(tmp_path, files({"train": 1, "val": 1, "test": 1}))
    with pytest.raises(ValueError, match="unknown classes in held_out: sky"):
        camvid_boxes(tmp_path, (8, 6), held_out=("sky",))
    with pytest.raises(ValueError, match="smallest must be at least 1"):
        camvid_boxes(tmp_path, (8, 6), smallest=0)
