from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.hostile import png_bomb
from tests.data.samples import png, random_bytes, write
from tradi.data import Segmentation
from tradi.data.decoding import Legend, decode, median_frequency, paired, segmentation, values_in
from tradi.data.segmentation import IGNORED, OOD

LEGEND = Legend({"a": (1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9), "d": (10, 11, 12)}, first=3, void=(0, 255))
COUNTS = {"train": 5, "validation": 2, "test": 3}
SIZE = (8, 6)


def image(seed: int) -> torch.Tensor:
    return random_bytes(6, 8, 3, seed=seed)


def label(seed: int) -> torch.Tensor:
    return torch.tensor([0, 255, 3, 4, 5, 6], dtype=torch.uint8)[random_bytes(6, 8, high=6, seed=seed).long()]


def seeds(part: str) -> list[int]:
    return [100 * list(COUNTS).index(part) + number for number in range(COUNTS[part])]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {}
    for part in COUNTS:
        for number, seed in enumerate(seeds(part)):
            files[f"{part}/{number}.png"] = png(image(seed), "RGB")
            files[f"{part}annot/{number}.png"] = png(label(seed))
    return write(tmp_path, files)


def read(root: Path, size: tuple[int, int] = SIZE, held_out: tuple[str, ...] = ()) -> Segmentation:
    parts = {part: paired(root / part, root / f"{part}annot") for part in COUNTS}
    return segmentation("small", parts, size, LEGEND, held_out)


def test_images_and_labels_are_as_in_the_files(root: Path) -> None:
    data = read(root)
    table = {0: -1, 255: -1, 3: 0, 4: 1, 5: 2, 6: 3}
    for part, frames in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        images, labels, ood = frames.read(torch.arange(len(frames)))
        assert torch.equal(images, torch.stack([image(seed).permute(2, 0, 1) for seed in seeds(part)]))
        raw = torch.stack([label(seed) for seed in seeds(part)])
        assert labels.tolist() == [[[table[v] for v in row] for row in rows] for rows in raw.tolist()]
        assert not ood.any()
    assert data.names == ("a", "b", "c", "d")
    assert data.colours.tolist() == [list(colour) for colour in LEGEND.classes.values()]


def test_held_out_classes_are_ignored_and_ood_and_the_others_are_renumbered(root: Path) -> None:
    data = read(root, held_out=("a", "c"))
    raw = torch.stack([label(seed) for seed in seeds("test")])
    _, labels, ood = data.test.read(torch.arange(3))
    assert torch.equal(ood, (raw == 3) | (raw == 5))
    assert torch.equal(labels == 0, raw == 4)
    assert torch.equal(labels == 1, raw == 6)
    assert int((labels == IGNORED).sum()) == int(((raw != 4) & (raw != 6)).sum())
    assert data.names == ("b", "d")
    assert data.colours.tolist() == [[4, 5, 6], [10, 11, 12]]
    assert data.class_weights.shape == (2,)


def test_statistics_are_those_of_training_images(root: Path) -> None:
    standardise = read(root).standardise
    pixels = np.stack([image(seed).numpy() for seed in seeds("train")]).astype(np.float64)
    np.testing.assert_allclose(standardise.mean.flatten(), pixels.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(standardise.std.flatten(), pixels.std((0, 1, 2)), rtol=1e-6)


@pytest.mark.parametrize("held_out", [(), ("c",)])
def test_class_weights_are_median_frequency_over_frequency_in_training(root: Path, held_out: tuple[str, ...]) -> None:
    labels = [label(seed).numpy() for seed in seeds("train")]
    frequency = []
    for name, value in (("a", 3), ("b", 4), ("c", 5), ("d", 6)):
        if name not in held_out:
            holding = [values for values in labels if (values == value).any()]
            frequency.append(np.mean([(values == value).mean() for values in holding]))
    expected = np.median(frequency) / np.array(frequency)
    np.testing.assert_allclose(read(root, held_out=held_out).class_weights, expected, rtol=1e-6)


def test_only_images_with_a_class_count_for_its_frequency() -> None:
    # Class 0 fills half of two images of three, class 1 a quarter of one, class 2 is nowhere.
    counts = torch.tensor([[50, 0, 0], [50, 25, 0], [0, 0, 0]])
    torch.testing.assert_close(median_frequency(counts, 100), torch.tensor([0.375 / 0.5, 0.375 / 0.25, 0.0]))
    with pytest.raises(ValueError, match="no training pixel belongs to a learnt class"):
        median_frequency(counts * 0, 100)


def test_a_smaller_size_averages_images_and_picks_labels(root: Path) -> None:
    write(root, {"train/0.png": png(torch.tensor([[0, 200], [200, 0]]).repeat(3, 4).to(torch.uint8), "RGB")})
    data = read(root, size=(4, 3))
    images, labels, _ = data.train.read(torch.arange(5))
    assert images.shape == (5, 3, 3, 4)
    assert labels.shape == (5, 3, 4)
    assert (images[0].float() - 100).abs().max() < 35  # of pixels from 0 to 200 none is left as it was
    assert set(labels.unique().tolist()) <= {-1, 0, 1, 2, 3}
    for number, seed in enumerate(seeds("train")):
        raw = label(seed)
        blocks = raw.reshape(3, 2, 4, 2).permute(0, 2, 1, 3).reshape(3, 4, 4)
        picked = torch.from_numpy(LEGEND.meaning(()))[blocks.long()]
        assert (picked == labels[number][..., None]).any(-1).all()


def test_files_are_decoded_once_for_each_size_whatever_is_held_out(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = read(root)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL.Image", None)  # nothing can be decoded now
        again = read(root, held_out=("b",))
        assert torch.equal(first.train.read(torch.arange(5))[0], again.train.read(torch.arange(5))[0])
        with pytest.raises(ImportError, match=r"pip install 'tradi\[images\]'"):
            read(root, size=(4, 3))
    kinds = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "cache/tradi/decoded").iterdir())
    assert kinds == ["small-test-8x6", "small-train-8x6", "small-train-8x6", "small-validation-8x6"]
    assert isinstance(first.train.records, np.memmap)


