from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.data.samples import idx, random_bytes, write_mnist
from tradi.data import mnist
from tradi.data.mnist import read_idx

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"


@pytest.fixture
def small() -> dict[str, tuple[Tensor, Tensor]]:
    return {
        "train": (random_bytes(12, 28, 28), random_bytes(12, high=10)),
        "t10k": (random_bytes(5, 28, 28, high=100, seed=1), random_bytes(5, high=10, seed=1)),
    }


@pytest.mark.parametrize("gzipped", [True, False])
def test_the_last_training_images_are_for_validation_and_all_is_standardised_by_the_rest(
    tmp_path: Path, small: dict[str, tuple[Tensor, Tensor]], gzipped: bool
) -> None:
    write_mnist(tmp_path, small, gzipped)
    letters = random_bytes(4, 28, 28, seed=2)
    data = mnist(tmp_path, validation=3, ood={"letters": letters})
    images, labels = small["train"]
    seen = images[:9].double()

    def expected(raw: Tensor) -> Tensor:
        return ((raw.double() - seen.mean()) / seen.std()).flatten(1).float()

    torch.testing.assert_close(data.train[0], expected(images[:9]))
    torch.testing.assert_close(data.validation[0], expected(images[9:]))
    torch.testing.assert_close(data.test[0], expected(small["t10k"][0]))
    torch.testing.assert_close(data.ood["letters"], expected(letters))
    assert torch.equal(data.train[1], labels[:9].long())
    assert torch.equal(data.validation[1], labels[9:].long())
    assert torch.equal(data.test[1], small["t10k"][1].long())
    assert data.classes == 10


def test_there_need_be_no_validation_but_some_training(tmp_path: Path, small: dict[str, tuple[Tensor, Tensor]]) -> None:
    write_mnist(tmp_path, small)
    data = mnist(tmp_path, validation=0)
    assert [len(part[0]) for part in (data.train, data.validation, data.test)] == [12, 0, 5]
    for wrong in (12, -1):
        with pytest.raises(ValueError, match=rf"validation must leave some of 12 training images, got {wrong}"):
            mnist(tmp_path, validation=wrong)


def test_a_missing_file_is_named_in_both_forms(tmp_path: Path, small: dict[str, tuple[Tensor, Tensor]]) -> None:
    write_mnist(tmp_path, small)
    (tmp_path / "mnist" / f"{LABELS}.gz").unlink()
    with pytest.raises(FileNotFoundError, match=rf"{LABELS}\.gz or .*{LABELS} is missing: `tradi data fetch mnist"):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "is not an IDX file: it starts with nothing"),
        (b"<html>", "is not an IDX file: it starts with 3c 68 74 6d"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1]) + bytes(4), "IDX type 0x0d, expected unsigned bytes"),
        (bytes([0, 0, 8, 3, 0, 0]), "ends within its header"),
        (idx(random_bytes(7, 2))[:-1], r"has 25 bytes, but its header gives shape \(7, 2\), which needs 26"),
        (idx(random_bytes(7, 2)) + b"\0", "has 27 bytes.* which needs 26"),
        (idx(random_bytes(0, 2)), "damaged or empty"),
        (bytes([0, 0, 8, 0]), "damaged or empty"),
        (bytes([0, 0, 8, 255, *[0, 0, 0, 1] * 255, 7]), "an array of 255 dimensions, expected labels or images"),
        (bytes([0, 0, 8, 3, *[255] * 12]), r"needs 79,228,162,458"),
        (gzip.compress(idx(random_bytes(7, 2)), mtime=0)[:-9], "is a damaged gzip file"),
        (gzip.compress(idx(random_bytes(7, 2)), mtime=0)[:-8] + bytes(8), "is a damaged gzip file"),
    ],
)
def test_a_damaged_file_is_named_with_the_cause(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "some-idx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"some-idx.*{cause}"):
        read_idx(path)


def test_idx_values_keep_their_shape(tmp_path: Path) -> None:
    values = random_bytes(3, 4, 5)
    (tmp_path / "some-idx").write_bytes(idx(values))
    assert torch.equal(read_idx(tmp_path / "some-idx"), values)


@pytest.mark.parametrize(
    ("images", "labels", "cause"),
    [
        (random_bytes(12, 28, 27), random_bytes(12, high=10), rf"{IMAGES}.*expected \(images, 28, 28\)"),
        (random_bytes(12, 28, 28), random_bytes(11, high=10), rf"{LABELS}.*shape \(11,\) for 12 images"),
        (random_bytes(12, 28, 28), random_bytes(12, 2, high=10), rf"{LABELS}.*shape \(12, 2\) for 12 images"),
        (random_bytes(12, 28, 28), torch.full((12,), 10, dtype=torch.uint8), rf"{LABELS}.*label 10, expected 0 to 9"),
    ],
)
def test_images_and_labels_must_fit(
    tmp_path: Path, small: dict[str, tuple[Tensor, Tensor]], images: Tensor, labels: Tensor, cause: str
) -> None:
    write_mnist(tmp_path, small | {"train": (images, labels)})
    with pytest.raises(ValueError, match=cause):
        mnist(tmp_path)


def test_the_real_mnist(data_root: Path) -> None:
    data = mnist(data_root)
    assert [tuple(part[0].shape) for part in (data.train, data.validation, data.test)] == [
        (55_000, 784),
        (5_000, 784),
        (10_000, 784),
    ]
    assert data.test[1].bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train[1][:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    # The usual constants for MNIST, of all 60,000 images: mean 0.1307, deviation 0.3081; the first 55,000 are close.
    assert data.train[0].min().item() == pytest.approx(-0.1307 / 0.3081, abs=0.002)
    assert data.train[0].max().item() == pytest.approx((1 - 0.1307) / 0.3081, abs=0.01)
    assert data.train[0].double().std().item() == pytest.approx(1, abs=1e-4)
