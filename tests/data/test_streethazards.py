from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.data.samples import odgt, png, random_bytes, write
from tradi.data import streethazards
from tradi.data.streethazards import LEGEND, listed, measure

# Folder, part and town, and how many images.
LAYOUT = {("train", "training", "t1-3"): 3, ("train", "validation", "t4"): 2, ("test", "test", "t5"): 2}
LISTS = {"training": "train/train.odgt", "validation": "train/validation.odgt", "test": "test/test.odgt"}

SMALL = pytest.mark.filterwarnings("ignore:.*results are not comparable")


def labels(folder: str, number: int) -> torch.Tensor:
    """1 to 13 in training, to 14 in testing, as published."""
    return random_bytes(6, 8, high=14 if folder == "test" else 13, seed=number) + 1


def write_streethazards(root: Path) -> Path:
    files = {}
    for (folder, part, town), count in LAYOUT.items():
        pairs = []
        for number in range(count):
            pair = tuple(f"{kind}/{part}/{town}/{number}.png" for kind in ("images", "annotations"))
            files[f"{folder}/{pair[0]}"] = png(random_bytes(6, 8, 3, seed=number), "RGB")
            files[f"{folder}/{pair[1]}"] = png(labels(folder, number))
            pairs.append((pair[0], pair[1]))
        files[LISTS[part]] = odgt(pairs)
    write(root / "StreetHazards", files)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_streethazards(tmp_path)


@SMALL
def test_twelve_classes_are_learnt_and_anomalies_are_ood(root: Path) -> None:
    data = streethazards(root, size=(8, 6))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [3, 2, 2]
    assert data.names == tuple(LEGEND.classes)[:12]
    assert (data.names[0], data.names[-1]) == ("building", "traffic sign")
    for part, folder in ((data.train, "train"), (data.validation, "train"), (data.test, "test")):
        raw = torch.stack([labels(folder, number) for number in range(len(part))]).long()
        _, classes, ood = part.read(torch.arange(len(part)))
        assert torch.equal(classes, torch.where((raw >= 2) & (raw <= 13), raw - 2, -1))
        assert torch.equal(ood, raw == 14)
    assert data.testing(2).frames is data.test


def test_other_numbers_than_the_published_are_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(
        UserWarning, match=r"3 images for train, .*StreetHazards has 5,125 for train, .*are not comparable"
    ):
        streethazards(root, size=(8, 6))
    monkeypatch.setattr(sys.modules[streethazards.__module__], "PUBLISHED", {"train": 3, "validation": 2, "test": 2})
    streethazards(root, size=(8, 6))  # where any warning is an error


@SMALL
def test_what_is_trained_on_is_no_test(root: Path) -> None:
    folder = root / "StreetHazards"
    (folder / LISTS["validation"]).write_bytes((folder / LISTS["training"]).read_bytes())
    with pytest.raises(ValueError, match=r"0\.png for train and again for validation"):
        streethazards(root, size=(8, 6))


def test_items_are_those_of_the_lists(root: Path) -> None:
    found = [measure(root / "StreetHazards" / path) for path in LISTS.values()]
    assert found == [(3, None), (2, None), (2, None)]


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", r"train\.odgt is not a list of images and labels"),
        (b'{"fpath_img": "a.png"}', r"train\.odgt is not a list of images and labels"),
        (b'[{"fpath_img": "a.png"}]', r"train\.odgt is not a list of images and labels .*fpath_segm"),
        (b'[{"fpath_img": "a.png", "fpath_segm": 3}]', r"train\.odgt is not a list of images and labels"),
        (b"\xff\xfe", r"train\.odgt is not a list of images and labels"),
        (b"[" * 100_000, r"train\.odgt is not a list of images and labels .*nested too deeply"),
        (odgt([("/etc/1.png", "a/1.png")]), r"train\.odgt is not a list .*'/etc/1\.png' leads outside its folder"),
        (odgt([("a/1.png", "a/../../1.png")]), r"train\.odgt is not a list .*leads outside its folder"),
        (odgt([("a\0/1.png", "a/1.png")]), r"train\.odgt is not a list .*leads outside its folder"),
        (b"[]", r"train\.odgt lists no images"),
        (
            odgt([("images/1.png", "annotations/2.png")]),
            r"images/1\.png with .*annotations/2\.png, the labels of another",
        ),
    ],
)
def test_a_damaged_list_is_named(root: Path, content: bytes, cause: str) -> None:
    write(root, {"StreetHazards/train/train.odgt": content})
    with pytest.raises(ValueError, match=f"{cause}.*fetch it again"):
        streethazards(root)


def test_missing_files_are_named(root: Path) -> None:
    (root / "StreetHazards/train/annotations/training/t1-3/1.png").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"t1-3/1\.png is missing \(listed in .*train\.odgt; 1 missing in total\)"
    ):
        streethazards(root)
    (root / "StreetHazards/test/test.odgt").unlink()
    with pytest.raises(FileNotFoundError, match=r"test\.odgt is missing: `tradi data fetch streethazards"):
        streethazards(root)


def test_lists_are_relative_to_their_folder(root: Path) -> None:
    (image, label), *_ = listed(root / "StreetHazards/test/test.odgt")
    assert image == root / "StreetHazards/test/images/test/t5/0.png"
    assert label == root / "StreetHazards/test/annotations/test/t5/0.png"
