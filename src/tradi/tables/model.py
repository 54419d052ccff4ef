"""A model of a table: what `tradi fit` leaves in a folder, and what it predicts for other rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tradi.ensemble.ensemble import Ensemble, load_ensemble
from tradi.extras import require
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture
from tradi.progress import track
from tradi.storage.folders import replacing_folder
from tradi.storage.tensors import check_digest, read_tensors, write_tensors
from tradi.storage.typed import built, parsed
from tradi.tables.columns import Column, Encoded, encoded
from tradi.tables.foreign import Cloud, Limits, Strangeness
from tradi.tables.frames import Frame, Numbers, TableError
from tradi.tables.rows import tensors
from tradi.tables.target import Target
from tradi.tables.training import AT_ONCE, classification_network, regression_network

VERSION = 1  # of the format
MODEL, ENSEMBLE, CLOUD, REPORT = "model.json", "ensemble.safetensors", "cloud.safetensors", "report.html"
FILES = (MODEL, ENSEMBLE, CLOUD, REPORT)
INTERVALS = (50, 90, 95)  # per cent
CHUNK = 4 * AT_ONCE  # rows whose predictions are in memory at a time
WIDEST = 1 << 14  # of a hidden layer

Prediction = GaussianMixture | ClassPrediction


@dataclass(frozen=True)
class Description:
    """All of a model but its tensors, as `model.json` has it.

    Args:
        target: what is predicted.
        columns: what it is predicted from.
        not_used: other columns, and why.
        hidden: widths of the network's hidden layers.
        limits: of the OOD score.
        rows: how many there were, part by part.
        options: of the training, as they were given.
        notes: what training had to say.
        made_by: versions and command.

    Raises:
        ValueError: if there are no columns, or the hidden layers are none of a network for tables.
    """

    target: Target
    columns: tuple[Column, ...]
    not_used: dict[str, str]
    hidden: tuple[int, ...]
    limits: Limits
    rows: dict[str, int]
    options: dict[str, str]
    notes: tuple[str, ...]
    made_by: dict[str, str]

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("it has no columns to predict from")
        if len(self.hidden) > 16 or not all(0 < width <= WIDEST for width in self.hidden):
            raise ValueError(f"hidden must be at most 16 widths of 1 to {WIDEST:,}, got {self.hidden}")

    @property
    def inputs(self) -> int:
        """How many inputs the network has."""
        return sum(column.width for column in self.columns)

    def network(self) -> nn.Module:
        """A network as it was trained, with other weights."""
        if self.target.classes is None:
            return regression_network(self.inputs, self.hidden)
        return classification_network(self.inputs, self.hidden, len(self.target.classes))


@dataclass(frozen=True, eq=False)
class Judged:
    """What a model makes of some rows.

    Args:
        prediction: in the target's own unit.
        score: how foreign each row is.
        is_ood: whether that is above the threshold.
    """

    prediction: Prediction
    score: Numbers
    is_ood: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TableModel:
    """Predicts for the rows of a table, with error bars and an OOD score.

    Args:
        description: all but tensors.
        ensemble: for encoded rows.
        cloud: where the training rows are.
    """

    description: Description
    ensemble: Ensemble
    cloud: Cloud

    def judged(self, rows: Encoded) -> Judged:
        """What it makes of encoded rows."""
        limits = self.description.limits
        prediction, strangeness = judged(self.ensemble, self.cloud, self.description.target, rows)
        score = strangeness.score(limits)
        return Judged(prediction, score, score > limits.threshold)

    def predict(self, frame: Frame) -> tuple[Frame, dict[str, int]]:
        """One row of predictions for every row of a table.

        Returns:
            The predictions; and by column, in how many rows it holds a category, or a gap, that no training row has.

        Raises:
            TableError: if a column is missing, or text stands where training rows have numbers.
        """
        rows = encoded(self.description.columns, frame)
        parts = [self._table(self.judged(part)) for part in track(list(_chunks(rows)), "predicting")]
        found = require("pandas", "tables").concat(parts, ignore_index=True)
        return found, {name: int(new.sum()) for name, new in rows.unseen.items()}

    def _table(self, rows: Judged) -> Frame:
        classes = self.description.target.classes
        if isinstance(rows.prediction, GaussianMixture):
            columns: dict[str, Any] = _columns_of_numbers(rows.prediction)
        else:
            columns = _columns_of_classes(rows.prediction, classes or ())
        return require("pandas", "tables").DataFrame(columns | {"ood_score": rows.score, "is_ood": rows.is_ood})

    def save(self, folder: Path, report: str) -> None:
        """Write the folder of the model, whole or not at all; an older model there is replaced.

        Args:
            folder: to write.
            report: the page that goes with it.

        Raises:
            OSError: as `replacing_folder` does.
        """
        with replacing_folder(folder, FILES) as new:
            self.ensemble.save(new / ENSEMBLE)
            cloud = dict(zip(("centre", "whitening"), tensors(self.cloud.centre, self.cloud.whitening), strict=True))
            write_tensors(new / CLOUD, cloud, {"holds": "training rows' centre and whitening", "version": VERSION})
            files = {name: _digest(new / name) for name in (ENSEMBLE, CLOUD)}
            about = {"version": VERSION, "files": files, "model": asdict(self.description)}
            (new / MODEL).write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            (new / REPORT).write_text(report, encoding="utf-8")


def load(folder: Path) -> TableModel:
    """The model in a folder that `tradi fit` wrote.

    Raises:
        TableError: if it is no such folder, of another version, or was changed.
        OSError: if a file cannot be read.
    """
    if not (folder / MODEL).is_file():
        raise TableError(f"{folder} is not a model: it has no {MODEL}; `tradi fit` makes such folders")
    with _naming(folder / MODEL):
        about = parsed((folder / MODEL).read_text(encoding="utf-8"))
        version = about.get("version") if isinstance(about, dict) else None
        if version != VERSION or isinstance(version, bool):
            raise ValueError(f"it is of format version {str(version)[:20]}, and this version of tradi reads {VERSION}")
        description = built(Description, about.get("model"), "model")
        files = built(dict[str, str], about.get("files"), "files")
    for name in (ENSEMBLE, CLOUD):
        if not (folder / name).is_file():
            raise TableError(f"{folder} is not whole: {name} is missing")
        if files.get(name) != _digest(folder / name):
            raise TableError(f"{folder / name} is not the file that {MODEL} was written with: copy the whole folder")
    with _naming(folder / CLOUD):
        cloud = _cloud(folder / CLOUD, description.inputs)
    with _naming(folder / ENSEMBLE):
        return TableModel(description, load_ensemble(folder / ENSEMBLE, description.network()), cloud)


def judged(ensemble: Ensemble, cloud: Cloud, target: Target, rows: Encoded) -> tuple[Prediction, Strangeness]:
    """What members predict for encoded rows, in the target's own unit, and how foreign the rows are."""
    found = ensemble.predict(list(tensors(rows.inputs)[0].split(AT_ONCE)))
    if isinstance(found, ClassPrediction):
        return found, Strangeness.of(rows, found.mutual_information.sqrt().numpy(), cloud)
    found = GaussianMixture(found.means[..., 0] * target.std + target.mean, found.variances[..., 0] * target.std**2)
    return found, Strangeness.of(rows, found.epistemic.sqrt().numpy() / target.std, cloud)


