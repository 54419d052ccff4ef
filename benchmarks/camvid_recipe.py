"""Which optimizer trains ENet at the paper's rate of 5e-4? Judged by mIoU on CamVid's validation images.

python benchmarks/camvid_recipe.py --data DATA --epochs 5
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tradi import metrics
from tradi.bench.camvid import RECIPE, load, network
from tradi.bench.recipe import Recipe

RECIPES = {
    "Adam, weight decay 2e-4": Recipe("adam", RECIPE.lr, RECIPE.weight_decay, batch=RECIPE.batch),
    "SGD, momentum 0.9, weight decay 2e-4": Recipe("sgd", RECIPE.lr, RECIPE.weight_decay, 0.9, batch=RECIPE.batch),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    scenes = load((240, 180), options.data, 0, 0)
    for name, recipe in RECIPES.items():
        torch.manual_seed(0)
        model = network(scenes, None)
        optimizer = recipe.build(model)
        for epoch in range(1, options.epochs + 1):
            model.train()
            for x, y in scenes.training(recipe.batch):
                optimizer.zero_grad()
                scenes.loss(model(x), y).backward()
                optimizer.step()
            found = metrics.Accumulator(metrics.confusion)
            with torch.inference_mode():
                for x, y in scenes.validation_batches:
                    found.update(model.eval()(x).argmax(1), y, scenes.classes)
            print(f"{name}: epoch {epoch}, validation mIoU {found.compute().mean_iou:.3f}", flush=True)


if __name__ == "__main__":
    main()
