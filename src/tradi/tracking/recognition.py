"""A few values of the weights, by which the live weights are known again or found to be others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Any

import torch
from torch import Tensor

from tradi._torch import foreach_copy_, foreach_norm, foreach_sub
from tradi.tracking.selection import Weight

WEIGHTS = 16  # of which values are kept: the first, the last, and some between
VALUES = 16  # of each
LOOKS = 64  # sets of weights that steps move together: one per optimizer, mostly
# Swapping averaged weights in and out by interpolation, as schedule-free optimizers do, leaves rounding errors.
ROUNDING = 1e-5

OTHER_WEIGHTS = (
    "the model's weights are not those of the last step that was seen, and what was tracked does not belong to them. "
    "If best weights were put back (early stopping, load_best_model_at_end, load_state_dict): call tracker.mark_best() "
    "whenever they are saved, and posterior() belongs to them after they are put back; or save tracker.state_dict() "
    "beside the checkpoint, and load both. If averaged weights were swapped in: call posterior() before, or swap them "
    "out. If another optimizer moves the weights, perhaps a copy, which loses its hooks: attach to that one"
)
MARKED_OTHERS = "; the weights that mark_best() marked are others, too"


@dataclass(frozen=True)
class _Look:
    """Weights that are moved together, where they lie in memory, and views of some of their values."""

    weights: list[Weight]
    places: list[int]
    rows: list[Tensor]

    @classmethod
    def at(cls, moved: Sequence[Weight]) -> _Look:
        weights = _spread([weight for weight in moved if weight.parameter.layout == torch.strided])
        return cls(weights, [w.local.data_ptr() for w in weights], [_row(w) for w in weights])

    @property
    def is_in_place(self) -> bool:
        return [weight.local.data_ptr() for weight in self.weights] == self.places


class Fingerprint:
    """Some values of the weights, each as the last step that moved it left it.

    Weights may change between two steps as far as they have done before: a clamp, a projection, a decay by hand.
    """

    def __init__(self) -> None:
        self._values: dict[Weight, Tensor] = {}
        self._drift = 0.0  # the largest change between two steps so far, slowly forgotten
        self._seen: float | None = None  # such a change, until it is known that the step moved anything
        self._looks: dict[tuple[Weight, ...], _Look] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_looks": {}}  # a copy's weights lie elsewhere

    def take(self, moved: list[Weight]) -> None:
        """After a step: remember some values of the weights that it moved."""
        if self._seen is not None:
            self._drift, self._seen = max(self._seen, 0.95 * self._drift), None
        key = tuple(moved)
        look = self._looks.get(key)
        if look is None or not look.is_in_place:
            if len(self._looks) >= LOOKS:
                self._looks.clear()
            look = self._looks[key] = _Look.at(moved)
            self._values |= {w: torch.empty_like(row) for w, row in zip(look.weights, look.rows, strict=True)}
        foreach_copy_([self._values[weight] for weight in look.weights], look.rows)

    def before_step(self, steps: int) -> None:
        """Before a step: note how far the weights moved since the last."""
        self._seen = None
        if is_asked(steps):
            found = _change([_row(weight) for weight in self._values], self._values.values())
            self._seen = found if isfinite(found) else None  # other weights, or a training that diverged

    def forget_places(self) -> None:
        """Let go of the memory of weights that are not followed any more."""
        self._looks = {}

    def change(self, own: Mapping[str, Weight]) -> float:
        """The largest change of a weight since the last step, relative to the weight.

        0 if it is no larger than between other steps, or if a checkpoint has left nothing to compare with; infinite if
        the model has none of these weights any more.
        """
        if not self._values:
            return 0.0
        values = self._of(own)
        found = _change([_row(weight) for weight in values], values.values()) if values else inf
        return 0.0 if found <= max(ROUNDING, 4 * self._drift) else found

    def state_dict(self, own: Mapping[str, Weight]) -> dict[str, Any]:
        """Of those weights that are still in the model."""
        return {"drift": self._drift, "values": {w.name: values.clone() for w, values in self._of(own).items()}}

    def unknown(self, own: Mapping[str, Weight]) -> dict[str, Any]:
        """A state of the same form that knows no values: of sharded weights every process looks at others."""
        return {"drift": -1.0, "values": {w.name: torch.full(row_shape(w), nan) for w in self._of(own)}}

    def load_state_dict(self, state: dict[str, Any], own: Mapping[str, Weight]) -> None:
        """As it was when `state_dict` was called."""
        self.forget_places()
        drift, values = float(state["drift"]), state["values"]
        self._drift, known = (0.0, {}) if drift < 0 else (drift, values)  # see `unknown`
        self._values = {own[name]: row.clone() for name, row in known.items()}

    def _of(self, own: Mapping[str, Weight]) -> dict[Weight, Tensor]:
        return {weight: values for weight, values in self._values.items() if own.get(weight.name) is weight}


def is_asked(steps: int) -> bool:
    """Whether weights are looked at before the next step: 64 times while the steps double."""
    return steps % (1 << max(steps.bit_length() - 7, 0)) == 0


def row_shape(weight: Weight) -> torch.Size:
    """The shape of what is kept of a weight; of a sharded one, of what is kept of the whole."""
    return _row_of(torch.empty(weight.parameter.shape, device="meta")).shape


def values_of(state: dict[str, Any], own: Mapping[str, Weight]) -> dict[str, Any]:
    """A fingerprint of the same weights as another's state, taken now."""
    return {"drift": 0.0, "values": {name: _row(own[name]).clone() for name in state["values"]}}


