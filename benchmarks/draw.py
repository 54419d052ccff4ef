"""Draw what `benchmarks/speed.py` measured: python benchmarks/draw.py speed.json speed.md speed.png."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from speed import table

from tradi.report.style import BLUE, DASHES, MARKERS, MATPLOTLIB, styles

# The colour of a method is that of every other figure; averages of weights, which no figure shows, share one.
FAMILIES = {
    "torch-uncertainty's SWAG, every epoch": "SWAG",
    "swa_utils' average, every step": "SWA",
    "swa_utils' average, every epoch": "SWA",
}


def bars(axes: Axes, values: dict[str, float], title: str, unit: str, scale: str, room: float) -> None:
    names = list(reversed(values))
    looks = styles([FAMILIES.get(name, name) for name in names])
    colours = [looks[FAMILIES.get(name, name)].colour for name in names]
    axes.grid(visible=False, axis="y")
    axes.barh(names, [values[name] for name in names], color=colours)
    for place, name in enumerate(names):
        axes.annotate(f" {values[name]:.3g}", (values[name], place), va="center")
    axes.set_xscale(scale)
    axes.set_xlim(right=room * max(values.values()))
    axes.set_title(title, loc="left")
    axes.set_xlabel(unit)


def draw(found: dict[str, Any], path: Path) -> None:
    measured = {name: value for name, value in found["peers"].items() if value}
    shape: dict[str, Any] = {"figsize": (12.5, 3.4), "layout": "constrained", "width_ratios": (1, 1, 1.4)}
    figure, (time, memory, growth) = plt.subplots(1, 3, **shape)
    cost = {name: 100 * value["run_over_training"]["ratio"] for name, value in measured.items()}
    bars(time, cost, "Time added to a training run", "% of training time, MNIST MLP", "log", 8)
    held = {name: value["bytes_per_weight"] for name, value in measured.items()}
    bars(memory, held, "Memory added", "bytes per weight", "linear", 1.2)
    memory.set_yticklabels([])
    rows = found["growth"]["weights"]
    series = ("track_seconds", "tracking, an observed step"), ("sample_seconds", "drawing a member")
    for place, (key, label) in enumerate(series):
        power = found["growth"]["exponents_in_weights"][key]
        points = [row["weights"] for row in rows], [row[key] for row in rows]
        look = {"color": BLUE, "marker": MARKERS[place], "linestyle": DASHES[place]}
        growth.loglog(*points, label=f"{label}: weights$^{{{power:.2f}}}$", **look)
    growth.set_xlabel("number of weights")
    growth.set_ylabel("time, s")
    growth.set_ylim(top=8 * max(row["sample_seconds"] for row in rows))  # room for the legend
    growth.legend(loc="upper left")
    growth.set_title("Time against size", loc="left")
    figure.savefig(path, dpi=130)


def main() -> None:
    mpl.use("Agg")
    mpl.rcParams.update(MATPLOTLIB)
    source, page, picture = map(Path, sys.argv[1:])
    found = json.loads(source.read_text())
    draw(found, picture)
    about = "\n".join(f"- {key}: {value}" for key, value in found["machine"].items())
    goals = (
        "Ratios of medians; in the middle the quartiles of the rounds' ratios. `a run` is what a step costs on "
        "average over a run of the stated length, in which the default filter passes over most steps past the 500th."
    )
    page.write_text(f"# Speed\n\n{about}\n\n{goals}\n\n```\n{table(found)}\n```\n")


if __name__ == "__main__":
    main()
