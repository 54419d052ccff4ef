from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tradi import metrics
from tradi.metrics import RegressionBand
from tradi.report import figures

METHODS = ["SingleNetwork", "MC Dropout", "Deep Ensemble", "SWAG", "Gaussian perturbation", "TRADI"]
Draw = Callable[[list[str]], Figure]


def outcomes(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    confidence = torch.rand(300, generator=g) * 0.8 + 0.2
    return confidence, torch.rand(300, generator=g) < confidence, torch.rand(300, generator=g) < 0.4


def overlaid(draw: Callable[[dict[str, Any]], Figure], curve: Callable[..., object]) -> Draw:
    return lambda names: draw({name: curve(*outcomes(seed)) for seed, name in enumerate(names)})


def band(width: float) -> RegressionBand:
    x = torch.linspace(-1, 1, 20)
    return RegressionBand(x, x.sin(), torch.full((20,), width), torch.full((20,), width / 2))


def draw_bands(names: list[str]) -> Figure:
    x = torch.linspace(-1, 1, 20)
    bands = {name: band(1 + i) for i, name in enumerate(names)}
    return figures.regression_band(bands, x.cos(), torch.tensor([0.5, -0.5]), torch.tensor([1.0, 2.0]))


FIGURES: dict[str, Draw] = {
    "accuracy_confidence": overlaid(
        figures.accuracy_confidence, lambda c, k, ood: metrics.accuracy_confidence(c, k & ~ood)
    ),
    "calibration": overlaid(figures.calibration, lambda c, k, ood: metrics.calibration_curve(c, k)),
    "ap_calibration": overlaid(
        figures.ap_calibration, lambda c, k, ood: metrics.ap_calibration(c, (c * 4).long(), k, 5)
    ),
    "risk_coverage": overlaid(figures.risk_coverage, lambda c, k, ood: metrics.risk_coverage(c, k)),
    "confidence_histogram": overlaid(
        figures.confidence_histogram, lambda c, k, ood: metrics.confidence_histogram(c, ood)
    ),
    "regression_band": draw_bands,
}
OVERLAID = ["accuracy_confidence", "calibration", "ap_calibration", "risk_coverage"]


def colours(figure: Figure) -> dict[str, str]:
    """Colour of each method, by the legend of an overlay or by the panels' titles."""
    if len(figure.axes) == 1 and not figure.axes[0].get_title():
        lines = figure.axes[0].lines
        return {str(line.get_label()).split(" (")[0]: to_hex(line.get_color()) for line in lines}
    return {
        axes.get_title(): to_hex(axes.lines[0].get_color() if axes.lines else axes.patches[1].get_edgecolor())
        for axes in figure.axes
    }


@pytest.mark.parametrize("name", FIGURES)
def test_a_method_has_one_colour_in_every_figure(name: str) -> None:
    found = colours(FIGURES[name](METHODS))
    reference = dict(zip(METHODS, (style["color"].lower() for style in figures.styles(METHODS)), strict=True))
    assert {method: found[method] for method in METHODS} == reference
    assert len(set(reference.values())) == len(METHODS)
    fewer = colours(FIGURES[name](["SWAG", "TRADI"]))
    assert (fewer["SWAG"], fewer["TRADI"]) == (reference["SWAG"], reference["TRADI"])


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("methods", [METHODS[:1], METHODS, [*METHODS, "one more", "and another"]])
def test_nothing_is_cut_off_or_overlaps(name: str, methods: list[str]) -> None:
    figure = FIGURES[name](methods)
    figure.savefig(io.BytesIO(), format="png")  # lays the figure out
    canvas = figure.bbox
    panels = [box for box in (axes.get_tightbbox() for axes in figure.axes) if box is not None]
    legends = [legend.get_window_extent() for legend in figure.legends]
    for box in [*panels, *legends]:
        assert box.x0 >= canvas.x0 - 1
        assert box.y0 >= canvas.y0 - 1
        assert box.x1 <= canvas.x1 + 1
        assert box.y1 <= canvas.y1 + 1
    for legend in legends:
        assert legend.count_overlaps(panels) == 0


@pytest.mark.parametrize("name", FIGURES)
def test_axes_are_labelled(name: str) -> None:
    figure = FIGURES[name](["TRADI", "SWAG"])
    assert all(axes.get_xlabel() for axes in figure.axes)
    assert figure.get_supylabel() or all(axes.get_ylabel() for axes in figure.axes)


@pytest.mark.parametrize("name", OVERLAID)
def test_the_legend_names_every_method(name: str) -> None:
    (legend,) = FIGURES[name](METHODS).legends
    labels = " ".join(text.get_text() for text in legend.get_texts())
    assert all(method in labels for method in METHODS)


def test_the_lines_are_the_numbers() -> None:
    confidence, correct, _ = outcomes(0)
    curve = metrics.accuracy_confidence(confidence, correct)
    (line,) = figures.accuracy_confidence({"TRADI": curve}).axes[0].lines
    torch.testing.assert_close(torch.as_tensor(line.get_ydata()), curve.accuracy, equal_nan=True)
    bins = metrics.calibration_curve(confidence, correct)
    diagonal, line = figures.calibration({"TRADI": bins}).axes[0].lines
    assert np.array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    used = bins.count > 0
    assert not used.all(), "a bin is empty, and has no point"
    torch.testing.assert_close(torch.as_tensor(line.get_ydata()), bins.accuracy[used])
    risk = metrics.risk_coverage(confidence, correct)
    figure = figures.risk_coverage({"TRADI": risk})
    assert figure.legends[0].get_texts()[0].get_text() == f"TRADI (AURC {risk.aurc:.3f})"


def test_a_histogram_shows_shares_and_all_of_them() -> None:
    low = metrics.confidence_histogram(torch.linspace(0.01, 1, 100), torch.arange(100) < 50, 10)
    high = metrics.confidence_histogram(torch.full((10,), 0.95), torch.arange(10) < 5, 10)
    first, second = figures.confidence_histogram({"SWAG": low, "TRADI": high}).axes
    assert sum(second.patches[0].get_data().values) == pytest.approx(1)  # type: ignore[attr-defined]
    assert first.get_ylim() == second.get_ylim()
    assert second.get_ylim()[1] > 1, "the tallest bar of any panel fits"


def test_a_histogram_without_ood_samples() -> None:
    only = metrics.confidence_histogram(torch.rand(10), torch.zeros(10, dtype=torch.bool))
    (axes,) = figures.confidence_histogram({"TRADI": only}).axes
    assert max(axes.patches[1].get_data().values) == 0  # type: ignore[attr-defined]


def test_a_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'tradi\[figures\]'"):
        draw_bands(["TRADI"])


def test_methods_beyond_the_palette_still_differ() -> None:
    names = [*METHODS, "a", "b", "c"]
    found = figures.styles(names)
    assert len({(s["color"], s["marker"], s["linestyle"]) for s in found}) == len(names)


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_to_draw(name: str) -> None:
    with pytest.raises(ValueError, match="give at least one method"):
        FIGURES[name]([])


def test_methods_keep_their_colours_under_their_other_names() -> None:
    def colours(*names: str) -> list[str]:
        return [style["color"] for style in figures.styles(names)]

    assert colours("MCP") == colours("Single network") == colours("SingleNetwork")
    assert colours("Deep Ensembles", "MCP") == colours("Deep Ensemble of 5", "Single network")
    assert len(set(colours("TRADI", "Deep Ensembles", "MC Dropout", "SWAG", "Gaussian perturbation", "MCP"))) == 6
