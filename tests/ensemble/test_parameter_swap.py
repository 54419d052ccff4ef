"""Running a module with other tensors is what torch.func.functional_call does, without looking them up every time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tradi.ensemble.parameter_swap import ParameterSwap


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Any:
        return self.b(self.a(x).relu())


MODELS = {
    "tied": (Tied, torch.randn(3, 4)),
    "shared module": (lambda: nn.Sequential(*[nn.Linear(4, 4)] * 3), torch.randn(3, 4)),
    "batchnorm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(3, 4)),
    "recurrent": (lambda: nn.LSTM(4, 5, 2), torch.randn(3, 2, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), torch.randn(2, 3, 4)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), torch.randn(3, 4)),
}


def other(model: nn.Module) -> dict[str, Tensor]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: t.detach() + (0.1 if t.is_floating_point() else 1) for name, t in tensors.items()}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_the_outputs_and_what_is_left_behind_are_those_of_functional_call(kind: str, training: bool) -> None:
    torch.manual_seed(0)
    build, x = MODELS[kind]
    model = build().train(training)
    before = {**model.state_dict(keep_vars=True)}
    states = [other(model), other(model)]
    torch.manual_seed(1)
    swapped = ParameterSwap(model).with_state(states[0])
    with swapped:
        found = model(x)
    after = model.state_dict(keep_vars=True)
    assert all(after[name] is tensor for name, tensor in before.items())
    torch.manual_seed(1)
    expected = functional_call(model, states[1], (x,))  # which does not put back what is shared
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(swapped.state, states[1], rtol=0, atol=0)


def test_tensors_are_put_back_whatever_happens() -> None:
    model = nn.Linear(2, 2)
    weight = model.weight
    swap = ParameterSwap(model)
    zeros = torch.zeros(2, 2)
    with swap.with_state({"weight": zeros}):
        torch.testing.assert_close(model(torch.ones(1, 2))[0], model.bias)  # what is not named stays
    assert model.weight is weight
    with pytest.raises(RuntimeError, match="shape"), swap.with_state({"weight": zeros}):
        model(torch.ones(1, 3))
    assert model.weight is weight


def test_a_buffer_that_is_replaced_is_found_in_the_state() -> None:
    class Counting(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self) -> None:
            self.count = self.count + 1

    model = Counting()
    swap = ParameterSwap(model)
    swapped, other = (swap.with_state({"count": torch.tensor(value)}) for value in (5.0, 10.0))
    for step in (1, 2):
        for member, start in ((swapped, 5), (other, 10)):
            with member:
                model()
            assert member.state["count"] == start + step
    assert model.count == 0
