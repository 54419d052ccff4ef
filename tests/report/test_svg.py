from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from tests.report.made import CURVES, band, histogram
from tradi.report import charts, svg
from tradi.report.charts import Methods
from tradi.report.style import MARKERS, Style

METHODS = Methods(["Single network", "TRADI", "<b>new & odd</b>"])
NAMESPACE = "{http://www.w3.org/2000/svg}"


def vertices(path: str) -> list[tuple[float, float]]:
    """Where a path of M, l, h and v goes: what `Plot.line` writes, read independently."""
    x = y = 0.0
    found = []
    for command, arguments in re.findall(r"([MlhvHV])([^A-Za-z]*)", path):
        numbers = [float(number) for number in re.findall(r"-?\d*\.?\d+", arguments)]
        if command == "M":
            x, y = numbers
        elif command == "l":
            x, y = x + numbers[0], y + numbers[1]
        else:
            x, y = (x + numbers[0], y) if command == "h" else (x, y + numbers[0])
        found.append((x, y))
    return found


@pytest.mark.parametrize("value", [0.0, -0.04, 0.5, -0.5, 10.0, 123.44, -7.25, 100.0, 1000.0])
def test_numbers_are_short_and_right(value: float) -> None:
    written = svg.number(value)
    assert float(written) == pytest.approx(value, abs=0.0501)
    assert len(written) <= len(f"{value:.1f}")


@pytest.mark.parametrize("ends", [(0, 1), (-5.3, 4.2), (0.028, 0.031), (50, 100), (0, 120000)])
def test_ticks_are_round_and_inside(ends: tuple[float, float]) -> None:
    found = svg.ticks(ends)
    assert 3 <= len(found) <= 8
    assert ends[0] - 1e-9 <= found[0]
    assert found[-1] <= ends[1] + 1e-9
    steps = {round(b - a, 9) for a, b in pairwise(found)}
    assert len(steps) == 1
    assert svg.ticks((3, 3)) == [3]


def test_a_line_goes_where_the_numbers_are_and_is_broken_where_there_are_none() -> None:
    plot = svg.Plot(10, 20, 100, 50, (0, 1), (0, 2))
    line = plot.line([(0, 0), (0.123, 0.5), (0.5, math.nan), (0.75, 2), (1, 2), (1, 1)])
    assert line.count("M") == 2
    expected = [(10, 70), (22.3, 57.5), (85, 20), (110, 20), (110, 45)]
    for found, point in zip(vertices(line), expected, strict=True):
        assert found == pytest.approx(point, abs=0.05)
    assert svg.stroke(plot.line([(0, math.nan)])) == ""


def test_what_is_far_outside_ends_a_little_beyond_the_plot() -> None:
    plot = svg.Plot(0, 0, 100, 100, (0, 1), (0, 1))
    assert vertices(plot.line([(0, 1e9), (1, -1e9)])) == [(0, -2), (100, 102)]


def test_a_scale_bends_the_axis() -> None:
    plot = svg.Plot(0, 0, 100, 100, (0, 4), (0, 1), math.sqrt)
    assert plot.place(1, 0) == (50, 100)


@pytest.mark.parametrize("marker", range(len(MARKERS)))
def test_every_marker_is_drawn_at_every_place(marker: int) -> None:
    drawn = svg.markers(Style(0, 0, marker), [(1, 2), (30, 40)])
    assert "M1 2" in drawn
    assert "M30 40" in drawn
    assert svg.markers(Style(0, 0, marker), []) == ""


def test_large_numbers_are_short() -> None:
    assert [svg.short(value) for value in (1, 100, 10_000, 10_000_000)] == ["1", "100", "10k", "10M"]


DRAWN = {
    "accuracy": charts.accuracy_confidence,
    "calibration": charts.calibration,
    "precision": charts.ap_calibration,
    "histogram": lambda curves, methods: charts.histograms(curves, methods, "Confidence"),
    "bands": charts.bands,
}
CURVE = {
    "accuracy": CURVES["notMNIST/accuracy_confidence"],
    "calibration": CURVES["calibration"],
    "precision": CURVES["notMNIST/ap_calibration"],
    "histogram": histogram,
    "bands": lambda shift: band(1.0 + shift),
}


