"""From the curves of result files to figures of the page: all methods, all seeds and splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from tradi import metrics
from tradi.report import svg
from tradi.report.html import text
from tradi.report.style import DASHES, PALETTE, Style, is_first, styles

Curve = dict[str, Any]
Curves = Mapping[str, Sequence[Curve]]  # by method: a curve for every run
WIDTH, HEIGHT = 300, 265
WIDE = 460
SMALL = 190, 140
BAND = 380, 250
IDEAL = "Green: two standard deviations of the ideal prediction, the exact GP's where the truth is drawn from a GP."
BANDS = (
    "Line: mean. Bands: one and two standard deviations; dotted: the epistemic part, the members' disagreement. "
    "Dashed: the true function."
)
THINNED = 34  # points of a curve, at the most
DRAWN = 60  # points of a band, at the most: the page is to stay small


class Methods:
    """The methods of a page, each with its number and style.

    Args:
        names: of all methods, in the order of the legend.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.styles = styles(names)
        self.index = {name: place for place, name in enumerate(self.styles)}

    def draw(self, name: str, inner: Callable[[Style], str]) -> str:
        """A group of a drawing that the legend turns on and off."""
        return svg.series(self.index[name], self.styles[name], name, inner(self.styles[name]))

    def legend(self, names: Sequence[str]) -> str:
        """A switch for each method: it shows and hides what is drawn for it, as far as the section goes."""
        # Where only one or two of these are well known, all are shown.
        shown = [name for name in names if is_first(name)]
        if len(shown) < 3:
            shown = list(names)
        buttons = "".join(
            f"<button type=button{'' if name in shown else ' class=rare'} aria-pressed={str(name in shown).lower()} "
            f"data-m={self.index[name]}>"
            f"{svg.sample(self.styles[name])}{text(name)}</button>"
            for name in names
        )
        rare = len(names) - len(shown)
        more = f"<button type=button class=all data-more aria-expanded=false>{rare} more</button>" if rare else ""
        return (
            "<div class=key role=group aria-label='Methods in the figures of this section'>"
            "<button type=button class=all data-all>all</button>"
            f"<button type=button class=all data-usual>usual</button>{buttons}{more}</div>\n"
        )


def figure(caption: str, inner: str, kind: str = "chart") -> str:
    """A drawing below its caption."""
    return f"<figure class={kind!r}><figcaption>{text(caption)}</figcaption>{inner}</figure>\n"


def accuracy_confidence(curves: Curves, methods: Methods) -> str:
    """Accuracy above each threshold: the mean over runs, and a band from the lowest run to the highest."""
    lines: dict[str, tuple[list[float], list[float], list[float], list[float]]] = {}
    for name, each in curves.items():
        step = math.ceil(len(each[0]["threshold"]) / THINNED)
        accuracy = torch.tensor([one["accuracy"] for one in each], dtype=torch.float64)[:, ::step]
        count = torch.tensor([one["count"] for one in each], dtype=torch.float64)[:, ::step]
        pooled = (accuracy.nan_to_num() * count).sum(0) / count.sum(0)
        low, high = accuracy.nan_to_num(math.inf).amin(0), accuracy.nan_to_num(-math.inf).amax(0)
        known = pooled.isfinite()
        parts = (torch.as_tensor(each[0]["threshold"])[::step], pooled, low, high)
        lines[name] = tuple(part[known].tolist() for part in parts)  # type: ignore[assignment]
    lowest = min((value for line in lines.values() for value in line[2]), default=0.0)
    plot = svg.Plot(42, 8, WIDTH - 52, HEIGHT - 48, (0, 1), (math.floor(10 * lowest) / 10, 1))
    drawn = [plot.axes("Confidence threshold", "Accuracy above it, OOD as errors")]

    def draw(line: tuple[list[float], list[float], list[float], list[float]]) -> Callable[[Style], str]:
        xs, pooled, low, high = line
        points = list(zip(xs, pooled, strict=True))
        spread = svg.fill(plot.band(xs, low, high, 1), "spread")
        return lambda s: spread + svg.stroke(plot.line(points), s) + _marks(plot, points, s, 5)

    drawn += [methods.draw(name, draw(line)) for name, line in lines.items()]
    return svg.drawing(WIDTH, HEIGHT, f"Accuracy against confidence threshold of {', '.join(curves)}", drawn)


def calibration(curves: Curves, methods: Methods) -> str:
    """Accuracy against mean confidence: all runs together, each run as a thin line, and how many samples a bin has."""
    points = {}
    for name, each in curves.items():
        found = [metrics.Calibration(**tensors(curve)) for curve in each]
        whole = reduce(add, found)
        points[name] = [*((one.confidence, one.accuracy) for one in (whole, *found))], whole.count / len(each)
    edges = next(iter(curves.values()))[0]["edges"]
    return _reliability(points, edges, "Accuracy", methods)


