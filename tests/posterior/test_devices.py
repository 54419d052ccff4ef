"""Noise is made where the weights are: no device waits for the main processor, and nothing is copied to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tradi.methods.swag import LowRank
from tradi.posterior.activations import Activations
from tradi.posterior.covariance import Covariance, Independent
from tradi.posterior.distribution import WeightDistribution
from tradi.posterior.layers import Layer, Moments
from tradi.posterior.randomness import BLOCK, Stream
from tradi.posterior.rows import Form

META = torch.device("meta")  # of which nothing can be read: a copy to the CPU, or `item()`, is an error by itself


class Only(TorchDispatchMode):
    """Notices any operation that reads or makes a tensor elsewhere than on one device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device, self.operations = device, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.operations += 1
        for leaf in tree_leaves((args, kwargs, result)):
            assert not isinstance(leaf, torch.Tensor) or leaf.device == self.device, f"{function} on {leaf.device}"
        return result


def layer() -> Layer:
    linear = nn.Linear(300, 301, device=META)

    def like(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device=META)

    (weight, bias), names = (linear.weight.detach(), linear.bias.detach()), ("l.weight", "l.bias")
    root = like(1, 301, 301)
    moments = Moments("l.weight", "l.bias", Form.of(linear), root, {Activations().floor: root})
    both = dict(zip(names, (weight, bias), strict=True))
    deviations = {name: like(3, *value.shape) for name, value in both.items()}
    return Layer("l", both, both, both, deviations=deviations, moments=moments, reach=0.1)


def test_the_mode_notices_what_is_made_on_the_main_processor() -> None:
    with Only(META):
        torch.ones(3, device=META).mul_(2)
        with pytest.raises(AssertionError, match="on cpu"):
            torch.ones(3)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_random_numbers_are_made_on_the_device_that_wants_them(kind: str) -> None:
    with Only(META) as seen:
        found = getattr(Stream(0, 0, "w"), kind)(10, 3 * BLOCK, META)
    assert found.shape == (3 * BLOCK - 10,)
    assert seen.operations > 10


@pytest.mark.parametrize("covariance", [Independent(), Activations(), LowRank()], ids=repr)
def test_a_member_is_drawn_on_the_device_of_the_weights(covariance: Covariance) -> None:
    weights = WeightDistribution([layer()], covariance)
    with Only(META):
        drawn = weights.drawn(3, 1, 0.5)
    assert {name: value.shape for name, value in drawn.items()} == {"l.weight": (301, 300), "l.bias": (301,)}
