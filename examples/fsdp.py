"""FSDP2 on a toy problem: torchrun --nproc-per-node=2 examples/fsdp.py [folder], with any number of processes.

Called again, by as many processes or others, it resumes from the checkpoint in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import tradi

EPOCHS, CLASSES = 4, 3


def network() -> nn.Sequential:
    """On a real job this is too large for one device."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, CLASSES))


def points(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three clouds in the plane, and which of them a point is from."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    angle = 2 * torch.pi / CLASSES * y
    x = torch.stack([angle.cos(), angle.sin()], 1) + 0.3 * torch.randn(samples, 2, generator=generator)
    return x, y


def loader(samples: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of 32."""
    x, y = points(samples, seed)
    return list(zip(x.split(32), y.split(32), strict=True))


def train(folder: Path) -> None:
    """Every process takes part: train from where the last checkpoint is, and leave a checkpoint and a posterior."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    mesh = init_device_mesh("cpu", (size,))  # "cuda" on a machine with devices
    model = network()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)  # after fully_shard, like the optimizer

    resumed = (folder / "checkpoint" / ".metadata").exists()
    if resumed:
        state = everything(model, optimizer, tracker)
        checkpoint.load(state, checkpoint_id=folder / "checkpoint")
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        tracker.load_state_dict(state["tradi"])  # last: torch takes an empty step to make room for an optimizer's state

    for _ in range(EPOCHS):
        for x, y in loader(512, seed=1):
            optimizer.zero_grad()
            F.cross_entropy(model(x.chunk(size)[rank]), y.chunk(size)[rank]).backward()
            optimizer.step()
    checkpoint.save(everything(model, optimizer, tracker), checkpoint_id=folder / "checkpoint")

    posterior = tracker.posterior()  # on every process; each holds its shards of it
    own = [tradi.gathered(loader(samples, seed)[rank::size]) for samples, seed in ((512, 1), (256, 2))]
    posterior = posterior.fit(*own)  # on what each process loads: one answer, that of all the data
    posterior.save(folder / "posterior.safetensors")  # one file
    outputs = posterior.sample(5, seed=0)(points(8, seed=3)[0])  # members run sharded: (5, 8, classes)
    if rank == 0:
        print(f"{'resumed' if resumed else 'started'}, {tracker.steps} steps, outputs {tuple(outputs.shape)}")


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, tracker: tradi.TRADI) -> dict[str, Any]:
    """What a checkpoint holds."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "tradi": tracker.state_dict()}


def predict(folder: Path) -> None:
    """One process, such as a server's."""
    posterior = tradi.load_posterior(folder / "posterior.safetensors", network())
    ensemble = posterior.sample(20, seed=0)
    print("where it was trained:", ensemble.predict(points(256, seed=3)[0]))
    print("between the clouds:  ", ensemble.predict(0.1 * torch.randn(256, 2)))


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else "fsdp-example")
    where.mkdir(exist_ok=True)
    distributed.init_process_group("gloo")  # "nccl" on devices
    train(where)
    if distributed.get_rank() == 0:
        predict(where)
    distributed.destroy_process_group()