def test_a_change_of_a_file_is_noticed(root: Path) -> None:
    read(root)
    write(root, {"train/0.png": png(image(77), "RGB") + b"longer"})
    images, _, _ = read(root).train.read(torch.tensor([0]))
    assert torch.equal(images[0], image(77).permute(2, 0, 1))


def palette(pixels: torch.Tensor) -> bytes:
    file, picture = io.BytesIO(), Image.fromarray(pixels.numpy(), "P")
    picture.putpalette(list(range(255, -1, -1)) * 3)
    picture.save(file, "PNG")
    return file.getvalue()


def test_a_palette_does_not_change_labels_and_jpeg_is_read_too(root: Path) -> None:
    write(
        root,
        {"one.png": palette(label(0)), "one.jpg": png(torch.full((6, 8, 3), 90, dtype=torch.uint8), "RGB", "JPEG")},
    )
    pixels, values = decode(root / "one.jpg", root / "one.png", SIZE, LEGEND.meaning(()))
    assert np.array_equal(values, label(0).numpy())
    assert (np.abs(pixels.astype(int) - 90) <= 2).all()
    assert np.array_equal(values_in(root / "one.png"), np.unique(label(0)))


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({"train/1.png": b""}, r"train/1\.png cannot be used"),
        ({"train/1.png": png(image(1), "RGB")[:60]}, r"train/1\.png cannot be used"),
        ({"trainannot/1.png": b"no image"}, r"trainannot/1\.png cannot be used"),
        ({"trainannot/1.png": png(label(1))[:-40]}, r"trainannot/1\.png cannot be used"),
        ({"testannot/2.png": png(label(1)[:5])}, r"testannot/2\.png .*size is \(8, 5\), .*test/2\.png is \(8, 6\)"),
        ({"trainannot/1.png": png(image(1), "RGB")}, r"trainannot/1\.png .*mode is RGB, but labels need one byte"),
        ({"trainannot/1.png": png(label(1) * 0 + 7)}, r"trainannot/1\.png .*the label 7, which this data set does not"),
        ({"train/1.png": png_bomb(png(image(1), "RGB"), 9000)}, r"train/1\.png .*9000 x 9000 pixels, more than 16,777"),
        ({"trainannot/1.png": png_bomb(png(label(1)), 60_000)}, r"trainannot/1\.png cannot be used"),
        ({"train/new.png": b""}, r"train/new\.png has no partner in .*trainannot \(files without one: 1 of 6\)"),
        ({"trainannot/new.png": b""}, r"trainannot/new\.png has no partner in .*train \(files without one: 1 of 6\)"),
    ],
)
def test_a_file_that_is_damaged_or_alone_is_named(root: Path, files: dict[str, bytes], cause: str) -> None:
    write(root, files)
    with pytest.raises(ValueError, match=f"(?s){cause}.*fetch"):
        read(root)


def test_missing_labels_and_empty_folders_are_named(root: Path) -> None:
    (root / "trainannot/3.png").unlink()
    with pytest.raises(ValueError, match=r"train/3\.png has no partner in .*trainannot"):
        read(root)
    with pytest.raises(FileNotFoundError, match=r"empty holds no PNG or JPEG"):
        paired(root / "empty", root / "trainannot")


def test_what_is_asked_wrongly_is_named(root: Path) -> None:
    wrong: Any
    for wrong in ((0, 6), (8.5, 6), (8, 6, 3), 8):
        with pytest.raises(ValueError, match=f"size must be a width and a height, .*got {re.escape(str(wrong))}"):
            read(root, size=wrong)
    sizes: list[Any] = [[8, 6], np.array([8, 6])]
    assert read(root, size=sizes[0]).test.records["label"].shape[1:] == (6, 8)
    assert read(root, size=tuple(sizes[1])).test.records["label"].shape[1:] == (6, 8)
    with pytest.raises(ValueError, match="unknown classes in held_out: e; choose from a, b, c, d"):
        read(root, held_out=("e",))
    with pytest.raises(ValueError, match="no training pixel belongs to a learnt class"):
        read(root, held_out=("a", "b", "c", "d"))


def test_a_legend_gives_every_value_a_meaning() -> None:
    meaning = LEGEND.meaning(("b",))
    assert meaning[[0, 255, 3, 4, 5, 6]].tolist() == [IGNORED, IGNORED, 0, OOD, 1, 2]
    assert (np.delete(meaning, [0, 255, 3, 4, 5, 6]) == -3).all()
