"""From numbers to figures: one function a curve, several methods overlaid or side by side.

Every function takes a mapping from a method's name to its numbers and returns a matplotlib `Figure`, without
touching pyplot's global state: `figure.savefig("calibration.png")`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tradi.extras import require
from tradi.metrics import (
    AccuracyConfidence,
    APCalibration,
    Calibration,
    ConfidenceHistogram,
    RegressionBand,
    RiskCoverage,
)
from tradi.report.style import DASHES, GREY, MARKERS, MATPLOTLIB
from tradi.report.style import styles as of_methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def accuracy_confidence(curves: Mapping[str, AccuracyConfidence]) -> Figure:
    """Accuracy on all test data above each confidence threshold; OOD samples count as errors."""
    figure, axes = _overlay(curves)
    for (name, curve), style in zip(curves.items(), styles(curves), strict=True):
        axes.plot(curve.threshold.tolist(), curve.accuracy.tolist(), label=name, markevery=0.1, **style)
    axes.set(
        xlabel="Confidence threshold", ylabel="Accuracy above threshold, OOD as errors", xlim=(0, 1), ylim=(None, 1.02)
    )
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def calibration(curves: Mapping[str, Calibration]) -> Figure:
    """Accuracy against mean confidence in each bin, beside the diagonal of perfect calibration."""
    points = {name: (curve.confidence, curve.accuracy) for name, curve in curves.items()}
    return _against_confidence(points, "Accuracy")


def ap_calibration(curves: Mapping[str, APCalibration]) -> Figure:
    """Precision averaged over the predicted classes, at the middle of each bin of confidence."""
    points = {name: ((c.edges[:-1] + c.edges[1:]) / 2, c.precision) for name, c in curves.items()}
    return _against_confidence(points, "Average precision over classes")


def risk_coverage(curves: Mapping[str, RiskCoverage]) -> Figure:
    """Error rate on the most confident part of the data against that part's size, with the area below."""
    figure, axes = _overlay(curves)
    for (name, curve), style in zip(curves.items(), styles(curves), strict=True):
        label = f"{name} (AURC {curve.aurc:.3f})"
        axes.plot(curve.coverage.tolist(), curve.risk.tolist(), label=label, markevery=0.1, **style)
    axes.set(xlabel="Coverage", ylabel="Risk (error rate)", xlim=(0, 1), ylim=(0, None))
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def confidence_histogram(histograms: Mapping[str, ConfidenceHistogram]) -> Figure:
    """Confidence of in-distribution against that of OOD samples, one panel a method."""
    figure, panels = _panels(len(histograms))
    for axes, (name, histogram), style in zip(panels, histograms.items(), styles(histograms), strict=True):
        edges = histogram.edges.tolist()
        axes.stairs(_shares(histogram.inside), edges, fill=True, color="#BBBBBB", label="In-distribution")
        axes.stairs(_shares(histogram.ood), edges, color=style["color"], linewidth=2, label="OOD")
        axes.set(title=name, xlabel="Confidence", xlim=(0, 1))
        axes.legend(loc="upper center", ncols=2, frameon=False)
    # The axes are shared, so their end is set once all is drawn; the room above is the legends'.
    panels[0].set_ylim(0, 1.2 * max(axes.dataLim.ymax for axes in panels))
    figure.supylabel("Share of samples", fontsize="medium")
    return figure


def regression_band(bands: Mapping[str, RegressionBand], truth: Tensor, train_x: Tensor, train_y: Tensor) -> Figure:
    """A one-dimensional regression as in the paper's figure 2, one panel a method.

    Args:
        bands: predictions, all at the same inputs x.
        truth: the true function at those inputs.
        train_x: inputs of the training points.
        train_y: their targets.

    """
    figure, panels = _panels(len(bands))
    for axes, (name, band), style in zip(panels, bands.items(), styles(bands), strict=True):
        _draw_band(axes, band, style["color"])
        axes.plot(band.x.tolist(), truth.flatten().tolist(), "k--", linewidth=1.2, label="True function")
        axes.plot(train_x.flatten().tolist(), train_y.flatten().tolist(), "k.", label="Training points")
        axes.set(title=name, xlabel="x", xlim=(band.x[0].item(), band.x[-1].item()))
    # By what there is to see, so that a band beyond all bounds does not flatten the others.
    seen = torch.cat([truth.flatten(), train_y.flatten()])
    margin = 0.75 * (seen.max() - seen.min()).item()
    panels[0].set_ylim(seen.min().item() - margin, seen.max().item() + margin)
    figure.supylabel("y", fontsize="medium")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 * len(panels), frameon=False)
    return figure


def styles(names: Iterable[str]) -> list[dict[str, Any]]:
    """Colour, marker and dashes of each method, as matplotlib takes them."""
    listed = list(names)
    found = of_methods(listed)
    return [
        {
            "color": found[name].colour,
            "marker": MARKERS[found[name].marker],
            "markersize": 5,
            "linestyle": DASHES[found[name].dash],
        }
        for name in listed
    ]


def _against_confidence(points: Mapping[str, tuple[Tensor, Tensor]], ylabel: str) -> Figure:
    figure, axes = _overlay(points)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, label="Perfect calibration")
    for (name, (x, y)), style in zip(points.items(), styles(points), strict=True):
        used = ~y.isnan()
        axes.plot(x[used].tolist(), y[used].tolist(), label=name, **style)
    axes.set(xlabel="Confidence", ylabel=ylabel, xlim=(0, 1), ylim=(0, 1.02))
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _draw_band(axes: Axes, band: RegressionBand, colour: str) -> None:
    def shade(width: Tensor, **style: Any) -> None:
        low, high = (band.mean - width).tolist(), (band.mean + width).tolist()
        axes.fill_between(band.x.tolist(), low, high, linewidth=0, **style)

    shade(2 * band.sd, color=colour, alpha=0.18, label="Mean ± 2 sd")
    shade(band.sd, color=colour, alpha=0.30, label="Mean ± 1 sd")
    shade(band.epistemic_sd, facecolor="none", edgecolor=colour, hatch="/////", label="Epistemic ± 1 sd")
    axes.plot(band.x.tolist(), band.mean.tolist(), color=colour, linewidth=2, label="Mean")


def _shares(count: Tensor) -> list[float]:
    """Shares of the total; a kind that does not occur has none."""
    shares: list[float] = (count.double() / count.sum().clamp_min(1)).tolist()
    return shares


def _overlay(methods: Mapping[str, object]) -> tuple[Figure, Axes]:
    """One panel for all methods."""
    figure, (axes,) = _panels(min(len(methods), 1), width=7.2, height=4)
    return figure, axes


def _panels(count: int, width: float = 3.4, height: float = 3.2, row: int = 4) -> tuple[Figure, list[Axes]]:
    """Panels of one size and one y axis, so many a row at most, the rows as even as can be."""
    if count == 0:
        raise ValueError("there is nothing to draw: give at least one method")
    rows = ceil(count / row)
    columns = ceil(count / rows)
    module = require("matplotlib.figure", "figures")
    with require("matplotlib", "figures").rc_context(MATPLOTLIB):
        figure: Figure = module.Figure(figsize=(width * columns, height * rows), layout="constrained", dpi=150)
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten().tolist()
    for unused in grid[count:]:
        unused.remove()
    return figure, grid[:count]
