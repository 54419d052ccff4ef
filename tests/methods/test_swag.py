from __future__ import annotations

import copy
import importlib
import importlib.util
import io
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import tradi
from tests.training import network, same, train
from tradi.methods import SWAG


def run(steps: int = 12, **options: Any) -> tuple[Any, SWAG, list[Tensor], AveragedModel]:
    """A run with the first layer's collected weights and torch's own average of the whole network."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = SWAG(model, optimizer, **options)
    averaged = AveragedModel(model)
    seen: list[Tensor] = []

    def after(done: int) -> None:
        if done > swag.start and (done - swag.start) % swag.every == 0:
            averaged.update_parameters(model)
            seen.append(model[0].weight.detach().double().clone())

    train(model, optimizer, steps, after)
    return model, swag, seen, averaged


@pytest.mark.parametrize(("every", "start"), [(1, 0), (3, 0), (2, 5)])
def test_the_mean_is_that_of_swa_utils(every: int, start: int) -> None:
    _, swag, _, averaged = run(every=every, start=start)
    oracle = dict(averaged.module.named_parameters())
    posterior = swag.posterior()
    assert posterior.mean.keys() == oracle.keys()  # normalisation layers' weights too
    for name, mean in posterior.mean.items():
        torch.testing.assert_close(mean, oracle[name].detach())
    member = dict(posterior.rescaled(0).sample(1)[0].named_parameters())
    torch.testing.assert_close(member["0.weight"], oracle["0.weight"])


def test_the_variance_is_mean_of_squares_minus_square_of_mean() -> None:
    _, swag, seen, _ = run(every=1)
    values = torch.stack(seen)
    expected = values.square().mean(0) - values.mean(0).square()
    torch.testing.assert_close(swag.posterior().variance["0.weight"].double(), expected, rtol=1e-3, atol=1e-9)


def test_deviations_are_the_last_ones_from_the_running_mean() -> None:
    _, swag, seen, _ = run(every=1, rank=4)
    means = torch.stack(seen).cumsum(0) / torch.arange(1, 13)[:, None, None]
    expected = (torch.stack(seen) - means)[-4:]
    (layer,) = (layer for layer in swag.posterior()._layers if layer.name == "0")
    torch.testing.assert_close(layer.deviations["0.weight"].double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 5])
def test_sampled_covariance_is_the_published_one(rank: int) -> None:
    _, swag, _, _ = run(every=1, rank=rank)
    posterior = swag.posterior()
    layers = posterior._layers
    names = [name for layer in layers for name in layer.mean]
    variance = torch.cat([posterior.variance[name].flatten() for name in names]).double()
    expected = variance.diag()
    if rank:
        D = torch.cat([layer.deviations[n].flatten(1) for layer in layers for n in layer.mean], 1).double()
        expected = expected / 2 + D.T @ D / (2 * (rank - 1))
    draws = 4000
    drawn = (posterior.noise(i) for i in range(draws))
    noise = torch.stack([torch.cat([one[name].flatten() for name in names]) for one in drawn]).double()
    sampled = noise.T @ noise / draws
    scale = expected.diagonal().sqrt()
    # In units of the standard deviations an entry has a standard error of at most sqrt(2 / draws) = 0.022: five of it.
    error = ((sampled - expected) / (scale[:, None] * scale).clamp_min(1e-20)).abs()
    assert error.max() < 0.112


def test_collecting_by_hand_and_by_hook_agree() -> None:
    _, by_hook, _, _ = run(every=3)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    by_hand = SWAG(model, optimizer, every=1000)
    train(model, optimizer, 12, lambda done: by_hand.collect() if done % 3 == 0 else None)
    assert same(by_hook.posterior().mean, by_hand.posterior().mean)


def test_a_restarted_run_is_the_same_bit_for_bit() -> None:
    def start() -> tuple[Any, torch.optim.Optimizer, SWAG]:
        model = network()
        model[3].p = 0.0
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return model, optimizer, SWAG(model, optimizer, every=2, rank=3)

    model, optimizer, swag = start()
    file = io.BytesIO()
    train(
        model,
        optimizer,
        16,
        lambda done: torch.save([model.state_dict(), swag.state_dict()], file) if done == 8 else None,
    )
    again, its_optimizer, its_swag = start()
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    again.load_state_dict(weights)
    its_swag.load_state_dict(state)
    train(again, its_optimizer, 8)
    for i in range(3):
        assert same(swag.posterior().draw(i), its_swag.posterior().draw(i))


def test_a_weight_that_joins_late_has_no_deviations_before() -> None:
    model = network()
    model[4].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = SWAG(model, optimizer, every=1, rank=4)
    train(model, optimizer, 6, lambda done: model[4].requires_grad_(True) if done == 4 else None)
    (layer,) = (layer for layer in swag.posterior()._layers if layer.name == "4")
    assert not layer.deviations["4.weight"][:3].any()
    assert layer.deviations["4.weight"][3].any()


@pytest.mark.parametrize("classes", [3, 4])
def test_a_layer_that_is_replaced_is_collected_afresh(classes: int) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = SWAG(model, optimizer, every=1)
    train(model, optimizer, 4)
    model[4] = nn.Linear(8, classes)
    optimizer.add_param_group({"params": model[4].parameters()})
    seen: list[Tensor] = []
    train(model, optimizer, 4, lambda _: seen.append(model[4].weight.detach().clone()))
    torch.testing.assert_close(swag.posterior().mean["4.weight"], torch.stack(seen).mean(0))
    assert swag.state_dict()["weights"]["4.weight"]["count"] == 4
    assert swag.state_dict()["weights"]["0.weight"]["count"] == 8


def test_a_layer_that_is_wrapped_is_collected_under_its_new_name() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = SWAG(model, optimizer, every=1)
    train(model, optimizer, 4)
    before = swag.posterior().mean["4.weight"]
    model[4] = nn.Sequential(model[4])
    assert torch.equal(swag.posterior().mean["4.0.weight"], before)


def test_half_precision_is_collected_in_float32() -> None:
    model = nn.Linear(4, 3).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = SWAG(model, optimizer, every=1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert swag.posterior().mean["weight"].dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be at least 1 step, got 0"),
        ({"every": 1, "start": -1}, "start must not be negative, got -1"),
        ({"every": 1, "rank": 1}, r"rank must be 0 \(diagonal\) or at least 2, got 1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(ValueError, match=message):
        SWAG(model, torch.optim.SGD(model.parameters(), 0.1), **options)


def test_too_few_collections_say_what_to_change() -> None:
    _, swag, _, _ = run(every=1, start=11)
    with pytest.raises(RuntimeError, match=r"1 collection\(s\) in 12 steps.*start = 11"):
        swag.posterior()


def test_a_checkpoint_that_does_not_fit_lists_both_sides() -> None:
    model, swag, _, _ = run(every=1, rank=4)
    state = swag.state_dict()
    turned = nn.Sequential(nn.Linear(8, 4), *list(model)[1:])
    for other, options, message in (
        (turned, {"rank": 4}, r"\(8, 4\).*follows.*\(4, 8\)"),
        (network(), {"rank": 2}, r"'rank': 4.*has.*'rank': 2"),
        (network(), {"rank": 4, "start": 3}, r"'start': 0.*has.*'start': 3"),
    ):
        its_swag = SWAG(other, torch.optim.SGD(other.parameters(), 0.1), every=1, **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=message):
            its_swag.load_state_dict(state)
    with pytest.raises(ValueError, match="not the state_dict"):
        swag.load_state_dict(model.state_dict())


def test_two_optimizers_take_a_step_together() -> None:
    model = network()
    optimizers = [torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.SGD(model[4].parameters(), 0.05)]
    swag = SWAG(model, optimizers, every=3, start=3)
    seen: list[Tensor] = []

    def after(done: int) -> None:
        if done in (6, 9, 12):
            seen.append(torch.cat([model[0].weight.detach().flatten(), model[4].weight.detach().flatten()]))

    train(model, optimizers, 12, after)
    mean = swag.posterior().mean
    torch.testing.assert_close(torch.cat([mean["0.weight"].flatten(), mean["4.weight"].flatten()]), sum(seen) / 3)


def test_a_run_saved_between_two_optimizers_goes_on_bit_for_bit() -> None:
    def start() -> tuple[Any, list[torch.optim.Optimizer], SWAG]:
        model = network()
        optimizers: list[torch.optim.Optimizer] = [torch.optim.SGD(model[i].parameters(), 0.1) for i in (0, 4)]
        return model, optimizers, SWAG(model, optimizers, every=2, rank=3)

    def half_steps(model: Any, optimizers: list[torch.optim.Optimizer], first: int, last: int) -> None:
        for i in range(first, last):
            for p in model.parameters():
                p.grad = torch.full_like(p, (-1) ** i * 0.1 * i)
            optimizers[i % 2].step()

    whole, part, again = start(), start(), start()
    half_steps(*whole[:2], 0, 40)
    half_steps(*part[:2], 0, 21)
    again[0].load_state_dict(part[0].state_dict())
    again[2].load_state_dict(part[2].state_dict())
    half_steps(*again[:2], 21, 40)
    assert same(whole[2].posterior().mean, again[2].posterior().mean)


def test_deviations_of_weights_frozen_on_the_way_stay_in_step_with_the_others() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = SWAG(model, optimizer, every=1, rank=4)
    train(model, optimizer, 6, lambda done: model[4].requires_grad_(False) if done == 4 else None)
    (layer,) = (layer for layer in swag.posterior()._layers if layer.name == "4")
    rows = layer.deviations["4.weight"]  # of steps 3 to 6; it stands still in the last two, while the mean catches up
    torch.testing.assert_close(rows[3] / rows[2], torch.full_like(rows[2], 5 / 6), rtol=1e-3, atol=0)


def test_snapshots_do_not_follow_the_run() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = SWAG(model, optimizer, every=1, rank=3)
    train(model, optimizer, 5)
    posterior, state = swag.posterior(), swag.state_dict()
    mean, deviations = posterior.mean["0.weight"].clone(), posterior._layers[0].deviations["0.weight"].clone()
    again = SWAG(model, torch.optim.SGD(model.parameters(), 0.1), every=1, rank=3)
    again.load_state_dict(state)
    train(model, optimizer, 5)
    assert torch.equal(posterior.mean["0.weight"], mean)
    assert torch.equal(posterior._layers[0].deviations["0.weight"], deviations)
    assert torch.equal(state["weights"]["0.weight"]["mean"], mean)
    again.collect()
    assert torch.equal(state["weights"]["0.weight"]["mean"], mean)


def test_swag_gives_predictions_like_any_posterior() -> None:
    _, swag, _, _ = run(every=2)
    posterior = swag.posterior()
    assert isinstance(posterior, tradi.Posterior)
    assert "0.weight" in posterior.mean


def peer() -> Any:
    """torch-uncertainty's SWAG, past its package's own imports, which need torchvision and lightning."""
    (folder,) = importlib.util.find_spec("torch_uncertainty").submodule_search_locations  # type: ignore[union-attr, misc]
    package = types.ModuleType("torch_uncertainty_methods")
    package.__path__ = [f"{folder}/methods"]
    sys.modules[package.__name__] = package
    return importlib.import_module(f"{package.__name__}.swag").SWAG


def test_statistics_are_those_of_torch_uncertainty() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = SWAG(model, optimizer, every=2, start=3, rank=4)
    oracle = peer()(model, cycle_start=3, cycle_length=2, max_num_models=4, num_estimators=1)
    train(model, optimizer, 16, oracle.update_wrapper)
    posterior = swag.posterior()
    for layer in posterior._layers:
        for name in layer.mean:
            mean, square, rows = (
                oracle.swag_stats[f"{oracle.prfx}{name}_{part}"] for part in ("mean", "sq_mean", "covariance_sqrt")
            )
            torch.testing.assert_close(layer.mean[name], mean)
            torch.testing.assert_close(
                layer.variance[name], square - mean**2, rtol=1e-2, atol=1e-6
            )  # it subtracts squares
            torch.testing.assert_close(layer.deviations[name].flatten(1), rows, rtol=1e-4, atol=1e-6)


def damaged_states(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The state with one thing missing, of another type, or of another shape."""
    for key in state:
        yield {name: value for name, value in state.items() if name != key}
        yield state | {key: "no state"}
    for name, weight in state["weights"].items():
        for part in weight:
            for wrong in (None, torch.zeros(7, 7, 7)):
                yield state | {"weights": state["weights"] | {name: weight | {part: wrong}}}
        yield state | {"weights": state["weights"] | {name: {}}}
    yield state | {"weights": state["weights"] | {"unknown": next(iter(state["weights"].values()))}}


def test_a_damaged_checkpoint_is_an_error_and_leaves_the_tracker_as_it_was() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = SWAG(model, optimizer, every=2, rank=3)
    train(model, optimizer, 12)
    before = tracker.state_dict()
    tried = 0
    for damaged in damaged_states(copy.deepcopy(before)):
        with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
            tracker.load_state_dict(damaged)
        after = tracker.state_dict()
        assert after.keys() == before.keys()
        assert (after["steps"], after["taken"], after["collected_at"]) == (
            before["steps"],
            before["taken"],
            before["collected_at"],
        )
        for name, weight in before["weights"].items():
            assert same(
                {part: after["weights"][name][part] for part in ("mean", "square", "deviations")},
                {part: weight[part] for part in ("mean", "square", "deviations")},
            )
        tried += 1
    assert tried > 30
