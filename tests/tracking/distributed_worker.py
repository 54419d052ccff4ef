"""Run by test_distributed.py under torchrun: data-parallel training with a tracker on every rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import tradi
from tests.training import network, problem, step
from tradi.methods import SWAG


def main(folder: Path) -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker, swag = tradi.TRADI(model, optimizer), SWAG(model, optimizer, every=2)
    for x, y in problem(seed=rank) * 2:  # every rank has data of its own
        step(model, optimizer, x, y)
    with torch.no_grad():
        model.eval()(problem()[0][0])  # which gives all processes the running statistics of the first
    tracker.assert_synchronised()
    swag.assert_synchronised()
    posterior = tracker.posterior()
    posterior.save(folder / f"{rank}.safetensors")
    torch.save(posterior.sample(2)(problem()[0][0]), folder / f"{rank}.pt")
    posterior.fit(problem(), problem(seed=9))  # the same data on all ranks
    try:
        posterior.fit(problem(seed=rank), problem(seed=10 + rank))
    except RuntimeError as error:
        (folder / f"{rank}.error").write_text(str(error))
    distributed.barrier()
    parts(posterior, rank)
    one_posterior(tracker, folder / "fitted.safetensors")
    several_states(tracker)
    distributed.destroy_process_group()


def parts(posterior: tradi.Posterior, rank: int) -> None:
    """Each process loads a part of the data, and all come to what the whole of it gives, BatchNorm included."""
    train, validation = problem(80), problem(48, seed=9)
    own = [tradi.gathered(data[rank::2]) for data in (train, validation)]  # of three batches and two
    assert all(map(torch.equal, (x for x, _ in own[0]), (x for x, _ in train)))
    whole, ours = posterior.fit(train, validation), posterior.fit(*own)
    assert ours.scale == whole.scale
    x = train[0][0]
    torch.testing.assert_close(ours.sample(3)(x), whole.sample(3)(x))
    refreshed = posterior.sample(2).refresh(own[0])(x)
    torch.testing.assert_close(refreshed, posterior.sample(2).refresh(train)(x))
    outputs = [torch.empty_like(refreshed) for _ in range(2)]
    distributed.all_gather(outputs, refreshed)
    assert torch.equal(*outputs)


def one_posterior(tracker: tradi.TRADI, path: Path) -> None:
    """As docs/distributed.md says: one process fits it, and all load it."""
    if distributed.get_rank() == 0:
        tracker.posterior().fit(problem(), problem(seed=5), passes=2).save(path)
    distributed.barrier()
    posterior = tradi.load_posterior(path, tracker.model)
    scales = [torch.empty((), dtype=torch.float64) for _ in range(2)]
    distributed.all_gather(scales, torch.tensor(posterior.scale, dtype=torch.float64))
    assert scales[0] == scales[1]
    refreshed = posterior.sample(2, refresh=problem())(problem()[0][0])
    outputs = [torch.empty_like(refreshed) for _ in range(2)]
    distributed.all_gather(outputs, refreshed)
    assert torch.equal(*outputs)


def several_states(tracker: tradi.TRADI) -> None:
    """What is tracked on one rank alone is noticed on all: a weight, then a step."""
    if distributed.get_rank() == 1:
        tracker._blocks[tracker.selected["4.weight"]].state.second[0] += 1e-6
    with pytest.raises(RuntimeError, match=r"processes 0 and 1 have tracked another state of 4\.weight:"):
        tracker.assert_synchronised()
    tracker.steps += distributed.get_rank()
    with pytest.raises(RuntimeError, match="another state of the counts of steps"):
        tracker.assert_synchronised()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
