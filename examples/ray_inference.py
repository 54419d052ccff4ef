"""One ensemble over many workers, by Ray Data: python examples/ray_inference.py, also on a cluster (RAY_ADDRESS).

Every worker loads the members once and predicts block after block. What comes out is, bit for bit, what one process
predicts of the same blocks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

import tradi

Columns = dict[str, NDArray[Any]]
BLOCK, WORKERS = 256, 2


def network() -> nn.Module:
    """The code of the network, which every worker has."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))


def points(samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three clouds in the plane, and which of them a point is from."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (samples,), generator=generator)
    angle = 2 * torch.pi / 3 * y
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.3 * torch.randn(samples, 2, generator=generator), y


def save_ensemble(path: Path) -> None:
    """Train, and save the members: a worker needs no training data."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    batches = list(zip(*(part.split(64) for part in points(1024, seed=1)), strict=True))
    for x, y in batches * 5:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    validation = points(512, seed=2)
    tracker.posterior().fit(batches, [validation]).sample(20, seed=0).save(path)


class Predictor:
    """What a worker does: made once, called with every block."""

    def __init__(self, path: Path) -> None:
        torch.set_num_threads(1)
        self.ensemble = tradi.load_ensemble(path, network())

    def __call__(self, block: Columns) -> Columns:
        prediction = self.ensemble.predict(torch.tensor(block["data"]))
        fields = ("labels", "confidence", "mutual_information")
        return {name: getattr(prediction, name).numpy() for name in fields}


def main(folder: Path) -> None:
    """Predict by many workers and by one process, and compare."""
    path = folder / "ensemble.safetensors"  # of several machines, on a file system that they share
    save_ensemble(path)
    x = torch.cat([points(3 * BLOCK, seed=3)[0], 0.1 * torch.randn(BLOCK, 2)])
    blocks = [block.numpy() for block in x.split(BLOCK)]

    ray.data.DataContext.get_current().execution_options.preserve_order = True
    data = ray.data.from_numpy(blocks)  # ray.data.read_parquet(...) on a real job
    predicted = data.map_batches(
        Predictor,
        fn_constructor_args=(path,),
        batch_size=None,  # a block as it is
        compute=ray.data.ActorPoolStrategy(size=WORKERS),
    )
    found = list(predicted.iter_batches(batch_size=None))  # .write_parquet(...) on a real job

    one = Predictor(path)
    alone = [one({"data": block}) for block in blocks]
    same = all(np.array_equal(a[name], b[name]) for a, b in zip(alone, found, strict=True) for name in a)
    print(f"{len(x)} points by {WORKERS} workers, identical to one process: {same}")
    *seen, between = (block["confidence"].mean() for block in found)
    print(f"mean confidence where it was trained {np.mean(seen):.3f}, between the clouds {between:.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
