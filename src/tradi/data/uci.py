"""The UCI regression sets with their published splits (Hernández-Lobato and Adams 2015, Gal and Ghahramani 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tradi.data.bounded import read_bounded
from tradi.data.cache import digest
from tradi.data.root import data_root, find

NAMES = (
    "bostonHousing",
    "concrete",
    "energy",
    "kin8nm",
    "naval-propulsion-plant",
    "power-plant",
    "protein-tertiary-structure",
    "wine-quality-red",
    "yacht",
)
SPLITS = 1_000  # at most: the published sets have 20
LARGEST = 1_000_000  # hidden units or epochs: the published sets have 50 or 100, and 40


@dataclass(frozen=True, eq=False)
class Split:
    """One published split, inputs (rows, features) and target (rows, 1) standardised with training statistics.

    In the target's own unit, the RMSE is `target_std` times the standardised one, and the NLL is larger by
    `log(target_std)`.

    Args:
        train: inputs and target.
        validation: the same, of held-back training rows.
        test: the same, of the published test part.
        target_mean: of the training target, in its own unit.
        target_std: its standard deviation.
        splits: number of published splits.
        hidden: the number of hidden units published with them.
        epochs: the number of epochs published with them.
    """

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    target_mean: float
    target_std: float
    splits: int
    hidden: int
    epochs: int


def uci(
    name: str, split: int, root: str | PathLike[str] | None = None, validation: float = 0.0, seed: int = 0
) -> Split:
    """Published split number `split` of a set.

    Args:
        name: one of `NAMES`.
        split: number of the split, from 0.
        root: folder of all data sets; see `data_root`.
        validation: fraction of the training rows to use for validation.
        seed: seed for choosing these rows.

    Returns:
        training, validation and test rows, standardised by the training rows.

    Raises:
        FileNotFoundError: if the set is not below the root.
        ValueError: if an argument is out of range, or a file is damaged.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    if not 0 <= validation < 1:
        raise ValueError(f"validation must be in [0, 1), got {validation}")
    folder = find(data_root(root), (place(name),), "uci")
    splits = _number(folder / "n_splits.txt", SPLITS)
    if not 0 <= split < splits:
        raise ValueError(f"split must be in 0 to {splits - 1} for {name}, got {split}")
    table = read_table(folder / "data.txt")
    features, target = (_indices(folder / f"index_{kind}.txt", table.shape[1]) for kind in ("features", "target"))
    if len(target) != 1:
        raise ValueError(f"{folder / 'index_target.txt'} must name one column, names {len(target)}")
    seen, test = _rows(folder, split, len(table))
    shuffled = seen[torch.randperm(len(seen), generator=torch.Generator().manual_seed(seed))]
    held_out, train = shuffled.tensor_split([round(len(seen) * validation)])
    if not len(train):
        raise ValueError(f"validation={validation} leaves none of {len(seen)} rows for training")
    x, _, _ = _standardised(table[:, features], train)
    y, mean, std = _standardised(table[:, target], train)
    return Split(
        train=(x[train], y[train]),
        validation=(x[held_out], y[held_out]),
        test=(x[test], y[test]),
        target_mean=mean.item(),
        target_std=std.item(),
        splits=splits,
        hidden=_number(folder / "n_hidden.txt"),
        epochs=_number(folder / "n_epochs.txt"),
    )


def place(name: str) -> str:
    """The folder of a set, below the data root."""
    return f"UCI_Datasets/{name}/data"


def measure_table(path: Path) -> tuple[int, str]:
    """How many rows a `data.txt` has, and the SHA-256 of its numbers, however they are spaced."""
    table = read_table(path)
    return len(table), digest(table)


def measure_splits(folder: Path) -> tuple[int, str]:
    """How many splits a folder has, and the SHA-256 of all row and column numbers in them."""
    splits = _number(folder / "n_splits.txt", SPLITS)
    names = ["features", "target", *(f"{part}_{split}" for split in range(splits) for part in ("train", "test"))]
    return splits, digest(*(read_table(folder / f"index_{name}.txt").flatten().long() for name in names))


def read_table(path: Path) -> Tensor:
    """Read rows of numbers in double precision; blank lines and the kind of white space do not matter.

    Raises:
        ValueError: if the file is not a table of finite numbers, or too large for one.
    """
    content = read_bounded(path)
    try:
        lines = content.decode("ascii").splitlines()
        filled = any(map(str.strip, lines))
        table = torch.from_numpy(np.loadtxt(lines, ndmin=2, comments=None)) if filled else torch.empty(0)
    except ValueError as error:
        raise ValueError(f"{path} is not a table of numbers ({error}): delete it and fetch it again") from error
    if not len(table) or not table.isfinite().all():
        raise ValueError(f"{path} is empty or holds numbers that are not finite: delete it and fetch it again")
    return table


def _indices(path: Path, size: int) -> Tensor:
    values = read_table(path).flatten()
    indices = values.long()
    if not torch.equal(indices.double(), values) or indices.min() < 0 or indices.max() >= size:
        raise ValueError(f"{path} must hold whole numbers from 0 to {size - 1}: it does not belong to this data.txt")
    return indices


def _rows(folder: Path, split: int, size: int) -> tuple[Tensor, Tensor]:
    paths = [folder / f"index_{part}_{split}.txt" for part in ("train", "test")]
    train, test = (_indices(path, size) for path in paths)
    shared = int(torch.isin(test, train).sum())
    if shared:
        raise ValueError(f"{paths[1]} shares {shared} rows with {paths[0].name}: delete both and fetch them again")
    return train, test


def _number(path: Path, largest: int = LARGEST) -> int:
    values = read_table(path).flatten()
    if len(values) != 1 or values.item() != int(values.item()) or not 1 <= values.item() <= largest:
        raise ValueError(
            f"{path} must hold one positive whole number of at most {largest:,}, holds {values.tolist()[:5]}"
        )
    return int(values.item())


def _standardised(values: Tensor, train: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All rows in single precision, and the mean and standard deviation of each column over the training rows."""
    seen = values[train]
    mean, std = seen.mean(0), seen.std(0, correction=0)
    # The values are compared, since the computed deviation of a constant column may be 1e-16 instead of 0.
    std = torch.where((seen == seen[0]).all(0), 1.0, std)
    return ((values - mean) / std).float(), mean, std
