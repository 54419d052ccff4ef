from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tradi.models import mlp, wide_resnet
from tradi.posterior.features import penultimate


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (mlp(4, [8, 5], 3, batchnorm=True, dropout=0.5), torch.randn(7, 4)),
        (wide_resnet(10, 1, 3, 0.3), torch.randn(7, 3, 32, 32)),
    ],
)
def test_the_last_layer_makes_logits_of_the_features(model: nn.Module, x: Tensor) -> None:
    model.train()
    (*_, head) = (module for module in model.modules() if isinstance(module, nn.Linear))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = penultimate(model, x)
    assert model.training
    assert not found.requires_grad
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    model.eval()
    torch.testing.assert_close(head(found), model(x))
    torch.testing.assert_close(penultimate(model, [(x[:4], torch.zeros(4)), x[4:]]), found)


def test_pixels_have_a_row_each() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)), torch.randn(5, 3, 6, 6)
    assert penultimate(model, x).shape == (5 * 36, 4)


def test_a_layer_can_be_named_where_something_follows_it() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.LogSoftmax(1))
    x = torch.randn(7, 4)
    with pytest.raises(ValueError, match="no linear layer gives"):
        penultimate(model, x)
    torch.testing.assert_close(penultimate(model, x, layer="2"), model[:2](x).detach())
