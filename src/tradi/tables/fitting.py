"""From a table to a model of it, and to what its report says."""

from __future__ import annotations

import importlib.metadata
import platform
import warnings
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tradi import __version__
from tradi.ensemble.ensemble import Ensemble
from tradi.tables.columns import Column, described, encoded, why_not_used
from tradi.tables.findings import Findings
from tradi.tables.foreign import Cloud, limits_of
from tradi.tables.frames import Frame, Numbers, TableError, listed
from tradi.tables.model import Description, TableModel, judged
from tradi.tables.rows import held_out
from tradi.tables.scaling import about_far, within_reach
from tradi.tables.target import TASKS, Parts, Target, known_rows, split, target_of
from tradi.tables.training import Options, fit_classes, fit_numbers

SAME = (
    "all members are the same network, since too few rows show that noise does no harm: error bars and the OOD score "
    "miss what the model does not know"
)
PACKAGES = ("torch", "numpy", "pandas", "safetensors")


@dataclass(frozen=True)
class Settings:
    """What `tradi fit` is asked for.

    Args:
        target: the column to predict.
        task: one of `TASKS`.
        exclude: columns to leave out.
        seed: of everything random.
        members: networks in the ensemble.
        steps: of the optimizer, about; None chooses by the number of rows.

    Raises:
        ValueError: if an option is out of range.
    """

    target: str
    task: str = "auto"
    exclude: tuple[str, ...] = ()
    seed: int = 0
    members: int = 20
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {self.task!r}")
        if not 0 <= self.seed < 1 << 31:
            raise ValueError(f"seed must be from 0 to 2^31 - 1, got {self.seed}")
        if self.target in self.exclude:
            raise ValueError(f"the target {self.target!r} cannot be excluded")
        self.training()

    def training(self) -> Options:
        """The same, for the network."""
        return Options(members=self.members, steps=self.steps, seed=self.seed)


def fit(frame: Frame, settings: Settings, command: str) -> tuple[TableModel, Findings]:
    """Train on most rows of a table, choose the OOD threshold by some, and keep others for the report.

    Args:
        frame: as `frames.read` gives it.
        settings: what is asked for.
        command: for the record.

    Raises:
        TableError: if the table does not allow it; the message says why.
    """
    unknown = [name for name in settings.exclude if name not in frame.columns]
    if unknown:
        raise TableError(f"--exclude names columns that are not there: {listed(unknown)}")
    known = known_rows(frame, settings.target)
    target = target_of(settings.target, known[settings.target], settings.task)
    y = target.values(known[settings.target])
    parts = split(None if target.classes is None else y, len(known), settings.seed)
    not_used, columns = _columns(known, settings, parts)
    rows = encoded(columns, known)
    train = rows.part(parts.train)
    y_train, far = within_reach(y[parts.train]) if target.classes is None else (y[parts.train], 0)
    ensemble, hidden, notes = _ensemble(train.inputs, y_train, target, settings.training())
    cloud = Cloud.of(train.inputs)
    limits = limits_of(judged(ensemble, cloud, target, rows.part(parts.held_out))[1])
    about = Description(
        target=target,
        columns=columns,
        not_used=not_used,
        hidden=hidden,
        limits=limits,
        rows={"training": len(parts.train), "held out": len(parts.held_out), "test": len(parts.test)}
        | {"without a target": len(frame) - len(known)},
        options={"task": settings.task, "seed": str(settings.seed), "members": str(settings.members)}
        | {"steps": "by the number of rows" if settings.steps is None else str(settings.steps)},
        notes=_notes(columns, far) + (notes if limits.disagreement > 0 else (SAME,)),
        made_by=_versions() | {"command": command},
    )
    model = TableModel(about, ensemble, cloud)
    shown = parts.test if len(parts.test) else parts.held_out
    numbers = known.index.to_numpy()[shown] + 1
    return model, Findings.of(model, rows.part(shown), y[shown], numbers, tested=bool(len(parts.test)))


def _columns(known: Frame, settings: Settings, parts: Parts) -> tuple[dict[str, str], tuple[Column, ...]]:
    """The columns that are not used, with the reason, and those that are."""
    not_used = dict.fromkeys(settings.exclude, "excluded as asked")
    names = [name for name in known.columns if name != settings.target and name not in not_used]
    reasons = {name: why_not_used(known[name]) for name in names}
    not_used |= {name: reason for name, reason in reasons.items() if reason is not None}
    columns = tuple(described(name, known[name], parts.train) for name in names if reasons[name] is None)
    if not columns:
        why = "; ".join(f"{name!r}: {reason}" for name, reason in not_used.items())
        raise TableError(f"no column is left to predict {settings.target!r} from" + (f" ({why})" if why else ""))
    return not_used, columns


def _notes(columns: tuple[Column, ...], far: int) -> tuple[str, ...]:
    """What was changed in the table's numbers."""
    words = [f"{column.name!r} has {column.about}" for column in columns if column.words]
    return (*words, *([about_far(far)] if far else []))


def _ensemble(
    inputs: Numbers, y: NDArray[Any], target: Target, options: Options
) -> tuple[Ensemble, tuple[int, ...], tuple[str, ...]]:
    """An ensemble, the widths of its hidden layers, and what training had to say."""
    train, validation = held_out(inputs, y, options.validation, options.seed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if target.classes is None:
            ensemble = fit_numbers(train, validation, options)
        else:
            ensemble = fit_classes(train, validation, len(target.classes), options)
    notes = tuple(dict.fromkeys(str(one.message) for one in said if issubclass(one.category, UserWarning)))
    return ensemble, options.widths(len(train[0])), notes


def _versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"tradi": __version__, "python": platform.python_version()} | packages
