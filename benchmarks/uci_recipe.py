"""Which recipe for which UCI set? Judged on a part of the training data that nothing else sees; test rows are not read.

Every published training part is cut in three: one to train on, one to stop and to choose the scale on (as in the
benchmark), and one to judge the recipe by. One JSON line a recipe, set and split goes to the output.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import joblib
import torch

from tradi.bench.measure import measure
from tradi.bench.methods import Single, Tradi
from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe
from tradi.bench.training import train
from tradi.bench.uci import UCI


def judged(data: Data, split: int) -> Data:
    """The same without the test rows: a ninth of the training rows take their place."""
    x, y = data.train
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 + split))
    held, kept = order[: len(x) // 9], order[len(x) // 9 :]
    return replace(data, train=(x[kept], y[kept]), test=(x[held], y[held]))


def one(name: str, split: int, recipe: Recipe, root: Path) -> str:
    """Train by a recipe, and judge the network and TRADI."""
    torch.set_num_threads(1)
    variant = {variant.name: variant for variant in UCI.variants}[name]
    data = judged(variant.load(root, split, 0), split)
    torch.manual_seed(split)
    run = train(variant.model(data, None), data, recipe, Tradi().attach())
    line = {"set": name, "split": split, "recipe": repr(recipe), "seconds": run.seconds}
    for label, method in (("single", Single()), ("tradi", Tradi())):
        numbers = measure(method.ensemble([run], data, 0)[0], data).metrics
        line |= {f"{label}/{metric}": numbers[metric] for metric in ("rmse", "nll")}
    return json.dumps(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=[variant.name for variant in UCI.variants])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--decays", type=float, nargs="+", default=[0, 1e-4, 1e-3, 3e-3, 1e-2])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tasks = [
        joblib.delayed(one)(variant.name, split, replace(variant.recipe, weight_decay=decay), args.data)
        for variant in UCI.variants
        if variant.name in args.sets
        for decay in args.decays
        for split in range(args.splits)
    ]
    with args.out.open("a") as out:
        for line in joblib.Parallel(args.jobs, return_as="generator_unordered")(tasks):
            print(line, file=out, flush=True)


if __name__ == "__main__":
    main()
