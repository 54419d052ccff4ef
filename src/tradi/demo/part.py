"""What each half of the demo hands over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tradi.report.charts import Methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, float]  # measure -> value
Table = dict[str, dict[str, list[float]]]  # method -> measure -> a value for every seed


@dataclass(frozen=True)
class Part:
    """One half of the demo.

    Args:
        title: what was learnt from.
        message: what there is to see.
        rows: by method.
        scale: how TRADI's was chosen.
        figures: by file name.
        drawn: the same for the page, given its methods.
    """

    title: str
    message: str
    rows: dict[str, Row]
    scale: str
    figures: dict[str, Figure]
    drawn: Callable[[Methods], str]
