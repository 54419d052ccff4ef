"""What comes of evaluating an ensemble."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

Numbers = dict[str, float]
Pictures = dict[str, NDArray[Any]]  # arrays that pictures of predictions are drawn from
Curves = dict[str, dict[str, Any]]  # fields of the curves of `tradi.metrics`, as lists


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Numbers for the tables and curves for the figures.

    Args:
        metrics: by name.
        curves: by name.
        seconds: that predicting the test data took.
        pictures: by name, if there are any.
    """

    metrics: Numbers
    curves: Curves
    seconds: float
    pictures: Pictures = field(default_factory=dict)


def as_lists(curve: Any) -> dict[str, Any]:
    """The fields of a curve, as a JSON file can hold them."""
    values = {field.name: getattr(curve, field.name) for field in fields(curve)}
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in values.items()}
