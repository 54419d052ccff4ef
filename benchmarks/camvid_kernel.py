"""Which memory and which kernel suit ENet on CamVid? Judged by NLL on validation images, at the scale chosen on them.

python benchmarks/camvid_kernel.py --data DATA --runs results --seed 0

Run it before `tradi bench camvid-ood --out results`, which takes over the training that it keeps; the other way round
it trains anew in place of the one that is kept, since it needs more trackers. Only pixels of classes that were learnt
count: no test image, and no car, pedestrian or cyclist.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import torch

from tradi.bench.camvid import CAMVID_OOD, METHODS, tracked
from tradi.bench.cases import Case
from tradi.bench.methods import Tradi
from tradi.bench.training import train

MEMORIES, LENGTHS = (1 / 10, 1 / 30), (0.3, 1.0, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    variant = CAMVID_OOD.variants[0]
    scenes = variant.load(options.data, 0, options.seed)
    methods = {"the default": METHODS["TRADI"]} | {
        f"last {memory:.3g} of the run, kernel of {length:g} spreads": tracked(memory, length)
        for memory, length in product(MEMORIES, LENGTHS)
    }
    attach = {name: one for m in (*METHODS.values(), *methods.values()) for name, one in m.attach().items()}
    torch.manual_seed(options.seed)
    model = variant.model(scenes, None)
    kept = Case(CAMVID_OOD.name, variant, METHODS, options.seed, 0).checkpoint(options.runs, None, 0)
    run = train(model, scenes, variant.recipe, attach, kept)
    for name, method in methods.items():
        assert isinstance(method, Tradi)
        posterior = method.posterior(run).choose_scale(
            scenes.validation_batches, refresh=scenes.refresh_batches, members=method.searched, seed=options.seed
        )
        print(f"seed {options.seed}, {name}: {posterior.scale_search}", flush=True)


if __name__ == "__main__":
    main()
