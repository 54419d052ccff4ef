"""Drawing in SVG: a plot with axes, and lines, bands, steps and markers in it. Colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tradi.report.html import text
from tradi.report.style import MARKERS, Style

Points = Sequence[tuple[float, float]]
Range = tuple[float, float]
# A marker's path around where the pen is, in the order of `MARKERS`; a dot is the round end of a line without length.
OUTLINES = (
    "h0",
    "m-3-3h6v6h-6z",
    "m0-4l3 7h-6z",
    "m0-4l4 4-4 4-4-4z",
    "m0 4l3-7h-6z",
    "m-4 0h8m-4-4v8",
    "m-3-3l6 6m0-6l-6 6",
)
DASHARRAYS = ("", "6 3", "7 3 1.5 3", "1.5 2.5")


def number(value: float) -> str:
    """A coordinate to a tenth, as short as it can be."""
    return f"{value:.1f}".removesuffix(".0").replace("-0.", "-.").removeprefix("0") or "0"


def ticks(ends: Range, about: int = 5) -> list[float]:
    """Round numbers from one end to the other, about so many."""
    low, high = ends
    if not high > low:
        return [low]
    rough = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (unit, 2 * unit, 5 * unit, 10 * unit) if step >= rough)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A large number in little room: 10k, 10M."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def linear(value: float) -> float:
    """The scale of most axes."""
    return value


@dataclass(frozen=True)
class Plot:
    """A plot in a rectangle of a drawing.

    Args:
        left, top, width, height: of the rectangle.
        x, y: what its ends stand for.
        scale: of x, such as `math.sqrt`.
    """

    left: float
    top: float
    width: float
    height: float
    x: Range
    y: Range
    scale: Callable[[float], float] = linear

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is drawn."""
        low, high = map(self.scale, self.x)
        across = (self.scale(x) - low) / (high - low)
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + self.width * across, self.top + self.height * (1 - up)

    def inside(self, y: float) -> float:
        """The nearest value that the plot has room for, and a little beyond."""
        margin = 0.02 * (self.y[1] - self.y[0])
        return min(max(y, self.y[0] - margin), self.y[1] + margin)

    def line(self, points: Points, grain: float = 0.1) -> str:
        """The data of a path, to multiples of the grain; it is broken where a value is not a number."""
        parts: list[str] = []
        last: tuple[int, int] | None = None
        for x, y in points:
            if math.isnan(y):
                last = None
                continue
            across, up = self.place(x, self.inside(y))
            place = round(across / grain), round(up / grain)
            if last is None:
                parts.append(f"M{number(place[0] * grain)} {number(place[1] * grain)}")
            else:
                right, down = (number((one - other) * grain) for one, other in zip(place, last, strict=True))
                parts.append(f"h{right}" if down == "0" else f"v{down}" if right == "0" else f"l{right} {down}")
            last = place
        return "".join(parts).replace(" -", "-")

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], grain: float = 0.1) -> str:
        """The data of a closed path between two curves, where both are numbers."""
        known = [place for place in range(len(xs)) if not math.isnan(low[place] + high[place])]
        there = [(xs[place], low[place]) for place in known]
        back = [(xs[place], high[place]) for place in reversed(known)]
        return self.line([*there, *back], grain) + "z" if known else ""

    def steps(self, edges: Sequence[float], heights: Sequence[float]) -> list[tuple[float, float]]:
        """A histogram's outline, from the bottom to the bottom."""
        outline = [(edges[0], self.y[0])]
        for place, height in enumerate(heights):
            outline += [(edges[place], height), (edges[place + 1], height)]
        return [*outline, (edges[-1], self.y[0])]

    def axes(
        self,
        xlabel: str = "",
        ylabel: str = "",
        xticks: Sequence[float] | None = None,
        yticks: Sequence[float] | None = None,
        name: Callable[[float], str] = "{:g}".format,
    ) -> str:
        """Grid, ticks and labels; no ticks are drawn for an empty list."""
        bottom, right = self.top + self.height, self.left + self.width
        parts = []
        for value in ticks(self.y) if yticks is None else yticks:
            _, y = self.place(self.x[0], value)
            parts.append(f"<path class=grid d='M{number(self.left)} {number(y)}H{number(right)}'/>")
            parts.append(_text(self.left - 6, y + 3.5, name(round(value, 10)), "end"))
        for value in ticks(self.x) if xticks is None else xticks:
            x, _ = self.place(value, self.y[0])
            parts.append(f"<path class=grid d='M{number(x)} {number(self.top)}V{number(bottom)}'/>")
            parts.append(_text(x, bottom + 14, f"{round(value, 10):g}", "middle"))
        if xlabel:
            parts.append(_text(self.left + self.width / 2, bottom + 29, xlabel, "middle", "label"))
        if ylabel:
            x, y = 11, self.top + self.height / 2
            parts.append(
                f"<text class=label text-anchor=middle transform='translate({x} {number(y)})rotate(-90)'>"
                f"{text(ylabel)}</text>"
            )
        return "".join(parts)


def _text(x: float, y: float, words: str, anchor: str, kind: str = "tick") -> str:
    shown = text(words).replace("-", "−") if kind == "tick" else text(words)
    return f"<text class={kind} x={number(x)} y={number(y)} text-anchor={anchor}>{shown}</text>"


def words(x: float, y: float, what: str, anchor: str = "start") -> str:
    """Text at a place of the drawing."""
    return _text(x, y, what, anchor, "label")


def drawing(width: float, height: float, about: str, parts: Iterable[str]) -> str:
    """The whole: what it shows is said to those who cannot see it."""
    return (
        f"<svg class=drawing viewBox='0 0 {number(width)} {number(height)}' role=img aria-label='{text(about)}'>"
        f"{''.join(parts)}</svg>"
    )


def series(index: int, style: Style, name: str, inner: str) -> str:
    """What is drawn for one method, in its colour; its name is shown by the pointer."""
    return f"<g class='s c{style.slot}' data-m={index}><title>{text(name)}</title>{inner}</g>"


def stroke(data: str, style: Style | None = None, kind: str = "line") -> str:
    """A path along a line, dashed as its method is."""
    dashes = DASHARRAYS[style.dash] if style else ""
    return f"<path class={kind}{f' stroke-dasharray={dashes!r}' if dashes else ''} d='{data}'/>" if data else ""


def fill(data: str, kind: str) -> str:
    """A path around an area."""
    return f"<path class={kind} d='{data}'/>" if data else ""


def markers(style: Style, places: Points) -> str:
    """A method's marker at each of these places of the drawing."""
    starts = [f"M{number(x)} {number(y)}" for x, y in places]
    if not starts:
        return ""
    outline = OUTLINES[style.marker]
    kind = {"o": "dot", "P": "cross", "X": "cross"}.get(MARKERS[style.marker], "mark")
    return f"<path class={kind} d='{outline.join(starts)}{outline}'/>"


def sample(style: Style) -> str:
    """A method's line and marker, for a legend."""
    return (
        f"<svg class=sample viewBox='0 0 26 12' aria-hidden=true><g class='s c{style.slot}'>"
        f"{stroke('M1 6H25', style)}{markers(style, [(13, 6)])}</g></svg>"
    )
