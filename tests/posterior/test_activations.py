from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.runs import noise_of
from tests.training import problem, same
from tradi.posterior import activations as room
from tradi.posterior.activations import Activations
from tradi.posterior.conditions import with_moments
from tradi.posterior.layers import Layer, Moments, by_layer
from tradi.posterior.rows import Form, rows
from tradi.posterior.runner import Runner


def layers_of(model: nn.Module, reach: float | None = None, select: str = "") -> list[Layer]:
    weights = {name: p.detach() for name, p in model.named_parameters() if select in name}
    found = by_layer(weights, weights, {name: torch.ones_like(w) for name, w in weights.items()})
    for layer in found:
        layer.reach = reach
    return found


def measured(model: nn.Module, x: Any, reach: float | None = 1.0, select: str = "") -> list[Layer]:
    return with_moments(Runner(model).replay([(x, None)], 0), layers_of(model, reach, select))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_row_of_the_noise_has_the_covariance_of_the_formula() -> None:
    a = normal(500, 3) * torch.tensor([1.0, 0.1, 0.0]) @ torch.tensor([[1.0, 1, 0], [-1, 1, 0], [0, 0, 1]])
    model = nn.Linear(3, 8000)
    (layer,) = measured(model, a, reach=0.5)
    second = torch.cat([a, torch.ones(500, 1)], 1)
    A = second.T @ second / 500
    assert layer.moments is not None
    torch.testing.assert_close(layer.moments.second[0], A)
    for floor in (1e-2, 1.0):
        noise = noise_of(Activations(floor), layer, seed=3, member=2)
        drawn = torch.cat([noise["weight"], noise["bias"][:, None]], 1).double()
        expected = 0.25 * torch.linalg.inv(A.double() / (floor * A.trace() / 4) + torch.eye(4))
        deviation = expected.diagonal().sqrt()
        # 8,000 rows: five standard errors, of a mean and of a covariance.
        assert (drawn.mean(0).abs() < 5 * deviation / math.sqrt(8000)).all()
        error = (deviation[:, None] * deviation).square().add(expected.square()).div(8000).sqrt()
        assert ((drawn.T.cov() - expected).abs() < 5 * error).all()


def test_weights_of_dead_inputs_move_freely_and_those_of_used_ones_hardly() -> None:
    x = normal(300, 6)
    x[:, 4:] = 0
    (layer,) = measured(nn.Linear(6, 1000), x, reach=0.2)
    weight = noise_of(Activations(), layer)["weight"]
    # 2,000 numbers: a standard error of 1.6% of their deviation.
    assert weight[:, 4:].std() == pytest.approx(0.2, rel=0.08)
    assert weight[:, :4].std() < 0.2 * 0.02  # (1 + 1 / 1e-5)^-1/2 is three thousandths


KINDS: dict[str, tuple[Any, Tensor]] = {
    "linear on tokens": (nn.Linear(6, 50), normal(9, 5, 6)),
    "convolution": (nn.Conv2d(3, 50, 3, padding=1), normal(4, 3, 5, 5)),
    "strided": (nn.Conv1d(3, 50, 4, stride=2, padding=2, dilation=2), normal(4, 3, 20)),
    "grouped": (nn.Conv2d(4, 60, 3, groups=2), normal(4, 4, 6, 6)),
    "depthwise": (nn.Conv2d(4, 80, 3, groups=4, bias=False), normal(4, 4, 6, 6)),
    "transposed": (nn.ConvTranspose2d(3, 50, 3, stride=2, output_padding=1), normal(4, 3, 3, 2)),
    "transposed grouped": (nn.ConvTranspose1d(4, 60, 3, stride=2, padding=1, groups=2), normal(4, 4, 9)),
}


