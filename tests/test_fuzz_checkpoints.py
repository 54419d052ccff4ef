"""Damaged and forged checkpoints: resumed from, or refused by a ValueError that leaves all as it was."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import tradi
from tests.bench.test_training import METHODS, RECIPE, run
from tests.test_fuzz import ASKED, FUZZ, NUMBERS, ODD, TYPES, places_in
from tests.test_fuzz_readers import damage
from tests.training import network, train
from tradi.bench.training import _packed, _unpacked
from tradi.methods import SWAG
from tradi.tracking.tracker import Tracker

CHECKPOINTS = settings(FUZZ, max_examples=ASKED or 100, phases=[Phase.generate])
TRACKERS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Tracker]] = {
    "TRADI": tradi.TRADI,
    "full covariance": lambda m, o: tradi.TRADI(m, o, covariance=tradi.FullCovariance()),
    "SWAG": lambda m, o: SWAG(m, o, every=2, rank=3),
}


def tracker(name: str, steps: int) -> Tracker:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    made = TRACKERS[name](model, optimizer)
    train(model, optimizer, steps)
    return made


def forge(data: st.DataObject, state: Any) -> None:
    """Change one thing in nested dictionaries and lists of tensors and numbers."""
    places = places_in(state)
    number = st.integers(0, len(places) - 1)  # what is drawn is printed, and these hold many numbers
    inside, key = places[data.draw(number)]
    value, how = inside[key], data.draw(st.sampled_from(["odd", "delete", "swap", "tensor", "tensor", "add"]))
    if how == "delete":
        del inside[key]
    elif how == "add" and isinstance(inside, dict):
        inside[data.draw(st.sampled_from(["surplus", 7]))] = value
    elif how == "swap":
        other, place = places[data.draw(number)]
        inside[key] = copy.deepcopy(other[place])
    elif how == "tensor" and isinstance(value, Tensor):
        inside[key] = forged(data, value)
    else:
        inside[key] = data.draw(ODD)


def forged(data: st.DataObject, value: Tensor) -> Tensor:
    how = data.draw(st.sampled_from(["type", "row", "none", "more", "number"]))
    if how == "type":
        return value.to(data.draw(TYPES))
    if how == "number":
        return torch.full_like(value, data.draw(NUMBERS)) if value.is_floating_point() else -value
    row = value.reshape(-1)
    return {"row": row, "none": row[:0], "more": value[None]}[how]


def identical(one: Any, other: Any) -> bool:
    leaves, others = tree_leaves(one), tree_leaves(other)
    if len(leaves) != len(others):
        return False
    pairs = zip(leaves, others, strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_forged_state_of_a_tracker_is_loaded_or_changes_nothing(name: str) -> None:
    state, own = tracker(name, 9).state_dict(), tracker(name, 4)
    before = own.state_dict()

    @CHECKPOINTS
    @given(st.data())
    def check(data: st.DataObject) -> None:
        theirs = copy.deepcopy(state)
        for _ in range(data.draw(st.integers(1, 2))):
            forge(data, theirs["weights"] if data.draw(st.booleans()) else theirs)  # of which weights are the most
        said = None
        try:
            own.load_state_dict(theirs)
        except ValueError as error:
            said = str(error)
        now = own.state_dict()
        if said is not None:
            assert said
            assert identical(now, before)
        own.load_state_dict(before)
        assert identical(own.state_dict(), before)

    own.load_state_dict(state)
    assert identical(own.state_dict(), state)
    own.load_state_dict(before)
    check()


@pytest.mark.parametrize("kind", ["damaged", "forged"])
def test_a_checkpoint_of_a_run_is_resumed_from_or_named(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    whole = run(path)
    content = path.read_bytes()
    kept = _unpacked(content)
    assert kept["epochs"] == RECIPE.epochs

    @settings(CHECKPOINTS, max_examples=ASKED or 40)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        if kind == "damaged":
            path.write_bytes(data.draw(damage(content)))
        else:
            theirs = copy.deepcopy(kept)
            forge(data, theirs)
            path.write_bytes(_packed(theirs))
        made, said = None, f"{path} cannot be resumed from (and why): delete it to train again"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = run(path)
        except ValueError as error:
            said = str(error)
        except RuntimeError as error:  # forged weights with a hash of their own: the tracker does not know them
            if kind == "damaged" or "the model's weights are not those" not in str(error):
                raise
        assert re.match(rf"{re.escape(str(path))} cannot be resumed from \(.*\): delete it to train again", said, re.S)
        assert made is None or kind == "forged" or path.read_bytes() == content

    assert identical(run(path).model.state_dict(), whole.model.state_dict())
    assert {method.tracker_name for method in METHODS} == whole.posteriors.keys()
    check()