def _columns_of_numbers(prediction: GaussianMixture) -> dict[str, Numbers]:
    columns = {"prediction": prediction.mean.numpy(), "std": prediction.variance.sqrt().numpy()}
    for percent in INTERVALS:
        low, high = prediction.icdf(torch.tensor([0.5 - percent / 200, 0.5 + percent / 200], dtype=torch.float64))
        columns |= {f"lower_{percent}": low.numpy(), f"upper_{percent}": high.numpy()}
    return columns


def _columns_of_classes(prediction: ClassPrediction, classes: tuple[str, ...]) -> dict[str, Any]:
    probs = prediction.probs.numpy()
    labels = [classes[label] for label in prediction.labels.tolist()]
    by_class = {f"p_{name}": probs[:, number] for number, name in enumerate(classes)}
    return {"prediction": labels, **by_class, "entropy": prediction.entropy.numpy()}


def _chunks(rows: Encoded) -> Iterator[Encoded]:
    for start in range(0, len(rows.inputs), CHUNK):
        yield rows.part(slice(start, start + CHUNK))


def _cloud(path: Path, inputs: int) -> Cloud:
    found, about = read_tensors(path)
    if about is None:
        raise ValueError("tradi did not write it")
    check_digest(found, about)
    shapes = {"centre": (inputs,), "whitening": (inputs, inputs)}
    if {name: tuple(tensor.shape) for name, tensor in found.items()} != shapes:
        raise ValueError(f"it does not hold {shapes}")
    if not all(tensor.dtype == torch.float64 and tensor.isfinite().all() for tensor in found.values()):
        raise ValueError("it does not hold finite numbers in double precision")
    return Cloud(found["centre"].numpy(), found["whitening"].numpy())


def _digest(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        chunks: Callable[[], bytes] = partial(file.read, 1 << 20)
        for chunk in iter(chunks, b""):
            sha.update(chunk)
    return sha.hexdigest()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file's contents is a TableError that names the file."""
    try:
        yield
    except ValueError as error:
        raise TableError(f"{path} cannot be used: {error}") from error
