"""What the rows of a table share, and the detector, which a row can give in place of an ensemble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from tradi.bench.recipe import Recipe
from tradi.bench.training import Attach

Notes = dict[str, Any]  # what a method has to say of itself, for the result file
RowT = TypeVar("RowT", bound="Row")


@dataclass(frozen=True)
class Row:
    """A method that needs one training by the benchmark's recipe, and nothing of it but the network."""

    runs: int = 1
    dropout: float | None = None

    def recipe(self, usual: Recipe) -> Recipe:
        return usual

    def attach(self) -> dict[str, Attach]:
        return {}

    def quick(self: RowT) -> RowT:
        return self


@dataclass(frozen=True, eq=False)
class Detector:
    """Says how far out of distribution inputs seem, and predicts nothing.

    Args:
        score: of a batch of any size; higher = more OOD.
    """

    score: Callable[[Tensor], Tensor]
