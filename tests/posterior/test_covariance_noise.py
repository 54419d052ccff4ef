"""Noise as a function: of layer, seed and member alone, at any chunk size, for odd layers; and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.runs import lead, normal
from tradi.posterior.covariance import covariance_from_options
from tradi.posterior.randomness import Stream

FEATURES = tradi.FourierFeatures
COVARIANCES = [FEATURES(), FEATURES.paper(), FEATURES.released(), tradi.Independent(), tradi.FullCovariance()]


def led(covariance: tradi.Covariance, *, dtype: torch.dtype = torch.float32, **final: Tensor) -> tradi.Posterior:
    """Layers of weights that end at the given values, after a noisy path there; their std is 0.1."""
    paths = {}
    for i, (name, values) in enumerate(final.items()):
        path = values + 0.1 * normal(30, *values.shape, seed=i)
        path[-1] = values
        paths[name.replace("_", ".")] = path.to(dtype)
    return lead(paths, None, covariance).posterior()


def test_weight_and_bias_of_one_layer_share_features_and_layers_do_not() -> None:
    values = normal(4)
    posterior = led(FEATURES(shrinkage=1.0), a_weight=values, a_bias=values, b_weight=values)
    for member in range(5):
        noise = posterior.noise(member)
        torch.testing.assert_close(noise["a.weight"], noise["a.bias"], rtol=1e-6, atol=0)  # same value, same noise
        assert (noise["a.weight"] - noise["b.weight"]).abs().min() > 1e-6


@pytest.mark.parametrize("covariance", COVARIANCES, ids=repr)
def test_noise_depends_on_member_and_seed_alone(covariance: tradi.Covariance) -> None:
    posterior = led(covariance, a_weight=normal(4, 5), b_weight=normal(6))
    for name in ("a.weight", "b.weight"):
        again = [posterior.noise(1, seed=7)[name] for _ in range(2)]
        assert torch.equal(*again)
        others = [posterior.noise(0, seed=7)[name], posterior.noise(1, seed=8)[name]]
        assert all((again[0] != other).all() for other in others)
    few, many = posterior.sample(2, seed=7), posterior.sample(9, seed=7)
    for a, b in zip(few[1].parameters(), many[1].parameters(), strict=True):
        assert torch.equal(a, b)  # sample(2) is the beginning of sample(9)


def test_independent_noise_of_many_weights_is_their_stream_times_their_deviations() -> None:
    posterior = led(tradi.Independent(), a_weight=normal(3, 50_000))
    expected = Stream(5, 2, "a.weight").normal(0, 150_000) * posterior.variance["a.weight"].reshape(-1).sqrt()
    assert torch.equal(posterior.noise(2, seed=5)["a.weight"].reshape(-1), expected)


@pytest.mark.parametrize("chunk", [1, 7, 40, 41])
@pytest.mark.parametrize("covariance", COVARIANCES[:4], ids=repr)
def test_noise_is_independent_of_chunks(
    covariance: tradi.Covariance, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = led(covariance, a_weight=normal(5, 8), a_bias=normal(5))
    whole = posterior.noise(3)
    monkeypatch.setattr(tradi.posterior.covariance, "CHUNK", chunk)
    for name, piecewise in posterior.noise(3).items():
        # The order of the ten terms of a dot product may differ with its shape: a few float32 roundings.
        torch.testing.assert_close(piecewise, whole[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize("size", [1, 20])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("covariance", COVARIANCES, ids=repr)
def test_constant_and_one_weight_layers_get_noise_of_their_own_std(
    covariance: tradi.Covariance, dtype: torch.dtype, value: float, size: int
) -> None:
    posterior = led(covariance, dtype=dtype, a_weight=torch.full((size,), value, dtype=torch.float64))
    noise = torch.stack([posterior.noise(i)["a.weight"] for i in range(300)]).double()
    share = (noise.square().mean(0) / posterior.variance["a.weight"].double()).mean().item()
    if getattr(covariance, "shrinkage", 0):
        share = noise.square().mean().item() / posterior.variance["a.weight"].double().mean().item()
    # Noise shared by the whole layer is 300 squares, each at least as heavy-tailed as chi^2: sigma about 0.1.
    assert share == pytest.approx(1, abs=0.4)
    if getattr(covariance, "shared_phases", False):  # one value: the kernel is 1 everywhere
        std = posterior.variance["a.weight"].double().sqrt()
        if getattr(covariance, "shrinkage", 0):
            std = torch.full_like(std, 1)
        torch.testing.assert_close(noise / std, (noise / std)[:, :1].expand_as(noise), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("spread", [1e-44, 1e-40, 1e-30, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("covariance", COVARIANCES[:3], ids=repr)
def test_noise_keeps_its_std_whatever_the_scale_of_the_weights(
    covariance: tradi.Covariance, spread: float, offset: float
) -> None:
    final = offset + spread * normal(50)  # weight decay takes dead layers down to denormal numbers
    posterior = led(covariance, a_weight=final)
    noise = torch.stack([posterior.noise(i)["a.weight"] for i in range(200)]).double()
    assert noise.isfinite().all()
    share = noise.square().mean().item() / posterior.variance["a.weight"].double().mean().item()
    # At worst the layer moves as one: 200 squares of kurtosis 3 to 4, sigma sqrt(3 / 200) = 0.12.
    assert share == pytest.approx(1, abs=4 * 0.12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("covariance", COVARIANCES, ids=repr)
def test_half_precision_weights_get_their_members_in_half_precision(
    covariance: tradi.Covariance, dtype: torch.dtype
) -> None:
    posterior = led(covariance, dtype=dtype, a_weight=normal(6))
    assert posterior.mean["a.weight"].dtype == torch.float32
    assert posterior.noise(0)["a.weight"].dtype == torch.float32
    assert dict(posterior.sample(1)[0].named_parameters())["a.weight"].dtype == dtype


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FEATURES(features=0), r"features must be a whole number from 1 to 4096, got 0"),
        (lambda: FEATURES(features=2**63), r"features must be a whole number from 1 to 4096"),
        (lambda: FEATURES(length_scale=0.0), r"length_scale must be positive and finite, got 0\.0"),
        (lambda: FEATURES(length_scale=math.inf), r"length_scale must be positive and finite, got inf"),
        (lambda: FEATURES(length_scale=math.nan), r"length_scale must be positive and finite, got nan"),
        (lambda: FEATURES(shrinkage=-0.1), r"shrinkage must be between 0 and 1, got -0\.1"),
        (lambda: FEATURES(shrinkage=1.1), r"shrinkage must be between 0 and 1, got 1\.1"),
        (lambda: tradi.Independent(shrinkage=math.nan), r"shrinkage must be between 0 and 1, got nan"),
        (lambda: covariance_from_options("Diagonal", {}), r"unknown covariance 'Diagonal'.*FourierFeatures"),
    ],
)
def test_bad_options_say_what_where_and_which(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_full_covariance_refuses_a_large_layer_when_attached_before_allocating() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(1000, 500))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gib = f"{(500_500**2 + 6**2) * 4 / 2**30:,.2f}"
    message = rf"needs {gib} GiB.*500,500 x 500,500 matrix of layer '1'.*use FourierFeatures\(\).*select=.*max_bytes"
    with pytest.raises(ValueError, match=message):  # allocating the terabyte would be a RuntimeError
        tradi.TRADI(model, optimizer, covariance=tradi.FullCovariance())
    tradi.TRADI(model, optimizer, covariance=tradi.FullCovariance(), select="0")


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 4)])
def test_full_covariance_allows_exactly_max_bytes(dtype: torch.dtype, size: int) -> None:
    model = nn.Linear(3, 3, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tradi.TRADI(model, optimizer, covariance=tradi.FullCovariance(max_bytes=size * 12**2))
    with pytest.raises(ValueError, match="layer ''"):
        tradi.TRADI(model, optimizer, covariance=tradi.FullCovariance(max_bytes=size * 12**2 - 1))
    with pytest.raises(ValueError, match="max_bytes must be positive, got 0"):
        tradi.FullCovariance(max_bytes=0)


@pytest.mark.parametrize(
    "covariance",
    [*COVARIANCES, FEATURES(3, 0.7, True, 0.25, 0.5, False), tradi.Independent(0.3), tradi.FullCovariance(4096)],
    ids=repr,
)
def test_options_describe_the_covariance_through_json(covariance: tradi.Covariance) -> None:
    options = json.loads(json.dumps(covariance.options()))
    assert covariance_from_options(type(covariance).__name__, options) == covariance
