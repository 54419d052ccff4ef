"""What needs no other processes; the rest is in tests/tracking/sharded_fitting.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tradi.posterior.head import layer_matrix
from tradi.posterior.sharded_runner import in_batches, layer_with


def test_few_batches_become_a_turn_for_every_process() -> None:
    data = [(torch.arange(5.0), torch.arange(5)), (torch.arange(5.0, 7.0), torch.arange(5, 7))]
    assert in_batches(data, 2) is data
    found = in_batches(data, 4)
    assert len(found) >= 4
    assert torch.equal(torch.cat([x for x, _ in found]), torch.arange(7.0))
    assert all(torch.equal(x.long(), y) for x, y in found)
    assert len(in_batches(data, 7)) == 7
    with pytest.raises(ValueError, match="8 processes need a sample each, and there are 7"):
        in_batches(data, 8)


class Scaled(nn.Linear):
    """Somebody's own kind of layer."""


@pytest.mark.parametrize(
    "layer", [nn.Linear(4, 3), nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.ConvTranspose1d(4, 3, 2), Scaled(4, 3, False)]
)
def test_a_layer_with_whole_weights_has_the_form_of_the_sharded_one(layer: Any) -> None:
    whole = {name: torch.randn_like(own) for name, own in layer.named_parameters()}
    found = layer_with(layer, whole)
    assert {name: own.shape for name, own in found.named_parameters()} == {n: own.shape for n, own in whole.items()}
    assert all(torch.equal(own, whole[name]) for name, own in found.named_parameters())
    if getattr(layer, "groups", 1) == 1:
        layer.load_state_dict(whole)
        assert torch.equal(layer_matrix(found), layer_matrix(layer))
