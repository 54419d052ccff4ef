"""Ranks that fit on data of their own are noticed by the last of them; nobody waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed

import tradi
from tests.training import network, problem, train
from tradi.posterior import ranks


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rank that this process claims to be, one after another."""
    now, store = [0], distributed.HashStore()  # type: ignore[attr-defined]
    monkeypatch.setattr(ranks, "default_store", lambda: store)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: now[0])
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    return now


def tracked() -> tradi.Posterior:
    model: Any = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 20)
    return tracker.posterior()


def on(rank: list[int], number: int) -> None:
    rank[0] = number
    ranks._fitted.clear()  # each is a process of its own


def test_ranks_with_the_same_data_agree(rank: list[int]) -> None:
    posterior = tracked()
    for number in (0, 1):
        on(rank, number)
        posterior.fit(problem(), problem(seed=1))


def test_ranks_with_shards_of_their_own_are_an_error_that_names_the_remedies(rank: list[int]) -> None:
    posterior = tracked()
    on(rank, 0)
    posterior.fit(problem(), problem(seed=1))
    on(rank, 1)
    with pytest.raises(RuntimeError, match=r"on rank 1 .* than on rank 0 .*all of the data.*save\(path\)"):
        posterior.fit(problem(seed=2), problem(seed=3))
    on(rank, 0)
    posterior.condition(problem())
    on(rank, 1)
    with pytest.raises(RuntimeError, match="condition gave another posterior"):
        posterior.condition(problem(seed=2))


def test_one_rank_may_fit_alone_and_wait_for_nobody(rank: list[int]) -> None:
    posterior = tracked()
    for seed in (5, 7):
        posterior.fit(problem(seed=seed), problem(seed=seed + 1))


def test_without_a_process_group_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "default_store", lambda: pytest.fail("there is no store"))
    tracked().fit(problem(), problem(seed=1))