def ap_calibration(curves: Curves, methods: Methods) -> str:
    """Precision averaged over the predicted classes, at the middle of each bin; runs and bins as in `calibration`."""
    points = {}
    for name, each in curves.items():
        found = [metrics.APCalibration(**tensors(curve)) for curve in each]
        whole = reduce(add, found)
        middle = (whole.edges[:-1] + whole.edges[1:]) / 2
        lines = [(middle, one.precision) for one in (whole, *found)]
        points[name] = lines, whole.count.sum(0) / len(each)
    edges = next(iter(curves.values()))[0]["edges"]
    return _reliability(points, edges, "Precision, mean of classes", methods)


Lines = list[tuple[Tensor, Tensor]]  # of all runs together, then of each


def _reliability(
    points: Mapping[str, tuple[Lines, Tensor]], edges: Sequence[float], ylabel: str, methods: Methods
) -> str:
    height = HEIGHT - 118
    plot = svg.Plot(50, 8, WIDTH - 60, height, (0, 1), (0, 1))
    decades = math.ceil(math.log10(max(1.0, *(count.max().item() for _, count in points.values())) * 1.01))
    below = svg.Plot(50, height + 22, WIDTH - 60, 56, (0, 1), (0, max(1, decades)))
    parts = [
        plot.axes("", ylabel, xticks=[]),
        below.axes(
            "Confidence",
            "Samples",
            yticks=sorted({0.0, float(decades // 2), float(decades)}),
            name=lambda power: svg.short(10**power),
        ),
        svg.stroke(plot.line([(0, 0), (1, 1)]), kind="guide"),
    ]

    def draw(lines: Lines, count: Tensor) -> Callable[[Style], str]:
        paths = [[(x, y) for x, y in zip(*map(Tensor.tolist, line), strict=True) if y == y] for line in lines]
        powers = [math.log10(max(1.0, number)) for number in count.tolist()]
        bars = svg.stroke(below.line(below.steps(edges, powers), 1), kind="bins")
        thin = "".join(svg.stroke(plot.line(path, 1), kind="run") for path in paths[1:]) if len(paths) > 2 else ""
        return lambda s: thin + bars + svg.stroke(plot.line(paths[0]), s) + _marks(plot, paths[0], s, 1)

    parts += [methods.draw(name, draw(*found)) for name, found in points.items()]
    return svg.drawing(WIDTH, HEIGHT, f"{ylabel} against confidence of {', '.join(points)}", parts)


def histograms(curves: Curves, methods: Methods, xlabel: str) -> str:
    """Shares of test data (grey) and of OOD data in bins of a score, one panel per method, all runs together."""
    found = {name: [metrics.ConfidenceHistogram(**tensors(one)) for one in each] for name, each in curves.items()}
    whole = {name: reduce(add, each) for name, each in found.items()}
    shares = {name: [_shares(part) for part in (one.inside, one.ood)] for name, one in whole.items()}
    # On a root's scale what is spread over many bins can be seen beside what is in one.
    shares = {name: [[math.sqrt(share) for share in part] for part in parts] for name, parts in shares.items()}
    top = 1.05 * max(max(max(part) for part in parts) for parts in shares.values())
    panels = []
    for name, (inside, ood) in shares.items():
        edges = whole[name].edges.tolist()
        wide = edges[-1] - edges[-2] > 1.5 * (edges[1] - edges[0])  # such bins have one width on a root's scale
        scale = math.sqrt if wide else svg.linear
        plot = svg.Plot(30, 6, SMALL[0] - 38, SMALL[1] - 40, (0, edges[-1]), (0, top), scale)
        yticks = [math.sqrt(share) for share in (0, 0.1, 0.5, 1) if math.sqrt(share) <= top]
        xticks = [tick for tick in (0, 0.1, 0.5, 1, 2) if tick <= edges[-1]] if wide else None
        drawn = [
            plot.axes(xlabel, yticks=yticks, xticks=xticks, name=lambda root: f"{root**2:.0%}"),
            svg.fill(plot.line(plot.steps(edges, inside)) + "z", "inside"),
            svg.fill(plot.line(plot.steps(edges, ood)) + "z", "ood"),
        ]
        inner = svg.drawing(*SMALL, f"{xlabel} of test and OOD data: {name}", drawn)
        panels.append(_panel(name, inner, methods))
    return f"<div class=panels>{''.join(panels)}</div>"


def bands(curves: Curves, methods: Methods, size: tuple[float, float] = SMALL) -> str:
    """A one-dimensional regression of the first run: mean, one and two deviations, the truth and the points."""
    first = next(iter(curves.values()))[0]
    seen = [*first["truth"], *first["train_y"]]
    margin = 0.75 * (max(seen) - min(seen))
    ends = min(seen) - margin, max(seen) + margin
    panels = []
    for name, (curve, *_) in curves.items():
        some = slice(None, None, math.ceil(len(curve["x"]) / DRAWN))
        x = curve["x"][some]
        mean, sd, epistemic = (torch.tensor(curve[part])[some] for part in ("mean", "sd", "epistemic_sd"))
        plot = svg.Plot(34, 6, size[0] - 40, size[1] - 40, (x[0], x[-1]), ends)
        widths = ((2 * sd, "sd2"), (sd, "sd1"), (epistemic, "epistemic"))
        points = [plot.place(*point) for point in zip(curve["train_x"], curve["train_y"], strict=True)]
        drawn = [
            plot.axes("x", "y", yticks=svg.ticks(ends, 6)),
            *(svg.fill(plot.band(x, (mean - w).tolist(), (mean + w).tolist()), kind) for w, kind in widths),
            svg.stroke(plot.line(list(zip(x, mean.tolist(), strict=True)))),
            svg.stroke(plot.line(list(zip(x, curve["truth"][some], strict=True))), kind="truth"),
            *(svg.stroke(plot.line(edge[some]), kind="ideal") for edge in _ideal(curve)),
            f"<g class=points>{svg.markers(Style(0, 0, 0), points)}</g>",
        ]
        about = f"Regression by {name}: mean, bands of one and two deviations, the true function and the points"
        panels.append(_panel(name, svg.drawing(*size, about, drawn), methods))
    large = " large" if size != SMALL else ""
    note = BANDS + (f" {IDEAL}" if "ideal_variance" in first else "")
    return f"<div class='panels{large}'>{''.join(panels)}</div><p class=note>{note}</p>"


def _ideal(curve: Curve) -> list[svg.Points]:
    """The edges of the band, two standard deviations wide, that an ideal prediction has, where it is known."""
    if "ideal_variance" not in curve:
        return []
    around = [2 * math.sqrt(variance) for variance in curve["ideal_variance"]]
    middle = list(zip(curve["x"], curve["ideal_mean"], around, strict=True))
    return [[(x, mean + sign * width) for x, mean, width in middle] for sign in (-1, 1)]


def ablation(panels: Mapping[str, Mapping[str, Mapping[str, float]]], default: str) -> str:
    """One row per setting, one panel per problem, one kind of dot per measure; a line marks the default.

    Args:
        panels: problem, measure, setting: the value.
        default: the setting that the others are compared with.
    """
    drawn = []
    for problem, by_measure in panels.items():
        settings = list(dict.fromkeys(setting for values in by_measure.values() for setting in values))
        everything = [value for values in by_measure.values() for value in values.values()]
        margin = 0.05 * (max(everything) - min(everything)) or 1.0
        height, left = 16 * len(settings), 14 + 6.3 * max(map(len, settings))
        ends = min(everything) - margin, max(everything) + margin
        plot = svg.Plot(left, 24, WIDE - left - 12, height, ends, (0, len(settings)))
        rows = {setting: len(settings) - place - 0.5 for place, setting in enumerate(settings)}
        parts = [plot.axes(yticks=[])]
        for setting, row in rows.items():
            _, y = plot.place(ends[0], row)
            parts.append(svg.stroke(plot.line([(ends[0], row), (ends[1], row)]), kind="grid"))
            parts.append(svg.words(left - 6, y + 3.5, setting, "end"))
        for place, (measure, values) in enumerate(by_measure.items()):
            style = Style(place % len(PALETTE), place % len(DASHES), place)
            key = svg.markers(style, [(6 + 110 * place, 10)]) + svg.words(14 + 110 * place, 14, measure)
            dots = [plot.place(value, rows[setting]) for setting, value in values.items()]
            line = [(values[default], height) for height in (0.0, len(settings))] if default in values else []
            guide = svg.stroke(plot.line(line), kind="guide")
            parts.append(f"<g class='s c{style.slot}'>{key}{guide}{svg.markers(style, dots)}</g>")
        about = f"{', '.join(by_measure)} of each setting on {problem}"
        drawn.append(figure(problem, svg.drawing(WIDE, height + 48, about, parts)))
    return f"<div class='charts large'>{''.join(drawn)}</div>"


def tensors(fields: Curve) -> dict[str, Any]:
    """The fields of a curve as `tradi.metrics` has them."""
    return {name: torch.tensor(value) if isinstance(value, list) else value for name, value in fields.items()}


def _panel(name: str, inner: str, methods: Methods) -> str:
    style = methods.styles[name]
    return (
        f"<div class='mini c{style.slot}' data-m={methods.index[name]}>"
        f"<p>{svg.sample(style)}{text(name)}</p>{inner}</div>"
    )


def _marks(plot: svg.Plot, points: svg.Points, style: Style, every: int) -> str:
    return svg.markers(style, [plot.place(x, plot.inside(y)) for x, y in points[style.marker % every :: every]])


def _shares(count: Tensor) -> list[float]:
    """Shares of the total; a kind that does not occur has none."""
    shares: list[float] = (count.double() / count.sum().clamp_min(1)).tolist()
    return shares
