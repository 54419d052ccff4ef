"""What the benchmarks load beside the paper's own problems, and rows that estimate something on validation data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tradi.bench.evaluate import evaluate
from tradi.bench.mnist import HELD_OUT, load_near
from tradi.bench.toy import FUNCTIONS, POINTS, load_function, network
from tradi.data import mnist
from tradi.data.toy import toy
from tradi.methods import SingleNetwork


def test_mnist_near_learns_eight_digits_and_meets_the_others_in_testing(data_root: Path) -> None:
    data, source = load_near(data_root, 0, 0), mnist(data_root)
    left = [digit for digit in range(10) if digit not in HELD_OUT]
    for ours, theirs in ((data.train, source.train), (data.validation, source.validation), (data.test, source.test)):
        known = ~torch.isin(theirs[1], torch.tensor(HELD_OUT))
        assert torch.equal(ours[0], theirs[0][known])
        assert torch.equal(torch.tensor(left)[ours[1]], theirs[1][known])
    held_out, rotated = data.ood["held-out digits"], data.ood["rotated digits"]
    assert torch.equal(held_out, source.test[0][torch.isin(source.test[1], torch.tensor(HELD_OUT))])
    turned = rotated[7].view(28, 28)
    assert torch.equal(turned.rot90(-1), data.test[0][7].view(28, 28))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_toy_functions_are_noisy_where_they_are_seen_and_exact_on_the_grid(name: str, tmp_path: Path) -> None:
    data, other = (load_function(name, tmp_path, 0, seed) for seed in (0, 1))
    noise_variance = toy(seed=0).noise_variance
    x, y = (torch.cat(parts) for parts in zip(data.train, data.validation, data.test, strict=True))
    residual = y - FUNCTIONS[name](x)
    # A variance of n normal numbers has a standard error of sqrt(2 / n) of itself: five of them.
    assert residual.square().mean().item() == pytest.approx(noise_variance, rel=5 * (2 / len(x)) ** 0.5)
    assert residual.mean().abs() < 5 * (noise_variance / len(x)) ** 0.5
    assert x.abs().min() >= 0.5  # the gap
    assert x.unique().numel() == x.numel()
    assert torch.equal(data.extra["truth"], FUNCTIONS[name](data.extra["grid"]))
    assert torch.equal(data.extra["ideal_mean"], data.extra["truth"])
    assert not torch.equal(other.train[1], data.train[1])
    again = load_function(name, tmp_path, 0, 0)
    assert torch.equal(again.train[1], data.train[1])


def test_a_result_holds_as_much_of_a_band_as_its_figure_shows(tmp_path: Path) -> None:
    data = load_function("sine", tmp_path, 0, 0)
    ensemble = SingleNetwork(network(data, None)).sample()
    (band,) = evaluate(ensemble, data).curves.values()
    assert len(band.pop("train_x")) == len(band.pop("train_y")) == POINTS
    assert {len(values) for values in band.values()} == {len(data.extra["grid"][::3])}
    assert band["x"] == pytest.approx(data.extra["grid"][::3, 0].tolist(), rel=1e-4)
    assert band["truth"] == pytest.approx(data.extra["truth"][::3, 0].tolist(), rel=1e-4)
    assert len(json.dumps(band)) < 8000
