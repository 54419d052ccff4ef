"""What all trackers share in a checkpoint is checked before anything is taken over."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch

from tests.training import network, train
from tradi.methods import SWAG, TRADI

NAN = torch.full((2,), torch.nan)


@pytest.mark.parametrize("attach", [TRADI, partial(SWAG, every=2)], ids=["TRADI", "SWAG"])
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("steps",), -1, "-1 is no count of steps"),
        (("skipped",), "1", "skipped is '1', not of type int"),
        (("taken", "0"), None, "None is no count of steps"),
        (("options", "every"), NAN, "the checkpoint was written with"),
        (("selected", "0.weight"), None, "damaged: shapes are"),
        (("selected", "0.weight"), torch.tensor(4), "damaged: shapes are"),
        (("fingerprint", "drift"), 10**400, "damaged: fingerprint is"),
        (("fingerprint", "drift"), float("nan"), "damaged: fingerprint is"),
        (("fingerprint", "values"), [], "damaged: fingerprint is"),
        (("fingerprint", "values", "0.weight"), torch.zeros(3), "damaged: fingerprint is"),
        (("fingerprint", "values", "other"), torch.zeros(3), "damaged: fingerprint is"),
        (("best",), [], "this is not the state_dict"),
    ],
)
def test_a_damaged_checkpoint_is_an_error_and_changes_nothing(
    attach: Any, place: tuple[str, ...], value: Any, message: str
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = attach(model, optimizer)
    train(model, optimizer, 6)
    before = tracker.state_dict()
    damaged = copy.deepcopy(before)
    inside: Any = damaged
    for name in place[:-1]:
        inside = inside[name]
    inside[place[-1]] = value
    with pytest.raises(ValueError, match=message):
        tracker.load_state_dict(damaged)
    assert repr(tracker.state_dict()) == repr(before)
    tracker.posterior()
