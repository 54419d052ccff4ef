from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tradi.ensemble.copying import Snapshot, copied, sharing


def network() -> Any:
    """Tied weights, one of them frozen, and a buffer."""
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    model[1].weight = model[0].weight
    model[0].requires_grad_(False)
    return model


def memory(model: nn.Module) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}


def same(one: nn.Module, other: nn.Module) -> set[str]:
    """Names of tensors that two networks share."""
    ours, theirs = memory(one), memory(other)
    return {name for name in ours if ours[name] == theirs[name]}


def test_a_copy_shares_frozen_parameters_and_a_module_of_a_snapshot_all() -> None:
    model = network()
    frozen = {"0.weight", "0.bias", "1.weight"}
    copy_of: Any = copied(model)
    assert same(model, copy_of) == frozen
    assert same(model, copied(model, own=["0.weight"])) == {"0.bias"}
    parameters = frozen | {"1.bias", "2.weight", "2.bias", "3.weight", "3.bias"}
    assert same(model, sharing(model)) == parameters
    assert same(model, sharing(model, own=["2.weight"])) == parameters - {"2.weight"}
    assert copy_of[1].weight is copy_of[0].weight is not model[0].weight
    flags = [p.requires_grad for p in model.parameters()]
    assert [p.requires_grad for p in copy_of.parameters()] == flags
    copy_of.requires_grad_(True)
    copy_of.double()
    assert [p.requires_grad for p in model.parameters()] == flags
    assert model[0].weight.dtype == torch.float32


def test_parameters_whose_changes_nobody_counts_are_copied() -> None:
    class Special(nn.Parameter):
        pass

    model: Any = nn.Linear(2, 2).requires_grad_(False)
    model.weight = Special(torch.ones(2, 2), requires_grad=False)
    assert same(model, copied(model)) == {"bias"}
    with torch.inference_mode():
        inference = nn.Linear(2, 2).requires_grad_(False)
    assert not same(inference, copied(inference))
    Snapshot(inference).check()


def test_a_snapshot_notices_changes_in_place_and_nothing_else() -> None:
    model = network()
    snapshot = Snapshot(copied(model))
    with torch.no_grad():
        model[2].weight.add_(1)  # which was copied
    model.half()
    assert isinstance(snapshot.model, nn.Sequential)
    model = network()
    snapshot, alone = Snapshot(copied(model)), copy.deepcopy(Snapshot(copied(model)))
    with torch.no_grad():
        model[1].weight.add_(1)
    with pytest.raises(RuntimeError, match=r"0\.weight was changed in place"):
        snapshot.check()
    with pytest.raises(RuntimeError, match=r"0\.weight was changed in place"):
        copy.deepcopy(snapshot)
    alone.check()


def test_a_copy_of_a_compiled_model_runs_uncompiled_and_with_its_own_weights() -> None:
    part: Any = torch.compile(nn.Linear(2, 2), backend="eager")
    model: Any = nn.Sequential(part, nn.ReLU(), nn.Linear(2, 2))
    model.forward = torch.compile(model.forward, backend="eager")  # as Lightning does it
    x, called = torch.randn(3, 2), []
    expected = model(x)
    copy_of: Any = copied(copied(model))
    copy_of[0]._orig_mod.register_forward_hook(lambda *_: called.append(True))
    with torch.no_grad():
        copy_of[2].bias.add_(1)
    assert torch.allclose(copy_of(x), expected + 1)
    assert called
    assert torch.equal(model(x), expected)
