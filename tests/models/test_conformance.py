"""What every network promises, tested for all of them in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tests.training import same, snapshot
from tradi.methods import MCDropout
from tradi.models import PSPNet, ResNet, enet, mlp, wide_resnet

CLASSES = 3
# name -> (a small instance, the shape of an input)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(6, [8], CLASSES, batchnorm=True, dropout=0.1), (6,)),
    "wide_resnet": (lambda: wide_resnet(10, 1, CLASSES), (3, 8, 8)),
    "enet": (lambda: enet(CLASSES), (3, 20, 28)),
    "pspnet": (lambda: PSPNet(ResNet((1, 1, 1, 1), 4), CLASSES), (3, 24, 32)),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, four inputs and a class for everything that it classifies."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    return make(), torch.randn(4, *shape), torch.randint(CLASSES, (4, *shape[1:] * (name in ("enet", "pspnet"))))


def loss(output: Any, y: Tensor) -> Tensor:
    """Cross-entropy, and 0.4 of the auxiliary head's where there is one."""
    if isinstance(output, Tensor):
        return F.cross_entropy(output, y)
    logits, auxiliary = output
    return F.cross_entropy(logits, y) + 0.4 * F.cross_entropy(auxiliary, y)


@every_network
def test_gradients_reach_every_weight(name: str) -> None:
    model, x, y = made(name)
    loss(model(x), y).backward()
    for parameter, weight in model.named_parameters():
        assert weight.grad is not None, parameter
        assert weight.grad.any(), parameter


@every_network
def test_eval_mode_is_deterministic_and_sees_images_one_by_one(name: str) -> None:
    model, x, _ = made(name)
    model, x = model.double(), x.double()
    model(x)  # statistics that are not those of the start
    model.eval()
    before, output = snapshot(model), model(x)
    assert torch.equal(model(x), output)
    torch.testing.assert_close(torch.cat([model(x[:1]), model(x[1:])]), output)
    assert same(before, snapshot(model))


@every_network
def test_tradi_tracks_it_and_members_predict(name: str) -> None:
    model, x, y = made(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    tracker = tradi.TRADI(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    ensemble = tracker.posterior().sample(2).refresh([x])
    outputs = ensemble(x)
    assert outputs.shape == (2, 4, CLASSES, *y.shape[1:])
    assert outputs.isfinite().all()
    assert not torch.equal(outputs[0], outputs[1])
    torch.testing.assert_close(ensemble[1](x), outputs[1])
    prediction = tradi.ClassPrediction(logits=outputs)
    assert prediction.labels.shape == y.shape
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(y.shape))


@every_network
def test_dropout_can_stay_on(name: str) -> None:
    model, x, _ = made(name)
    outputs = MCDropout(model).sample(2)(x)
    assert not torch.equal(outputs[0], outputs[1])
