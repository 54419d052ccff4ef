"""What tracking, sampling and saving will cost a model, told before anything is allocated."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tradi.ensemble.copying import unwrap
from tradi.ensemble.ensemble import KEEP_BYTES
from tradi.tracking.selection import (
    Select,
    Weight,
    as_predicate,
    check_trackable,
    except_normalisation,
    named_weights,
)

SWAG_RANK = 20  # deviations that SWAG keeps by default

# Nanoseconds on one core of an AMD EPYC: results/speed/frozen.json.
STEP, DRAW, HASH = 1.35, 20.5, 0.57


@dataclass(frozen=True)
class Estimate:
    """What a model's uncertainty will cost; as text, a table.

    Memory is in bytes, beside the model and its training. Seconds are of one core of an AMD EPYC: docs/large-models.md
    says how they were measured.

    Args:
        weights: all of the model's.
        tracked: those that are trainable and selected.
        frozen: those that are not trainable.
        members: of the ensemble.
        tracking: memory of `TRADI`, a mean and a variance per tracked weight.
        tracking_swag: memory of `SWAG` with 20 deviations.
        posterior: memory that `tracker.posterior()` adds.
        sampling: memory that the ensemble adds, once all members have run.
        kept: members that are kept between calls; the others are drawn again.
        file: size of `posterior.save(path)`, names aside.
        whole_file: size of `posterior.save(path, whole=True)`, names aside.
        ensemble_file: size of `ensemble.save(path)`, names aside.
        wire: sent between processes in training and sampling.
        step_seconds: of an observed step.
        draw_seconds: of drawing all members once.
        hash_seconds: of saving or loading a file without frozen weights, for the hash of these.
    """

    weights: int
    tracked: int
    frozen: int
    members: int
    tracking: int
    tracking_swag: int
    posterior: int
    sampling: int
    kept: int
    file: int
    whole_file: int
    ensemble_file: int
    wire: int
    step_seconds: float
    draw_seconds: float
    hash_seconds: float

    def __str__(self) -> str:
        rows = {
            "weights": f"{count(self.weights)}, of which {count(self.tracked)} tracked, {count(self.frozen)} frozen",
            "tracking, TRADI": size(self.tracking),
            f"tracking, SWAG of rank {SWAG_RANK}": size(self.tracking_swag),
            "posterior()": size(self.posterior),
            f"sample({self.members})": f"{size(self.sampling)}, {self.kept} members kept between calls",
            "posterior.save()": size(self.file),
            "posterior.save(whole=True)": size(self.whole_file),
            "ensemble.save()": size(self.ensemble_file),
            "between processes": size(self.wire),
            "an observed step": duration(self.step_seconds),
            f"drawing {self.members} members": duration(self.draw_seconds),
            "hash of frozen weights": duration(self.hash_seconds),
            "a prediction": f"{self.members} forward passes",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows.items())


def estimate(
    model: nn.Module, members: int = 20, *, select: Select = except_normalisation, keep_bytes: int = KEEP_BYTES
) -> Estimate:
    """What tracking, sampling and saving will cost; nothing is allocated, so that the model may be on the meta device.

    What `fit` adds depends on the data and the head and is not in it.

    Args:
        model: any module, with the weights frozen that will be frozen in training.
        members: of the ensemble.
        select: which weights to track, as `TRADI` has it.
        keep_bytes: as the ensemble's.

    Returns:
        bytes and seconds, which print as a table.

    Raises:
        TypeError: if a selected weight cannot be tracked.
        ValueError: if there is no member, or nothing to track.
    """
    members, model = operator.index(members), unwrap(model)
    if members < 1:
        raise ValueError(f"members must be at least 1, got {members}")
    is_selected = as_predicate(select)
    every = list(named_weights(model).values())
    tracked = [one for one in every if one.parameter.requires_grad and is_selected(one)]
    for one in tracked:
        if not one.parameter.is_meta:
            check_trackable(one)
    if not tracked:
        raise ValueError("select= leaves no trainable weight to track: select at least one")
    trainable = [one for one in every if one.parameter.requires_grad]
    frozen = [one for one in every if not one.parameter.requires_grad]
    buffers = dict(model.named_buffers())
    persistent = _bytes_of([buffers[name] for name in buffers.keys() & model.state_dict().keys()])
    state, own = sum(map(_state_bytes, tracked)), _bytes(tracked)
    kept = min(members, keep_bytes // max(own, 1))
    temporary = 0 if kept == members else own
    file = _bytes(trainable) + persistent + 2 * state
    return Estimate(
        weights=_count_of(every),
        tracked=_count_of(tracked),
        frozen=_count_of(frozen),
        members=members,
        tracking=2 * state,
        tracking_swag=(2 + SWAG_RANK) * state,
        posterior=_bytes(trainable) + _bytes_of(buffers.values()) + 2 * state,
        sampling=kept * own + temporary + 2 * _bytes_of(buffers.values()),
        kept=kept,
        file=file,
        whole_file=file + _bytes(frozen),
        ensemble_file=_bytes(trainable) - own + persistent + members * own,
        wire=0,
        step_seconds=1e-9 * STEP * _count_of(tracked),
        draw_seconds=1e-9 * DRAW * _count_of(tracked) * members,
        hash_seconds=1e-9 * HASH * _bytes(frozen),
    )


def _count_of(weights: list[Weight]) -> int:
    return sum(one.parameter.numel() for one in weights)


def _bytes(weights: list[Weight]) -> int:
    return _bytes_of([one.parameter for one in weights])


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _state_bytes(weight: Weight) -> int:
    """Of one number per weight, in the type that it is tracked in."""
    return weight.parameter.numel() * torch.promote_types(weight.parameter.dtype, torch.float32).itemsize


def count(number: int) -> str:
    """A number of things in three digits."""
    return _short(number, ("", " thousand", " million", " billion"))


def size(number: int) -> str:
    """A number of bytes in three digits."""
    return _short(number, (" B", " kB", " MB", " GB", " TB"))


def duration(seconds: float) -> str:
    """Seconds in three digits."""
    return _short(seconds * 1e6, (" us", " ms", " s")) if seconds < 1000 else f"{seconds:,.0f} s"


def _short(number: float, units: tuple[str, ...]) -> str:
    """Three digits and the unit, each a thousand of the one before."""
    place = 0
    while number >= 999.5 and place < len(units) - 1:
        number, place = number / 1000, place + 1
    return f"{number:.3g}{units[place]}" if number < 999.5 else f"{number:,.0f}{units[place]}"