def is_same(state: dict[str, Any], own: Mapping[str, Weight]) -> bool:
    """Whether the weights are those of a fingerprint's state."""
    values = state["values"]
    return values.keys() <= own.keys() and _change([_row(own[name]) for name in values], values.values()) <= ROUNDING


def _change(now: Sequence[Tensor], before: Iterable[Tensor]) -> float:
    # A model may have been moved, or converted to a coarser type, since; on the meta device it has no values.
    pairs = [(row, values.to(row)) for row, values in zip(now, before, strict=True) if not row.is_meta]
    pairs = [(row, values) for row, values in pairs if not torch.equal(row, values)]  # mostly, none are left
    if any(row.shape != values.shape for row, values in pairs):
        return inf
    if not pairs:
        return 0.0
    rows, values = zip(*pairs, strict=True)
    changes, sizes = foreach_norm(foreach_sub(rows, values), 2), foreach_norm(values, 2)
    ratios = [float(change) / max(float(size), 1e-30) for change, size in zip(changes, sizes, strict=True)]
    return max(_known(*found) for found in zip(ratios, rows, values, strict=True))


def _known(ratio: float, row: Tensor, values: Tensor) -> float:
    """A change as a number: weights that diverged are the same as themselves, and as no others."""
    if isfinite(ratio):
        return ratio
    return 0.0 if torch.allclose(row, values, rtol=ROUNDING, equal_nan=True) else inf


def _spread(weights: list[Weight]) -> list[Weight]:
    if len(weights) <= WEIGHTS:
        return weights
    return [weights[i * (len(weights) - 1) // (WEIGHTS - 1)] for i in range(WEIGHTS)]


def _row(weight: Weight) -> Tensor:
    return _row_of(weight.local.detach())


def _row_of(row: Tensor) -> Tensor:
    """A short row from the inside of a weight; its edges are more often inputs that are always zero."""
    row = row.reshape(-1) if row.ndim == 0 or not row.numel() else row
    inside = [length * 5 // 8 for length in row.shape]
    first = max(inside.pop() - VALUES, 0)
    place: tuple[int | slice, ...] = (*inside, slice(first, first + VALUES))
    return row[place]
