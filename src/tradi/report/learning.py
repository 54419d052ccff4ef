"""Learning curves: what a method reaches by number of labels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from tradi.report import svg
from tradi.report.charts import HEIGHT, WIDTH, Curves, Methods
from tradi.report.style import Style

Line = list[tuple[float, float]]


def learning(curves: Curves, methods: Methods) -> str:
    """Mean over runs by number of labels, and a bar of one standard error at every round."""
    lines = {
        name: [_point(values) for values in zip(*(one["value"] for one in each), strict=True)]
        for name, each in curves.items()
    }
    labels = {name: each[0]["labels"] for name, each in curves.items()}
    everything = [mean for line in lines.values() for mean, _ in line]
    margin = 0.05 * (max(everything) - min(everything)) or 1.0
    most = max(count for own in labels.values() for count in own)
    ends = min(everything) - margin, max(everything) + margin
    plot = svg.Plot(42, 8, WIDTH - 52, HEIGHT - 48, (0, most), ends)

    def draw(name: str) -> Callable[[Style], str]:
        line: Line = [(count, mean) for count, (mean, _) in zip(labels[name], lines[name], strict=True)]
        bars = [[(x, mean - error), (x, mean + error)] for (x, mean), (_, error) in zip(line, lines[name], strict=True)]
        thin = "".join(svg.stroke(plot.line(bar), kind="run") for bar in bars if bar[0] != bar[1])
        marks = [plot.place(*point) for point in line]
        return lambda style: thin + svg.stroke(plot.line(line), style) + svg.markers(style, marks)

    drawn = [plot.axes("Labels", ""), *(methods.draw(name, draw(name)) for name in curves)]
    return svg.drawing(WIDTH, HEIGHT, f"Learning curves of {', '.join(curves)}", drawn)


def _point(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.fmean(values), error
