from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.samples import png, random_bytes, write
from tradi.data import camvid
from tradi.data.camvid import HELD_OUT, LEGEND, measure

NAMES = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign-symbol",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]


def files(counts: dict[str, int]) -> dict[str, bytes]:
    made = {}
    for seed, (folder, count) in enumerate(counts.items()):
        for number in range(count):
            made[f"CamVid/{folder}/{number:03}.png"] = png(random_bytes(6, 8, 3, seed=10 * seed + number), "RGB")
            labels = random_bytes(6, 8, high=12, seed=10 * seed + number)
            made[f"CamVid/{folder}annot/{number:03}.png"] = png(labels)
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path, files({"train": 4, "val": 2, "test": 3}))


def test_the_eleven_classes_are_those_of_the_files_and_void_is_ignored(root: Path) -> None:
    data = camvid(root, size=(8, 6))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [4, 2, 3]
    assert list(data.names) == NAMES
    raw = torch.stack([random_bytes(6, 8, high=12, seed=20 + number) for number in range(3)]).long()
    _, labels, ood = data.test.read(torch.arange(3))
    assert torch.equal(labels, torch.where(raw == 11, -1, raw))
    assert not ood.any()


def test_camvid_ood_learns_eight_classes_and_never_counts_void(root: Path) -> None:
    data = camvid(root, size=(8, 6), held_out=HELD_OUT)
    assert list(data.names) == NAMES[:8]
    assert data.class_weights.shape == (8,)
    for part, seed in ((data.train, 0), (data.validation, 10), (data.test, 20)):
        raw = torch.stack([random_bytes(6, 8, high=12, seed=seed + number) for number in range(len(part))]).long()
        _, labels, ood = part.read(torch.arange(len(part)))
        assert torch.equal(labels, torch.where(raw < 8, raw, -1))
        assert torch.equal(ood, (raw >= 8) & (raw < 11))


def test_folders_without_labels_or_images_are_named(root: Path) -> None:
    for path in (root / "CamVid/valannot").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"val/000\.png has no partner in .*valannot \(files without one: 2 of 2\)"):
        camvid(root)
    with pytest.raises(FileNotFoundError, match=r"CamVid/train is missing: `tradi data fetch camvid"):
        camvid(root / "elsewhere")


def test_a_checksum_is_of_pixels_and_labels(root: Path) -> None:
    before = measure(root / "CamVid/val")
    assert before[0] == 2
    path = root / "CamVid/val/000.png"
    Image.open(path).save(path, compress_level=0)
    assert measure(root / "CamVid/val") == before
    write(root, {"CamVid/valannot/000.png": png(random_bytes(6, 8, high=12, seed=99))})
    assert measure(root / "CamVid/val")[1] != before[1]


@pytest.fixture(scope="module")
def few(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with some of the real images."""
    root = tmp_path_factory.mktemp("camvid")
    for folder, every in (("train", 40), ("val", 30), ("test", 50)):
        for kind in (folder, f"{folder}annot"):
            (root / "CamVid" / kind).mkdir(parents=True)
            for path in sorted((data_root / "CamVid" / kind).iterdir())[::every]:
                (root / "CamVid" / kind / path.name).symlink_to(path)
    return root


def test_the_real_camvid_at_half_its_size(few: Path) -> None:
    data = camvid(few, size=(240, 180), held_out=HELD_OUT)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [10, 4, 5]
    images, labels = next(iter(data.batches(data.train, 10)))
    assert images.shape == (10, 3, 180, 240)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(3), atol=1e-4, rtol=0)
    # Above is sky, below is road.
    assert (labels[:, :20] == 0).float().mean() > (labels[:, :20] == 3).float().mean()
    assert (labels[:, -40:] == 3).float().mean() > 0.5
    # Roads weigh least, poles and signs most.
    order = [data.names[number] for number in data.class_weights.argsort().tolist()]
    assert order[0] == "road"
    assert set(order[-2:]) == {"pole", "sign-symbol"}
    (_, (test_labels, ood)) = next(iter(data.testing(5)))
    assert 0.01 < ood.float().mean() < 0.2
    assert (test_labels[ood] == -1).all()


def test_class_frequencies_of_the_real_camvid_are_those_of_its_label_files(few: Path) -> None:
    data = camvid(few)
    paths = sorted((few / "CamVid/trainannot").iterdir())
    labels = [np.array(Image.open(path)) for path in paths]
    frequency = []
    for value in range(11):
        holding = [values for values in labels if (values == value).any()]
        frequency.append(sum((values == value).sum() for values in holding) / sum(values.size for values in holding))
    np.testing.assert_allclose(data.class_weights, np.median(frequency) / np.array(frequency), rtol=1e-6)
    colours = {name: tuple(colour) for name, colour in zip(data.names, data.colours.tolist(), strict=True)}
    assert colours == dict(LEGEND.classes)