@pytest.mark.parametrize("kind", DRAWN)
def test_a_figure_shows_every_method_once_and_says_what_it_is(kind: str) -> None:
    curves = {name: [CURVE[kind](0), CURVE[kind](1)] for name in METHODS.index}
    drawn = DRAWN[kind](curves, METHODS)
    drawings = re.findall(r"<svg class=drawing.*?</svg>", drawn, re.DOTALL)
    assert drawings
    for one in drawings:
        assert "role=img aria-label='" in one
        assert "nan" not in re.sub(r"aria-label='[^']*'", "", one)
        assert "<b>" not in one
        quoted = re.sub(r"=([^'\s>]+?)(?=[\s>]|/>)", r"='\1'", re.sub(r"(aria-label='[^']*')", "", one))
        ElementTree.fromstring(quoted)
    for index in METHODS.index.values():
        assert len(re.findall(rf"data-m={index}[> ]", drawn)) == 1


def test_calibration_has_all_runs_together_each_run_and_its_bins() -> None:
    two = {"edges": [0, 0.5, 1], "count": [5, 10], "correct": [1, 6], "confidence_sum": [2.0, 8.0]}
    more = two | {"correct": [3, 8]}
    drawn = charts.calibration({"TRADI": [two, more]}, METHODS)
    assert drawn.count("class=run") == 2
    assert drawn.count("class=bins") == 1
    (whole,) = re.findall(r"<path class=line d='([^']*)'", drawn)
    assert len(vertices(whole)) == 2
    (_, low), (_, high) = vertices(whole)
    plot_height = charts.HEIGHT - 118
    assert 8 + plot_height * (1 - 4 / 10) == pytest.approx(low, abs=0.1)
    assert 8 + plot_height * (1 - 14 / 20) == pytest.approx(high, abs=0.1)


def test_accuracy_is_the_mean_over_samples_of_all_runs() -> None:
    first = {"threshold": [0.0, 0.5], "accuracy": [0.5, 1.0], "count": [100, 10]}
    second = {"threshold": [0.0, 0.5], "accuracy": [0.7, 0.2], "count": [100, 30]}
    drawn = charts.accuracy_confidence({"TRADI": [first, second]}, METHODS)
    (line,) = re.findall(r"<path class=line d='([^']*)'", drawn)
    (_, start), (_, end) = vertices(line)
    low, height = 0.2, charts.HEIGHT - 48
    assert start == pytest.approx(8 + height * (1 - (0.6 - low) / (1 - low)), abs=0.1)
    assert end == pytest.approx(8 + height * (1 - (0.4 - low) / (1 - low)), abs=0.1)


def test_the_ablation_has_a_row_for_every_setting_and_a_line_at_the_default() -> None:
    panels = {
        "adam": {"AUC": {"TRADI": 98.0, "single": 95.0, "<kernel>": 97.0}, "MI": {"TRADI": 99.0, "<kernel>": 98.5}},
        "wine": {"NLL": {"other": 0.95, "single": 1.1}},
    }
    first, second = charts.ablation(panels, "TRADI").split("<figure")[1:]
    assert [first.count(f">{name}<") for name in ("TRADI", "single", "&lt;kernel&gt;", "AUC", "MI")] == [1] * 5
    assert first.count("class=guide") == 2
    assert second.count("class=guide") == 0, "the default is not there"


def test_a_band_stands_beside_the_ideal_one_where_it_is_known() -> None:
    curve = band(1.0)
    known = curve | {"ideal_mean": curve["truth"], "ideal_variance": [0.25] * len(curve["x"])}
    assert "class=ideal" not in charts.bands({"TRADI": [curve]}, METHODS)
    drawn = charts.bands({"TRADI": [known]}, METHODS, charts.BAND)
    low, high = (vertices(path) for path in re.findall(r"<path class=ideal d='([^']*)'", drawn))
    truth = vertices(re.findall(r"<path class=truth d='([^']*)'", drawn)[0])
    for below, middle, above in zip(low, truth, high, strict=True):
        assert below[1] - middle[1] == pytest.approx(middle[1] - above[1], abs=0.3)
        assert below[1] > middle[1]


def test_the_legend_presses_what_is_well_known() -> None:
    methods = Methods(["TRADI", "SWAG", "MC Dropout", "a", "b"])
    pressed = dict(re.findall(r"aria-pressed=(\w+) data-m=\d+>.*?</svg>([^<]+)", methods.legend(list(methods.index))))
    legend = methods.legend(list(methods.index))
    found = re.findall(r"aria-pressed=(true|false) data-m=(\d)", legend)
    assert [state for state, _ in found] == ["true", "true", "true", "false", "false"]
    assert pressed
    assert methods.legend(["a", "b"]).count("aria-pressed=true") == 2, "all where few are known"
