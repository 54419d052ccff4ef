"""Draw what `benchmarks/speed.py` measured: python benchmarks/draw.py results/speed/speed.json results/speed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from speed import table

COLOURS = {"TRADI": "#b5442e"}  # and grey for the others


def bars(axes: Axes, values: dict[str, float], title: str, unit: str, scale: str, room: float) -> None:
    names = list(reversed(values))
    axes.barh(names, [values[name] for name in names], color=[COLOURS.get(name, "#8a8a8a") for name in names])
    for place, name in enumerate(names):
        axes.annotate(f" {values[name]:.3g}", (values[name], place), va="center")
    axes.set_xscale(scale)
    axes.set_xlim(right=room * max(values.values()))
    axes.set_title(title, loc="left")
    axes.set_xlabel(unit)


def draw(found: dict[str, Any], path: Path) -> None:
    measured = {name: value for name, value in found["peers"].items() if value}
    figure, (time, memory, growth) = plt.subplots(1, 3, figsize=(15, 3.6), layout="constrained")
    cost = {name: 100 * value["run_over_training"]["ratio"] for name, value in measured.items()}
    bars(time, cost, "What uncertainty adds to a training run", "% of training time, MNIST MLP", "log", 8)
    held = {name: value["bytes_per_weight"] for name, value in measured.items()}
    bars(memory, held, "and to its memory", "bytes a weight", "linear", 1.2)
    memory.set_yticklabels([])
    rows = found["growth"]["weights"]
    for key, label in (("track_seconds", "tracking, a step looked at"), ("sample_seconds", "drawing a member")):
        power = found["growth"]["exponents_in_weights"][key]
        points = [row["weights"] for row in rows], [row[key] for row in rows]
        growth.loglog(*points, "o-", label=f"{label}: weights$^{{{power:.2f}}}$")
    growth.set_title("Time against the number of weights", loc="left")
    growth.set_xlabel("weights")
    growth.set_ylabel("seconds")
    growth.legend(loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    mpl.use("Agg")
    source, folder = map(Path, sys.argv[1:])
    found = json.loads(source.read_text())
    draw(found, folder / "speed.png")
    about = "\n".join(f"- {key}: {value}" for key, value in found["machine"].items())
    goals = (
        "Ratios of medians; in the middle the quartiles of the rounds' ratios. `a run` is what a step costs on "
        "average over a run of the stated length, in which the default filter passes over most steps past the 500th."
    )
    (folder / "speed.md").write_text(f"# Speed\n\n{about}\n\n{goals}\n\n```\n{table(found)}\n```\n")


if __name__ == "__main__":
    main()
