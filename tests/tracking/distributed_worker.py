"""Run by test_distributed.py under torchrun: data-parallel training with a tracker on every rank."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import tradi
from tests.training import network, problem, step
from tradi._torch import tree_leaves
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
    numbers(rank)
    one_posterior(tracker, folder / "fitted.safetensors")
    several_states(tracker)
    distributed.destroy_process_group()


def parts(posterior: tradi.Posterior, rank: int) -> None:
    """Each process loads a part of the data, and all come to what the whole of it gives, BatchNorm included."""
    train, validation = problem(80), problem(48, seed=9)
    own = [tradi.gathered(data[rank::2]) for data in (train, validation)]  # of three batches and two
    assert all(map(torch.equal, (x for x, _ in own[0]), (x for x, _ in train)))
    whole, ours = (posterior.fit(*data, temperature=True) for data in ((train, validation), own))
    assert ours.scale == whole.scale
    assert ours.likelihood == whole.likelihood  # the temperature
    x = train[0][0]
    torch.testing.assert_close(ours.sample(3)(x), whole.sample(3)(x))
    on_all(answers(ours))
    refreshed = posterior.sample(2).refresh(own[0])(x)
    torch.testing.assert_close(refreshed, posterior.sample(2).refresh(train)(x))
    on_all({"refreshed": refreshed})


def numbers(rank: int) -> None:
    """The same for numbers: the noise, the shares of scales, the prior precisions."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    train, validation = ([(x, x[:, :1].sin()) for x, _ in problem(rows, seed=2)] for rows in (80, 48))
    for x, y in train[rank::2][:2]:  # as many steps on both
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    ours = tracker.posterior().fit(*(tradi.gathered(data[rank::2]) for data in (train, validation)), passes=10)
    whole = tracker.posterior().fit(train, validation, passes=10)
    on_all(answers(ours))
    x = train[0][0]
    torch.testing.assert_close(ours.sample(3)(x), whole.sample(3)(x))
    assert ours.likelihood.variance == pytest.approx(whole.likelihood.variance)  # type: ignore[union-attr]


def answers(posterior: tradi.Posterior) -> dict[str, Any]:
    """What was fitted: the conditioning, the activations, the scale, the likelihood with its noise or temperature."""
    tensors, about = posterior.packed()
    assert posterior.scale_search is not None
    about["scale_search"] = replace(posterior.scale_search, seconds=0.0).packed()
    return {"about": about} | {kind: tensors[kind] for kind in ("mean", "variance", "moments", "conditioning")}


def on_all(found: dict[str, Any]) -> None:
    """Both processes have found the same, bit for bit."""
    every: list[Any] = [None, None]
    distributed.all_gather_object(every, found)
    for one, other in zip(*map(tree_leaves, every), strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


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
