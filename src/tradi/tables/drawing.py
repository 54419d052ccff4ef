"""Figures of the report, as SVG that takes its colours from the page."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np
import torch

from tradi.extras import require
from tradi.prediction.gaussian import GaussianMixture
from tradi.tables.findings import Findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"  # stands for the colour of the page's text, and no other colour is this
BLUE, ORANGE = "#0072B2", "#D55E00"  # of every figure of ours: told apart on black and on white, with any colour vision
SIZE = (4.4, 3.3)  # inches; a phone is narrower, and figures shrink
STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


def figures(findings: Findings) -> dict[str, str]:
    """By caption: how good predictions are, how well calibrated, and how foreign rows are."""
    if isinstance(findings.rows.prediction, GaussianMixture):
        drawn = {"Predicted and actual, with standard deviations": _scatter, "Calibration of the intervals": _coverage}
    else:
        drawn = {"Calibration of the confidence": _reliability}
    drawn |= {"OOD scores and the threshold": _ood}
    return {caption: _svg(caption, draw, findings) for caption, draw in drawn.items()}


def _svg(caption: str, draw: object, findings: Findings) -> str:
    matplotlib = require("matplotlib", "tables")
    figure_of = require("matplotlib.figure", "tables").Figure
    assert callable(draw)
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": caption}):
        figure = figure_of(figsize=SIZE, layout="constrained")
        draw(figure.subplots(), findings)
        content = io.StringIO()
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = content.getvalue()
    drawn = re.sub(r' (?:width|height)="[\d.]+pt"', "", drawn[drawn.index("<svg") :], count=2)
    title = f'<svg role="img" aria-label="{caption}"'
    return drawn.replace("<svg", title, 1).replace(INK, "currentColor").replace("'DejaVu Sans'", "system-ui")


def _scatter(axes: Axes, findings: Findings) -> None:
    prediction = findings.rows.prediction
    assert isinstance(prediction, GaussianMixture)
    some = slice(None, None, max(len(findings.truth) // 400, 1))
    mean, std = prediction.mean.numpy()[some], prediction.variance.sqrt().numpy()[some]
    truth = findings.truth[some]
    ends = [float(min(truth.min(), mean.min())), float(max(truth.max(), mean.max()))]
    axes.plot(ends, ends, color=INK, linewidth=0.8, linestyle="--")
    axes.errorbar(mean, truth, xerr=std, fmt="o", markersize=3, color=BLUE, elinewidth=0.8, alpha=0.8)
    axes.set(xlabel="predicted", ylabel="actual")


def _coverage(axes: Axes, findings: Findings) -> None:
    levels = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--")
    axes.plot(levels.numpy(), findings.coverage(levels).numpy(), "o-", color=BLUE, markersize=3)
    axes.set(xlabel="level of the central interval", ylabel="share of rows inside", xlim=(0, 1), ylim=(0, 1.02))


def _reliability(axes: Axes, findings: Findings) -> None:
    curve = findings.reliability()
    filled = curve.count > 0
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="--")
    sizes = 10 + 90 * (curve.count[filled] / curve.count.max()).numpy()
    axes.plot(curve.confidence[filled].numpy(), curve.accuracy[filled].numpy(), color=BLUE)
    axes.scatter(curve.confidence[filled].numpy(), curve.accuracy[filled].numpy(), sizes, color=BLUE)
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))


def _ood(axes: Axes, findings: Findings) -> None:
    threshold = findings.model.description.limits.threshold
    shown = np.minimum(findings.rows.score, 2 * threshold or 1.0)
    axes.hist(shown, bins=30, color=BLUE)
    axes.axvline(threshold, color=ORANGE, linestyle="--")
    side, away = ("right", -4) if threshold > np.mean(axes.get_xlim()) else ("left", 4)
    axes.annotate(
        f"threshold {threshold:.2f}",
        (threshold, 1),
        (away, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=INK,
        ha=side,
        va="top",
    )
    axes.margins(y=0.15)  # room for it above the bars
    axes.locator_params(axis="y", integer=True)
    axes.set(xlabel="OOD score (beyond twice the threshold: at its end)", ylabel="rows")
