from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.samples import uci_files, write_uci
from tradi.data import uci
from tradi.data.uci import NAMES, measure_splits, measure_table, read_table

TABLE = np.random.default_rng(0).normal([3, -200, 0.998, 5], [1, 40, 0, 20], (30, 4))
SPLITS = [(list(range(24, -1, -1)), list(range(25, 30))), (list(range(5, 30)), list(range(5)))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_uci(tmp_path, "yacht", uci_files(TABLE, SPLITS))
    return tmp_path


def rows(pair: tuple[Tensor, Tensor], target_mean: float, target_std: float) -> set[float]:
    """Targets in their own unit, which tell rows apart."""
    return {round(value, 3) for value in (pair[1][:, 0].double() * target_std + target_mean).tolist()}


def test_a_split_has_its_rows_standardised_by_the_training_rows(root: Path) -> None:
    data = uci("yacht", 1, root)
    x, y = torch.from_numpy(TABLE[:, :3]), torch.from_numpy(TABLE[:, 3:])
    mean, std = x[5:].mean(0), x[5:].std(0, correction=0)
    std[2] = 1  # constant
    torch.testing.assert_close(data.test[0], ((x[:5] - mean) / std).float())
    torch.testing.assert_close(data.test[1] * data.target_std + data.target_mean, y[:5].float())
    assert data.target_mean == pytest.approx(y[5:].mean().item())
    assert data.target_std == pytest.approx(y[5:].std(correction=0).item())
    assert (data.train[0].shape, data.train[1].shape) == ((25, 3), (25, 1))
    torch.testing.assert_close(data.train[0].mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(data.train[0].std(0, correction=0), torch.tensor([1.0, 1, 0]))
    assert data.validation[0].shape == (0, 3)
    assert (data.splits, data.hidden, data.epochs) == (2, 50, 40)


def test_validation_rows_are_training_rows_that_a_seed_chooses(root: Path) -> None:
    whole = uci("yacht", 0, root)
    data = uci("yacht", 0, root, validation=0.2, seed=1)
    unit = (data.target_mean, data.target_std)
    train, validation = rows(data.train, *unit), rows(data.validation, *unit)
    assert (len(train), len(validation)) == (20, 5)
    assert train | validation == rows(whole.train, whole.target_mean, whole.target_std)
    assert rows(data.test, *unit) == rows(whole.test, whole.target_mean, whole.target_std)
    assert data.target_mean != whole.target_mean
    torch.testing.assert_close(data.train[1].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    assert torch.equal(uci("yacht", 0, root, validation=0.2, seed=1).validation[0], data.validation[0])
    assert not torch.equal(uci("yacht", 0, root, validation=0.2, seed=2).validation[0], data.validation[0])


def test_inputs_and_targets_stay_together(root: Path) -> None:
    data = uci("yacht", 0, root, validation=0.2)
    inputs = {round(float(row[3]), 3): row[0] for row in TABLE}
    for x, y in (data.train, data.validation, data.test):
        targets = y[:, 0].double() * data.target_std + data.target_mean
        first = torch.tensor([inputs[round(target, 3)] for target in targets.tolist()])
        # Standardising is affine, so that the inputs that belong to the targets correlate fully.
        assert torch.corrcoef(torch.stack([x[:, 0].double(), first]))[0, 1] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("text", ["1 2\n3 4\n", "1\t2 \r\n3 \t4\r\n\r\n", "\n  1.0e0   2\n\n 3. +4 \n \n", "1 2\n3 4"])
def test_white_space_does_not_matter(tmp_path: Path, text: str) -> None:
    (tmp_path / "data.txt").write_bytes(text.encode())
    assert read_table(tmp_path / "data.txt").tolist() == [[1, 2], [3, 4]]


def test_indices_may_be_written_as_floating_point_numbers(root: Path) -> None:
    as_it_was = uci("yacht", 0, root)
    path = root / "UCI_Datasets/yacht/data/index_test_0.txt"
    before = measure_splits(path.parent)
    path.write_text("\n".join(f"{row:.18e}" for row in SPLITS[0][1]))
    assert torch.equal(uci("yacht", 0, root).test[0], as_it_was.test[0])
    assert measure_splits(path.parent) == before


@pytest.mark.parametrize(
    ("file", "text", "cause"),
    [
        ("data.txt", "", "empty or holds numbers that are not finite"),
        ("data.txt", "1 2 3 4\n1 2 nan 4\n", "empty or holds numbers that are not finite"),
        ("data.txt", "1 2 3 4\n1 2 3\n", "not a table of numbers"),
        ("data.txt", "1 2 3 x\n", "not a table of numbers"),
        ("data.txt", "1 2 3 \u00e9\n", "not a table of numbers"),
        ("index_train_0.txt", "0\n30\n", "must hold whole numbers from 0 to 29"),
        ("index_test_0.txt", "-1\n", "must hold whole numbers from 0 to 29"),
        ("index_test_0.txt", "1.5\n", "must hold whole numbers from 0 to 29"),
        ("index_features.txt", "0\n4\n", "must hold whole numbers from 0 to 3"),
        ("index_target.txt", "3\n2\n", "must name one column, names 2"),
        ("n_splits.txt", "2 2\n", "must hold one positive whole number"),
        ("n_hidden.txt", "0\n", "must hold one positive whole number"),
        ("n_splits.txt", "1e9\n", "must hold one positive whole number of at most 1,000, holds .1000000000"),
        ("n_hidden.txt", "1e300\n", "must hold one positive whole number of at most 1,000,000"),
        ("data.txt", "# 1 2\n", "not a table of numbers"),
        ("n_epochs.txt", "1.5\n", "must hold one positive whole number"),
    ],
)
def test_a_damaged_file_is_named_with_the_cause(root: Path, file: str, text: str, cause: str) -> None:
    write_uci(root, "yacht", {file: text})
    with pytest.raises(ValueError, match=f"{file}.*{cause}"):
        uci("yacht", 0, root)


def test_splits_that_nobody_published_are_not_looked_for(root: Path) -> None:
    folder = write_uci(root, "yacht", {"n_splits.txt": "1000000000"})
    with pytest.raises(ValueError, match=r"n_splits\.txt must hold .* at most 1,000"):
        measure_splits(folder)


def test_train_and_test_rows_must_differ(root: Path) -> None:
    write_uci(root, "yacht", {"index_test_0.txt": "24\n25\n"})
    with pytest.raises(ValueError, match=r"index_test_0\.txt shares 1 rows with index_train_0\.txt"):
        uci("yacht", 0, root)


def test_wrong_arguments_are_named(root: Path) -> None:
    with pytest.raises(ValueError, match=r"name must be one of bostonHousing, .*, got 'boston'"):
        uci("boston", 0, root)
    for split in (-1, 2):
        with pytest.raises(ValueError, match=f"split must be in 0 to 1 for yacht, got {split}"):
            uci("yacht", split, root)
    for fraction in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"validation must be in \[0, 1\)"):
            uci("yacht", 0, root, validation=fraction)
    with pytest.raises(ValueError, match=r"validation=0\.99 leaves none of 25 rows"):
        uci("yacht", 0, root, validation=0.99)
    with pytest.raises(FileNotFoundError, match=r"energy.data is missing: `tradi data fetch uci"):
        uci("energy", 0, root)


def test_checksums_follow_the_numbers_and_the_splits(root: Path) -> None:
    folder = root / "UCI_Datasets/yacht/data"
    table, splits = measure_table(folder / "data.txt"), measure_splits(folder)
    assert (table[0], splits[0]) == (30, 2)
    changed = [list(range(24, -1, -1)), list(range(25, 30))]
    changed[1][0], changed[1][1] = changed[1][1], changed[1][0]
    write_uci(root, "yacht", uci_files(TABLE + 1e-9, [(changed[0], changed[1]), SPLITS[1]]))
    assert measure_table(folder / "data.txt")[1] != table[1]
    assert measure_splits(folder)[1] != splits[1]


SIZES = {  # rows, features, splits
    "bostonHousing": (506, 13, 20),
    "concrete": (1030, 8, 20),
    "energy": (768, 8, 20),
    "kin8nm": (8192, 8, 20),
    "naval-propulsion-plant": (11934, 16, 20),
    "power-plant": (9568, 4, 20),
    "protein-tertiary-structure": (45730, 9, 5),
    "wine-quality-red": (1599, 11, 20),
    "yacht": (308, 6, 20),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_real_sets(data_root: Path, name: str) -> None:
    size, features, splits = SIZES[name]
    data = uci(name, splits - 1, data_root, validation=0.1, seed=3)
    parts = (data.train, data.validation, data.test)
    assert sum(len(x) for x, _ in parts) == size
    assert len(data.test[0]) == round(size * 0.1)
    assert all(x.shape[1:] == (features,) and y.shape[1:] == (1,) for x, y in parts)
    assert all(x.isfinite().all() and y.isfinite().all() for x, y in parts)
    assert data.splits == splits
    assert data.hidden == (100 if name == "protein-tertiary-structure" else 50)
    target = read_table(data_root / "UCI_Datasets" / name / "data" / "data.txt")[:, features]
    ours = torch.cat([y for _, y in parts])[:, 0].double() * data.target_std + data.target_mean
    torch.testing.assert_close(ours.sort().values, target.sort().values, atol=1e-5 * data.target_std, rtol=1e-6)
