from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.data.samples import png, random_bytes, write
from tradi.data import bdd_anomaly
from tradi.data.bdd import LEGEND, measure

VALUES = torch.tensor([*range(16), 18, 255], dtype=torch.uint8)  # neither train nor motorcycle


def labels(seed: int, anomaly: int | None) -> torch.Tensor:
    made = VALUES[random_bytes(12, 16, high=len(VALUES), seed=seed).long()]
    if anomaly is not None:
        made[5, 7] = anomaly  # one pixel, which a smaller size need not show
    return made


ANOMALIES = {"train": [None, 16, None, None, 17], "val": [None, 17, None]}


def write_bdd(root: Path, anomalies: dict[str, list[int | None]], old: bool) -> None:
    images, masks, suffix = "images/10k", "labels/sem_seg/masks", ""
    if old:
        images, masks, suffix = "seg/images", "seg/labels", "_train_id"
    files = {}
    for part, all_anomalies in anomalies.items():
        for seed, anomaly in enumerate(all_anomalies):
            files[f"{images}/{part}/{part}{seed}.jpg"] = png(random_bytes(12, 16, 3, seed=seed), "RGB", "JPEG")
            files[f"{masks}/{part}/{part}{seed}{suffix}.png"] = png(labels(seed, anomaly))
    write(root / "bdd100k", files)


@pytest.mark.parametrize("old", [False, True])
def test_images_with_a_motorcycle_or_a_train_are_for_testing(tmp_path: Path, old: bool) -> None:
    write_bdd(tmp_path, ANOMALIES, old)
    with pytest.warns(UserWarning, match="3 images for train, 2 images for validation, 3 images for test, but"):
        data = bdd_anomaly(tmp_path, size=(16, 12))
    assert data.names == tuple(name for name in LEGEND.classes if name not in ("train", "motorcycle"))
    assert data.classes == 17
    expected = {
        "train": [labels(seed, None) for seed in (0, 2, 3)],
        "validation": [labels(seed, None) for seed in (0, 2)],
        "test": [labels(1, 16), labels(4, 17), labels(1, 17)],
    }
    for part, frames in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        raw = torch.stack(expected[part]).long()
        _, classes, ood = frames.read(torch.arange(len(frames)))
        assert torch.equal(ood, (raw == 16) | (raw == 17))
        known = torch.where(raw == 18, 16, raw)
        assert torch.equal(classes, torch.where(ood | (raw == 255), -1, known))
    assert int(data.test.read(torch.arange(3))[2].sum()) == 3


def test_the_split_is_made_at_the_published_size_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_bdd(tmp_path, ANOMALIES, old=False)
    for _ in range(2):
        with pytest.warns(UserWarning, match="results are not comparable"):
            data = bdd_anomaly(tmp_path, size=(2, 2))
        assert [len(part) for part in (data.train, data.validation, data.test)] == [3, 2, 3]
        monkeypatch.setitem(sys.modules, "PIL.Image", None)  # nothing can be decoded now


@pytest.mark.filterwarnings("error")
def test_the_published_numbers_pass_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tradi.data.bdd.PUBLISHED", {"train": 3, "validation": 2, "test": 3})
    write_bdd(tmp_path, ANOMALIES, old=False)
    bdd_anomaly(tmp_path, size=(16, 12))


def test_what_is_missing_or_no_bdd100k_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"images/10k or .*seg/images is missing: .*bdd100k"):
        bdd_anomaly(tmp_path)
    write_bdd(tmp_path, {"train": [None, None], "val": [None]}, old=False)
    with pytest.raises(ValueError, match="2 images for train, 1 images for validation, 0 images for test: is it"):
        bdd_anomaly(tmp_path)
    (tmp_path / "bdd100k/labels/sem_seg/masks/val/val0.png").unlink()
    with pytest.raises(ValueError, match=r"val0\.jpg has no partner in .*masks/val"):
        bdd_anomaly(tmp_path)


@pytest.mark.parametrize("old", [False, True])
def test_labelled_images_are_counted(tmp_path: Path, old: bool) -> None:
    write_bdd(tmp_path, ANOMALIES, old)
    folder = tmp_path / "bdd100k" / ("seg/images" if old else "images/10k")
    assert [measure(folder / part) for part in ANOMALIES] == [(5, None), (3, None)]
