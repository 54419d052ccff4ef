from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.data.samples import random_bytes, write
from tradi.data import cifar10, in_colour, notmnist
from tradi.data.cifar10 import CLASSES, TEST, TRAIN, measure, read_batch

LABELS = torch.arange(40).remainder(10).to(torch.uint8)  # every class four times in each file


def batch(seed: int) -> tuple[Tensor, bytes]:
    images = random_bytes(40, 3, 32, 32, seed=seed)
    return images, torch.cat([LABELS[:, None], images.flatten(1)], 1).numpy().tobytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path, {path: batch(seed)[1] for seed, path in enumerate((*TRAIN, TEST))})


def test_the_last_training_images_are_for_validation_and_channels_are_standardised_by_the_rest(root: Path) -> None:
    letters = random_bytes(4, 3, 32, 32, seed=9)
    data = cifar10(root, validation=0.25, ood={"letters": letters})
    images = torch.cat([batch(seed)[0] for seed in range(5)])
    seen = images[:150].double()

    def expected(raw: Tensor) -> Tensor:
        channels = [(raw[:, c].double() - seen[:, c].mean()) / seen[:, c].std() for c in range(3)]
        return torch.stack(channels, 1).float()

    torch.testing.assert_close(data.train[0], expected(images[:150]))
    torch.testing.assert_close(data.validation[0], expected(images[150:]))
    torch.testing.assert_close(data.test[0], expected(batch(5)[0]))
    torch.testing.assert_close(data.ood["letters"], expected(letters))
    assert torch.equal(data.train[1], LABELS.long().repeat(5)[:150])
    assert torch.equal(data.test[1], LABELS.long())
    assert (data.classes, list(data.ood)) == (10, ["letters"])


def test_of_held_out_classes_only_test_images_are_kept_as_ood(root: Path) -> None:
    data = cifar10(root, validation=0.1, held_out=("bird", "airplane"))
    assert data.classes == 8
    assert [len(part[0]) for part in (data.train, data.validation, data.test)] == [144, 16, 32]
    for _, labels in (data.train, data.test):
        assert labels.unique().tolist() == list(range(8))
    renumbered = [{1: 0, 3: 1}.get(label, label - 2) for label in LABELS.tolist() if label not in (0, 2)]
    assert data.test[1].tolist() == renumbered
    # The same statistics for all: what is held out went into none of them.
    images = torch.cat([batch(seed)[0][(LABELS != 0) & (LABELS != 2)] for seed in range(5)])[:144].double()
    outside = batch(5)[0][(LABELS == 0) | (LABELS == 2)].double()
    mean, std = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
    torch.testing.assert_close(data.ood["held-out classes"], ((outside - mean) / std).float())


def test_files_may_hold_any_number_of_whole_records(root: Path) -> None:
    (root / TEST).write_bytes((root / TEST).read_bytes()[: 7 * 3073])
    assert cifar10(root).test[1].tolist() == LABELS[:7].tolist()
    assert measure(root / TEST)[0] == 7


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "has 0 bytes, expected a multiple of 3,073"),
        (batch(0)[1][:-1], "has 122,919 bytes, expected a multiple of 3,073"),
        (b"\x0a" + bytes(3072), "holds the label 10, expected 0 to 9"),
    ],
)
def test_a_damaged_file_is_named_with_the_cause(root: Path, content: bytes, cause: str) -> None:
    (root / TRAIN[2]).write_bytes(content)
    with pytest.raises(ValueError, match=rf"data_batch_3\.bin {cause}: delete it and fetch it again"):
        cifar10(root)


def test_what_is_missing_or_asked_wrongly_is_named(root: Path) -> None:
    with pytest.raises(ValueError, match="unknown classes in held_out: lorry; choose from airplane, automobile"):
        cifar10(root, held_out=["lorry"])
    for wrong in (1.0, -0.1):
        with pytest.raises(ValueError, match=f"validation must leave some of 200 training images, got {wrong}"):
            cifar10(root, validation=wrong)
    (root / TRAIN[4]).unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_5\.bin is missing: `tradi data fetch cifar10"):
        cifar10(root)


def test_grey_images_get_a_frame_and_three_equal_channels() -> None:
    images = random_bytes(3, 28, 27)
    coloured = in_colour(images)
    assert coloured.shape == (3, 3, 32, 32)
    assert coloured.dtype == torch.uint8
    for channel in coloured.unbind(1):
        assert torch.equal(channel[:, 2:30, 2:29], images)
        assert channel.sum() == images.sum()
    with pytest.raises(ValueError, match="at most 32 x 32, got 33 x 8"):
        in_colour(random_bytes(1, 33, 8))


def test_the_real_cifar10_and_notmnist(data_root: Path) -> None:
    letters = in_colour(notmnist(data_root).images)
    data = cifar10(data_root, held_out=("cat", "truck"), ood={"notMNIST": letters})
    files = [read_batch(data_root / path)[1].bincount(minlength=10) for path in (*TRAIN, TEST)]
    held_out = [CLASSES.index("cat"), CLASSES.index("truck")]
    assert len(data.ood["held-out classes"]) == files[-1][held_out].sum()
    assert len(data.test[0]) == files[-1].sum() - files[-1][held_out].sum()
    assert len(data.train[0]) + len(data.validation[0]) == sum(int(f.sum() - f[held_out].sum()) for f in files[:-1])
    assert data.ood["notMNIST"].shape == (18_724, 3, 32, 32)
    torch.testing.assert_close(data.train[0].double().std((0, 2, 3)), torch.ones(3).double(), atol=1e-4, rtol=0)
    # The usual constants for CIFAR-10, of all 50,000 images: means 0.4914, 0.4822, 0.4465, deviations 0.2470, 0.2435,
    # 0.2616. A black pixel is what remains of them here, to the error of 9,000 images of 8 classes.
    black = -torch.tensor([0.4914 / 0.2470, 0.4822 / 0.2435, 0.4465 / 0.2616])
    torch.testing.assert_close(data.train[0].amin((0, 2, 3)), black, atol=0.1, rtol=0)