@pytest.mark.parametrize(("module", "x"), KINDS.values(), ids=KINDS)
def test_moments_are_those_of_what_the_layer_multiplies_and_noise_leaves_its_outputs_alone(
    module: Any, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PLACES", 1000)  # all of them
    (layer,) = measured(module, x, reach=1.0)
    assert layer.moments is not None
    a = rows(module, x, module(x))
    if module.bias is not None:
        a = torch.cat([a, torch.ones(*a.shape[:2], 1)], 2)
    torch.testing.assert_close(layer.moments.second, a.mT @ a / a.shape[1], rtol=1e-4, atol=1e-5)

    def change(noise: dict[str, Tensor]) -> float:
        """Mean square of what the noise alone gives on the training inputs."""
        only = copy.deepcopy(module)
        only.load_state_dict(noise)
        return only(x).square().mean().item()

    noise = noise_of(Activations(), layer)
    layer.moments = None
    free = noise_of(Activations(), layer)
    assert free["weight"].std() == pytest.approx(1.0, rel=0.3)
    # Inputs in general position: every direction is used, and (1 + 1 / 1e-5)^-1 is a hundred-thousandth.
    assert 0 < change(noise) < 3e-4 * change(free)


def test_tokens_of_an_embedding_move_the_more_the_rarer_they_are() -> None:
    tokens = torch.tensor([[0] * 90 + [1] * 10])
    (layer,) = measured(nn.Embedding(3, 4000), tokens, reach=2.0)
    assert layer.moments is not None
    torch.testing.assert_close(layer.moments.second, torch.tensor([[0.9, 0.1, 0.0]]))
    noise = noise_of(Activations(floor=0.01), layer)["weight"]
    for row, share in zip(noise, (0.9, 0.1, 0.0), strict=True):
        # 4,000 numbers: a standard error of 1.1%.
        assert row.std() == pytest.approx(2 / math.sqrt(share / (0.01 / 3) + 1), rel=0.06)


def test_wide_layers_keep_the_diagonal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(200, 4) * torch.tensor([1.0, 0.1, 0.01, 0.0])
    for widest, axes in ((5, 3), (4, 2)):  # four inputs and the bias
        monkeypatch.setattr(room, "WIDEST", widest)
        (layer,) = measured(nn.Linear(4, 3000), x, reach=1.0)
        assert layer.moments is not None
        assert layer.moments.second.ndim == axes
    assert layer.moments is not None
    second = torch.cat([x, torch.ones(200, 1)], 1).square().mean(0)
    torch.testing.assert_close(layer.moments.second[0], second)
    noise = noise_of(Activations(), layer)
    drawn = torch.cat([noise["weight"], noise["bias"][:, None]], 1)
    # 3,000 numbers: a standard error of 1.3%.
    torch.testing.assert_close(drawn.std(0), (second / (1e-5 * second.mean()) + 1).rsqrt(), rtol=0.07, atol=0)


def test_weights_of_other_layers_move_independently_by_the_reach() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.PReLU(4000))
    first, second, third = layers_of(model, reach=0.3)
    assert third.moments is None
    # 4,000 numbers: a standard error of 1.1%.
    assert noise_of(Activations(), third)["2.weight"].std() == pytest.approx(0.3, rel=0.06)
    replay = Runner(nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))).replay([(normal(9, 4), None)], 9)
    found = with_moments(replay, [first, second])
    assert found[0].moments is not None
    assert found[1].moments is None
    assert noise_of(Activations(), second)["1.weight"].shape == (8,)


def test_a_bias_that_is_not_tracked_stays_and_a_layer_that_never_runs_moves_freely() -> None:
    (layer,) = measured(nn.Linear(4, 3), normal(20, 4), select="weight")
    assert layer.moments is not None
    assert layer.moments.second.shape == (1, 4, 4)
    assert list(noise_of(Activations(), layer)) == ["weight"]

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(50, 60)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    used, unused = measured(Unused(), normal(20, 4), reach=0.1)
    assert used.moments is not None
    assert unused.moments is None
    # 3,000 numbers: a standard error of 1.3%.
    assert noise_of(Activations(), unused)["unused.weight"].std() == pytest.approx(0.1, rel=0.07)


