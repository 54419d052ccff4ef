"""A member is a function of the posterior, the seed and i alone: not of the number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tradi.methods.swag import LowRank
from tradi.posterior.activations import Activations
from tradi.posterior.covariance import Covariance, FourierFeatures, FullCovariance, Independent
from tradi.posterior.exact import total
from tradi.posterior.layers import Layer, Moments
from tradi.posterior.rows import Form


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def layer(dtype: torch.dtype, inputs: int = 300, outputs: int = 701) -> Layer:
    """A fresh one, which has nothing in its cache."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, generator=generator)

    weight, rows = draw(outputs, inputs), draw(4 * inputs, inputs)
    moments = Moments("l.weight", None, Form.of(nn.Linear(inputs, outputs)), (rows.mT @ rows)[None].float())
    fisher = {"l.weight": draw(outputs, inputs).square()}
    deviations = {"l.weight": draw(3, outputs, inputs)}
    return Layer(
        "l",
        {"l.weight": weight},
        {"l.weight": weight.clone()},
        {"l.weight": draw(outputs, inputs).square()},
        fisher=fisher,
        deviations=deviations,
        moments=moments,
    )


def joint(dtype: torch.dtype) -> Layer:
    rows = torch.randn(600, 300, dtype=dtype, generator=torch.Generator().manual_seed(0))
    value, matrix = rows[0], rows.T.cov()
    return Layer("l", {"l.bias": value}, {"l.bias": value}, {"l.bias": matrix.diagonal()}, {("l.bias",): matrix})


KINDS: list[Covariance] = [
    Independent(),
    Independent(shrinkage=0.5, prior_samples=50.0),
    FourierFeatures(),
    FourierFeatures(prior_samples=None),
    FourierFeatures.paper(),
    FourierFeatures.released(),
    Activations(),
    LowRank(),
    FullCovariance(),
]


@pytest.mark.parametrize("covariance", KINDS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_the_same_whatever_the_number_of_threads(
    covariance: Covariance, dtype: torch.dtype, threads: None
) -> None:
    made = joint(dtype) if isinstance(covariance, FullCovariance) else layer(dtype)
    found = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        fresh = Layer(**{name: getattr(made, name) for name in Layer.__dataclass_fields__})
        if fresh.moments is not None:
            fresh.moments = Moments(*(getattr(fresh.moments, name) for name in ("weight", "bias", "form", "second")))
        found.append(torch.cat([piece for *_, piece in covariance.noise(fresh, 3, 1)]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_are_described_the_same_whatever_the_number_of_threads(dtype: torch.dtype, threads: None) -> None:
    found = []
    for count in (1, 2, 5):
        torch.set_num_threads(1)
        made = layer(dtype)
        torch.set_num_threads(count)
        found.append((made.spread, made.mean_variance, made.samples))
    assert found[0] == found[1] == found[2]


def test_sums_are_those_of_numbers_in_float64() -> None:
    values = torch.randn(40_001, generator=torch.Generator().manual_seed(1))
    assert total(values) == pytest.approx(values.double().sum().item(), rel=1e-12)
    assert total(torch.zeros(0)) == 0
