from __future__ import annotations

import math

import pytest
import torch

from tradi.posterior.layers import Layer, Moments, by_layer, share_out
from tradi.posterior.rows import Form


def layers(gradients: list[float | None], spreads: list[float]) -> list[Layer]:
    found = []
    for number, (gradient, spread) in enumerate(zip(gradients, spreads, strict=True)):
        weight = {f"{number}.weight": spread * torch.tensor([-1.0, 1.0] * 50)}
        (layer,) = by_layer(weight, weight, {f"{number}.weight": torch.ones(100)})
        layer.gradient = gradient
        found.append(layer)
    return found


def test_layers_move_by_one_over_the_root_of_their_squared_gradients_and_by_their_spread_on_average() -> None:
    shared = share_out(layers([4.0, 1.0, 0.01], [0.1, 0.2, 0.4]))
    reach = [layer.reach for layer in shared if layer.reach is not None]
    assert [r * math.sqrt(g) for r, g in zip(reach, (4.0, 1.0, 0.01), strict=True)] == pytest.approx(
        [reach[1]] * 3, rel=1e-6
    )
    assert math.prod(reach) == pytest.approx(0.1 * 0.2 * 0.4, rel=1e-5)  # the geometric average


def test_a_layer_that_hardly_any_gradient_reaches_goes_no_further_than_one_with_a_thousandth() -> None:
    for tiny in (1e-6, 1e-12, 0.0):
        first, second = share_out(layers([1.0, tiny], [0.1, 0.1]))
        assert first.reach is not None
        assert second.reach is not None
        assert second.reach / first.reach == pytest.approx(1e3, rel=1e-5)


@pytest.mark.parametrize("gradients", [[None, None], [1.0, None], [0.0, 0.0]])
def test_where_gradients_are_not_known_every_layer_moves_by_its_own_spread(gradients: list[float | None]) -> None:
    assert [layer.reach for layer in share_out(layers(gradients, [0.1, 0.7]))] == pytest.approx([0.1, 0.7], rel=1e-5)
    assert share_out([]) == []


def test_a_layers_gradient_is_the_average_over_its_weights() -> None:
    weights = {"a.weight": torch.ones(3, 2), "a.bias": torch.ones(2), "b.weight": torch.ones(5)}
    ones = {name: torch.ones_like(weight) for name, weight in weights.items()}
    a, b = by_layer(weights, weights, ones, gradient={"a.weight": 4.0, "a.bias": 8.0, "b.weight": 3.0})
    assert (a.gradient, b.gradient) == ((6 * 4 + 2 * 8) / 8, 3.0)
    a, b = by_layer(weights, weights, ones, gradient={"a.weight": 4.0, "b.weight": 3.0})
    assert (a.gradient, b.gradient) == (None, 3.0)


@pytest.mark.parametrize("floor", [1e-6, 1e-2, 1.0])
def test_the_inverse_root_of_moments_is_that_of_the_formula(floor: float) -> None:
    a = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a[1, :, 3] = 0  # an input that is never used
    second = a.mT @ a / 50
    root = Moments("weight", None, Form("convolution", 2), second).inverse_root(floor)
    for group in range(2):
        mean = second[group].trace() / 4
        expected = torch.linalg.inv(second[group] / (floor * mean) + torch.eye(4))
        torch.testing.assert_close(root[group] @ root[group], expected)
        torch.testing.assert_close(root[group], root[group].T)
    assert root[1, 3, 3] == pytest.approx(1.0)
    diagonal = second.diagonal(dim1=1, dim2=2)
    alone = Moments("weight", None, Form("convolution", 2), diagonal).inverse_root(floor)
    torch.testing.assert_close(alone.square(), 1 / (diagonal / (floor * diagonal.mean(1, keepdim=True)) + 1))


def test_inputs_that_are_all_zero_leave_everything_free() -> None:
    for second in (torch.zeros(1, 3, 3), torch.zeros(1, 3)):
        root = Moments("weight", None, Form("linear"), second).inverse_root(1e-4)
        torch.testing.assert_close(root, torch.eye(3)[None] if second.ndim == 3 else torch.ones(1, 3))


def test_statistics_do_not_depend_on_the_order_of_the_weights() -> None:
    values = torch.randn(200_000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 200_000)
    layers = []
    for row in (values, values.flip(0), values[torch.randperm(len(values))]):
        parts = {f"w{i}": part for i, part in enumerate(row.split(70_001))}
        layers.append(Layer("", parts, parts, {name: part.square() for name, part in parts.items()}))
    first = layers[0]
    assert all((one.spread, one.mean_variance) == (first.spread, first.mean_variance) for one in layers)
    assert first.spread == pytest.approx(values.double().std(correction=0).item(), rel=1e-9)
    assert first.mean_variance == pytest.approx(values.double().square().mean().item(), rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_statistics_leave_the_weights_alone(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, -2.0, 4.0], dtype=dtype)
    layer = Layer("", {"w": values}, {"w": values}, {"w": -values})
    assert layer.spread == pytest.approx(6**0.5)
    assert layer.mean_variance == pytest.approx(2 / 3)
    assert values.tolist() == [1.0, -2.0, 4.0]


@pytest.mark.parametrize(
    ("values", "unit"),
    [([5.0, 5.0, 5.0], 5e-6), ([-8.0, -8.0], 8e-6), ([0.0, 0.0], 1e-30), ([1.0, -1.0], 1.0), ([3.0, 3.0 + 1e-7], 3e-6)],
)
def test_the_unit_of_a_layer_is_its_spread_and_never_less_than_float32_can_tell(
    values: list[float], unit: float
) -> None:
    weight = {"0.weight": torch.tensor(values)}
    (layer,) = by_layer(weight, weight, weight)
    assert layer.unit == pytest.approx(unit, rel=1e-6)
