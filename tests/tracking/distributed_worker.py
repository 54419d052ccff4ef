"""Run by test_distributed.py under torchrun: data-parallel training with a tracker on every rank."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import tradi
from tests.training import network, problem, step


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    for x, y in problem(seed=rank) * 2:  # every rank has data of its own
        step(model, optimizer, x, y)
    posterior = tracker.posterior()
    posterior.save(folder / f"{rank}.safetensors")
    torch.save(posterior.sample(2)(problem()[0][0]), folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