def test_without_a_reach_a_layer_moves_by_its_spread() -> None:
    model = nn.Linear(100, 100)
    (layer,) = layers_of(model)
    assert noise_of(Activations(), layer)["weight"].std() == pytest.approx(layer.spread, rel=0.05)


def test_a_few_positions_of_large_pictures_are_as_good_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Conv2d(2, 3, 1), normal(400, 2, 20, 20)
    (few,) = measured(module, x)
    assert room.PLACES == 8
    monkeypatch.setattr(room, "PLACES", 400)
    (whole,) = measured(module, x)
    assert few.moments is not None
    assert whole.moments is not None
    # 3,200 rows: a standard error of sqrt(2 / 3200) of a variance of 1.
    torch.testing.assert_close(few.moments.second, whole.moments.second, rtol=0, atol=5 * math.sqrt(2 / 3200))
    at = torch.randperm(400, generator=torch.Generator().manual_seed(0))[:8]  # the same ones of every sample
    a = torch.cat([x.flatten(2)[:, :, at].movedim(1, 2).reshape(3200, 2), torch.ones(3200, 1)], 1)
    torch.testing.assert_close(few.moments.second[0], a.T @ a / 3200)
    assert not torch.equal(few.moments.second, whole.moments.second)


def test_data_that_is_sorted_by_class_is_measured_all_over() -> None:
    model = nn.Linear(10, 10)
    sorted_by_class = torch.eye(10).repeat_interleave(1500, 0)
    replay = Runner(model).replay([(x, None) for x in sorted_by_class.split(100)], 0)
    (layer,) = with_moments(replay, layers_of(model))
    assert layer.moments is not None
    torch.testing.assert_close(layer.moments.second[0].diagonal()[:10], torch.full((10,), 0.1), rtol=0.05, atol=0)


@pytest.mark.parametrize("floor", [0.0, -1.0, math.inf, math.nan])
def test_a_floor_that_is_none_is_an_error(floor: float) -> None:
    with pytest.raises(ValueError, match="floor must be positive and finite"):
        Activations(floor)


def test_noise_of_a_labelled_task_is_where_training_inputs_have_no_energy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    data = [(torch.cat([x, torch.zeros(len(x), 2)], 1), y) for x, y in problem()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    for x, y in data * 5:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    before = tracker.posterior()
    posterior = before.condition(data)
    assert before.covariance is None
    assert posterior.covariance == Activations()
    noise = posterior.noise(0)["0.weight"]
    assert noise[:, 4:].square().mean() > 1e3 * noise[:, :4].square().mean()
    for layer in posterior._layers:
        assert layer.reach is not None
    told = tracker.posterior().with_covariance(tradi.Independent()).condition(data)
    assert told.covariance == tradi.Independent()
    assert same(told.noise(0), tracker.posterior().noise(0))  # independent noise until the task is known


def test_moments_belong_to_the_parameters_that_they_name() -> None:
    weights = {"a.weight": normal(3, 4), "a.bias": normal(3)}
    (layer,) = by_layer(weights, weights, weights)
    layer.moments = Moments("a.weight", "a.bias", Form("linear"), torch.eye(5)[None])
    noise = noise_of(Activations(), layer)
    assert {name: value.shape for name, value in noise.items()} == {name: w.shape for name, w in weights.items()}


class Gain(nn.Module):
    """A layer with a weight that is called otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


def test_only_layers_that_multiply_their_inputs_by_a_weight_have_moments() -> None:
    model = nn.Sequential(nn.Linear(4, 3), Gain(), nn.LayerNorm(3), nn.Linear(3, 2, bias=False))
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    layers = by_layer(weights, weights, weights)
    assert {layer.name for layer in layers} == {"0", "1", "2", "3"}
    assert room.gatherings(dict(model.named_modules()), layers).keys() == {"0", "3"}
