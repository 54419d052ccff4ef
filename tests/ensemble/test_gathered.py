"""Batches of all processes; with several of them, see tests/tracking/distributed_worker.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import distributed

import tradi


def test_one_process_has_its_own_batches_again_and_again() -> None:
    data = [torch.zeros(2), torch.ones(1)]
    loader = tradi.gathered(data)
    assert [*loader] == [*loader] == data


def test_what_can_be_iterated_once_alone_is_an_error() -> None:
    with pytest.raises(TypeError, match="one-pass iterator"):
        tradi.gathered(iter([torch.zeros(2)]))


def test_the_batches_of_all_take_turns_until_the_last_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    other = iter([[10], [11], []])

    def all_gather_object(every: list[Any], own: list[Any]) -> None:
        every[:] = own, next(other)

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather_object", all_gather_object)
    assert [*tradi.gathered([0])] == [0, 10, 11]
