"""Models that change while they are trained."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import tradi
from tests.tracking.test_tracker import check_moments, sgd
from tests.training import network, problem, snapshot, train
from tradi.tracking import tracker as tracking


def test_a_layer_that_is_replaced_starts_afresh() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 5)
    model[4] = nn.Linear(8, 3)
    optimizer.add_param_group({"params": model[4].parameters()})
    seen: list[Tensor] = []
    train(model, optimizer, 5, lambda _: seen.append(model[4].weight.detach().clone()))
    check_moments(tracker.posterior(), "4.weight", seen)
    assert len(tracker._blocks) == 4  # and what was tracked of the old one takes no memory


def test_layers_that_are_gone_are_not_in_the_posterior() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3)
    model[4] = nn.Linear(8, 5)
    posterior = tracker.posterior()
    assert list(posterior.mean) == ["0.weight", "0.bias"]
    assert posterior.sample(2)(problem()[0][0]).shape == (2, 16, 5)
    steps = {name: saved["step"] for name, saved in tracker.state_dict()["weights"].items()}
    assert steps == {"0.weight": 3, "0.bias": 3, "4.weight": 0, "4.bias": 0}
    model[4] = nn.Identity()  # and nothing in its place
    assert list(tracker.posterior().mean) == ["0.weight", "0.bias"]
    assert list(tracker.state_dict()["selected"]) == ["0.weight", "0.bias"]


def test_a_layer_that_is_put_in_front_of_others_changes_their_names_and_nothing_else() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    last, seen = model[4], list[Tensor]()
    train(model, optimizer, 3, lambda _: seen.append(last.weight.detach().clone()))
    new = nn.Linear(8, 8)  # its weights have the names that the last layer's had
    model.insert(4, new)
    optimizer.add_param_group({"params": new.parameters()})
    fresh = list[Tensor]()

    def note(_: int) -> None:
        seen.append(last.weight.detach().clone())
        fresh.append(new.weight.detach().clone())

    train(model, optimizer, 3, note)
    posterior = tracker.posterior()
    assert sorted(posterior.mean) == ["0.bias", "0.weight", "4.bias", "4.weight", "5.bias", "5.weight"]
    check_moments(posterior, "5.weight", seen)
    check_moments(posterior, "4.weight", fresh)


class Wrapped(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x)
        return y


def test_a_layer_that_is_wrapped_is_tracked_under_its_new_name() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    seen: list[Tensor] = []
    train(model, optimizer, 3, lambda _: seen.append(model[4].weight.detach().clone()))
    model[4] = Wrapped(model[4])
    train(model, optimizer, 3, lambda _: seen.append(model[4].base.weight.detach().clone()))
    check_moments(tracker.posterior(), "4.base.weight", seen)
    again = network()
    again[4] = Wrapped(again[4])
    tradi.TRADI(again, sgd(again)).load_state_dict(tracker.state_dict())


def test_activation_checkpointing_around_the_whole_model_changes_nothing() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    wrapped = checkpoint_wrapper(copy.deepcopy(plain))
    trackers = [tradi.TRADI(model, sgd(model)) for model in (plain, wrapped)]
    for model, tracker in zip((plain, wrapped), trackers, strict=True):
        train(model, next(iter(tracker._taken)), 4)
    assert list(trackers[0].selected) == list(trackers[1].selected)
    ours, expected = (one.posterior().condition(problem()).rescaled(3.0) for one in trackers[::-1])
    x = problem()[0][0]
    assert torch.equal(ours.sample(3)(x), expected.sample(3)(x))
    assert expected.sample(3)(x).std(0).max() > 1e-4


def test_layers_that_change_places_keep_what_was_tracked_of_them() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 5)
    before = tracker.posterior().mean
    model[0], model[1] = model[1], model[0]
    after = tracker.posterior().mean
    assert torch.equal(before["0.weight"], after["1.weight"])
    assert torch.equal(before["1.weight"], after["0.weight"])


def test_weights_that_were_tied_and_are_no_longer_are_tracked_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3)
    first = nn.Parameter(snapshot(model)["0.weight"])
    model[0].weight = first
    optimizer.add_param_group({"params": [first]})
    train(model, optimizer, 3)
    steps = {name: block["step"] for name, block in tracker.state_dict()["weights"].items()}
    assert steps["0.weight"] == 3
    assert steps["1.weight"] == 6


def test_a_joint_covariance_starts_afresh_where_one_of_its_weights_is_replaced() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer, covariance=tradi.FullCovariance())
    train(model, optimizer, 3)
    model[4].weight = nn.Parameter(model[4].weight.detach().clone())
    optimizer.add_param_group({"params": [model[4].weight]})
    train(model, optimizer, 3)
    assert list(tracker.posterior().mean) == ["0.weight", "0.bias", "4.weight", "4.bias"]


def test_an_optimizer_of_two_models_costs_no_search_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = network(), network(1)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)
    tracker = tradi.TRADI(model, optimizer)
    both = nn.Sequential(model, nn.Linear(3, 4), other)
    train(both, optimizer, 1)
    searches: list[nn.Module] = []
    monkeypatch.setattr(tracking, "named_weights", searches.append)
    train(both, optimizer, 3)
    assert not searches
    assert tracker.steps == 4


def test_a_layer_that_was_away_is_tracked_again() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3)
    layer, model[4] = model[4], nn.Linear(8, 3)
    assert len(tracker.tracked) == 4  # which looks at the model as it is
    model[4] = layer
    train(model, optimizer, 5)
    assert {block["step"] for block in tracker.state_dict()["weights"].values()} == {8, 5}
