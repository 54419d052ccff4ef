from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import Tensor, nn

import tradi
from tests.posterior.test_conditioning import TwoHeads, data, joined, moved
from tradi.ensemble.linearised import Linearised
from tradi.likelihoods import Gaussian, SquaredError

X = joined(data())[0]
PLAIN = SquaredError()


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def linearised(network: nn.Module, likelihood: Any = PLAIN, by: float = 0.0) -> Any:
    names = [name for name, _ in network.named_parameters()]
    found: Any = Linearised(copy.deepcopy(network), names, likelihood)
    for number, (name, value) in enumerate(moved(network, by).items()):
        found.get_buffer(f"step_{number}").copy_(value - dict(network.named_parameters())[name])
    return found


def test_without_a_step_it_is_the_network() -> None:
    for network, task in ((mlp(), SquaredError()), (TwoHeads(), Gaussian())):
        found, expected = linearised(network, task)(X), network(X)
        torch.testing.assert_close(found, expected)


def test_a_small_step_is_the_networks_own_to_first_order() -> None:
    network = mlp()
    for by, error in ((1e-3, 3e-5), (1e-4, 3e-7)):
        stepped = copy.deepcopy(network)
        stepped.load_state_dict(moved(network, by))
        torch.testing.assert_close(linearised(network, by=by)(X), stepped(X), rtol=0, atol=error)


def test_of_a_network_that_is_linear_in_its_weights_any_step_is_exact() -> None:
    network = nn.Sequential(nn.Tanh(), nn.Linear(4, 2)).double()
    stepped = copy.deepcopy(network)
    stepped.load_state_dict(moved(network, 3.0))
    torch.testing.assert_close(linearised(network, by=3.0)(X), stepped(X))


def test_the_variance_is_the_networks_own() -> None:
    network = TwoHeads()
    mean, variance = linearised(network, Gaussian(), by=0.5)(X)
    torch.testing.assert_close(variance, network(X)[1])
    assert (mean - network(X)[0]).abs().max() > 0.1


def fitted() -> tradi.Posterior:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    rows = [(x.float(), y.float()) for x, y in data()]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    for x, y in rows * 10:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return tracker.posterior().fit(rows, [(x.float(), y.float()) for x, y in data(seed=1)], passes=15)


def test_members_are_modules_that_can_be_copied_and_kept() -> None:
    posterior = fitted()
    assert "all weights conditioned on 80 training rows" in repr(posterior)
    ensemble, x = posterior.sample(3, seed=1), X.float()
    outputs = ensemble(x)
    assert outputs.std(0).min() > 0
    for i, member in enumerate(ensemble):
        file = io.BytesIO()
        torch.save(member, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
        for one in (member, copy.deepcopy(member), again):
            assert isinstance(one, Linearised)
            torch.testing.assert_close(one(x), outputs[i])
    assert torch.equal(copy.deepcopy(ensemble)(x), outputs)


def test_gradients_reach_the_inputs_of_members() -> None:
    x = X.float().requires_grad_()
    member = fitted().sample(1)[0]
    (gradient,) = torch.autograd.grad(member(x).sum(), x)

    def slope(at: Tensor) -> Tensor:
        step = torch.zeros(4)
        step[0] = 1e-2
        return ((member(at + step) - member(at - step)) / 2e-2)[:, 0]

    torch.testing.assert_close(gradient[:, 0], slope(x.detach()).detach(), rtol=1e-2, atol=1e-2)
