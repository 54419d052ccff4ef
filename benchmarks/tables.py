"""`TRADIRegressor` against gradient-boosted trees with quantiles, both with defaults, on splits of the UCI sets.

    OMP_NUM_THREADS=1 python benchmarks/tables.py run --data DATA --out results/tables
    python benchmarks/tables.py table --out results/tables

Trees: one `HistGradientBoostingRegressor(loss="quantile")` for each of 19 levels, 0.05 to 0.95, whose predictions are
sorted, so that quantiles do not cross. The continuous ranked probability score (CRPS) is twice the average pinball loss
over these levels, for both. Seconds are those of the processor, training and predicting. One file for every set and
split; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor

from tradi.bench.results import made_by
from tradi.data.uci import NAMES, uci
from tradi.integrations.sklearn import TRADIRegressor
from tradi.progress import track
from tradi.storage.atomic import write_whole

Array = NDArray[np.float64]
Fit = Callable[[Array, Array, Array, int], Array]  # training rows, their target, test rows, seed -> quantiles

LEVELS = np.arange(1, 20) / 20
MANY = 5_000  # training rows: sets with more have fewer splits run
SPLITS = (2, 1)  # of sets with fewer rows, and with more
LEVEL = 0.02  # two scores this close, as a share, count as level


def networks(x: Array, y: Array, test: Array, seed: int) -> Array:
    return TRADIRegressor(random_state=seed).fit(x, y).predict_quantiles(test, LEVELS)


def trees(x: Array, y: Array, test: Array, seed: int) -> Array:
    models = [HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=seed) for q in LEVELS]
    return np.sort(np.stack([model.fit(x, y).predict(test) for model in models], 1), 1)


METHODS: dict[str, Fit] = {"TRADIRegressor": networks, "HistGradientBoostingRegressor": trees}


def crps(quantiles: Array, y: Array) -> float:
    """Twice the pinball loss, averaged over levels and rows."""
    above = y[:, None] - quantiles
    return float(2 * np.maximum(LEVELS * above, (LEVELS - 1) * above).mean())


def measure(fit: Fit, name: str, split: int, root: Path) -> dict[str, float]:
    data = uci(name, split, root)
    (x, y), (test, truth) = ([part.double().numpy() for part in rows] for rows in (data.train, data.test))
    started = time.process_time()
    quantiles = fit(x, y[:, 0], test, split)
    seconds = time.process_time() - started
    middle, truth = quantiles[:, len(LEVELS) // 2], truth[:, 0]
    inside = (quantiles[:, 0] <= truth) & (truth <= quantiles[:, -1])
    return {
        "crps": crps(quantiles, truth) * data.target_std,
        "rmse_of_median": math.sqrt(np.square(middle - truth).mean()) * data.target_std,
        "coverage_90": float(inside.mean()),
        "processor_seconds": seconds,
        "training_rows": len(x),
        "test_rows": len(test),
    }


def splits_of(name: str, root: Path) -> range:
    """The first published splits, as many as are run."""
    return range(SPLITS[len(uci(name, 0, root).train[0]) > MANY])


def run(options: argparse.Namespace) -> None:
    cases = [(name, split) for name in options.sets for split in options.splits or splits_of(name, options.data)]
    for name, split in track(cases, "tables", len(cases)):
        path = options.out / name / f"split-{split}.json"
        if path.exists():
            continue
        found = {method: measure(fit, name, split, options.data) for method, fit in METHODS.items()}
        record = {
            "set": name,
            "split": split,
            "seed": split,
            "methods": found,
            "levels": LEVELS.tolist(),
            "threads": torch.get_num_threads(),
            "load": os.getloadavg()[0],
            "command": shlex.join(["python", "benchmarks/tables.py", *sys.argv[1:]]),
            "made_by": made_by(),
        }
        write_whole(path, json.dumps(record, indent=2) + "\n")
        print(
            name, split, {method: round(row["crps"], 4) for method, row in found.items()}, file=sys.stderr, flush=True
        )


def table(options: argparse.Namespace) -> None:
    """The results as Markdown, from the files alone."""
    print("| set | rows | splits | CRPS, networks | CRPS, trees | ratio | 90% interval covers | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    ratios = []
    for name in NAMES:
        records = [
            json.loads(path.read_text())["methods"] for path in sorted((options.out / name).glob("split-*.json"))
        ]
        if not records:
            continue
        ours, theirs = (_means([record[method] for record in records]) for method in METHODS)
        ratios.append(ours["crps"] / theirs["crps"])
        print(
            f"| {name} | {ours['training_rows']:,.0f} | {len(records)} | {ours['crps']:.4g} | {theirs['crps']:.4g} "
            f"| {ratios[-1]:.2f} | {ours['coverage_90']:.0%}, {theirs['coverage_90']:.0%} "
            f"| {ours['processor_seconds']:.0f}, {theirs['processor_seconds']:.0f} |"
        )
    better, level = sum(r < 1 - LEVEL for r in ratios), sum(abs(r - 1) <= LEVEL for r in ratios)
    print(f"\nBetter on {better}, level (within {LEVEL:.0%}) on {level}, worse on {len(ratios) - better - level}.")


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    running = commands.add_parser("run", help="measure what is missing")
    running.add_argument("--data", type=Path, help="folder of all data sets ($TRADI_DATA)")
    running.add_argument("--sets", nargs="+", choices=NAMES, default=list(NAMES), metavar="SET", help="(all)")
    running.add_argument("--splits", type=int, nargs="+", help="numbers of published splits (the first 2, or 1)")
    running.set_defaults(command=run)
    shown = commands.add_parser("table", help="the results as a table")
    shown.set_defaults(command=table)
    for command in (running, shown):
        command.add_argument("--out", type=Path, default=Path("results/tables"))
    options: Any = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    main()
