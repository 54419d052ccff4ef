from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import tradi
from tradi.models import mlp
from tradi.models.regression import GaussianHead, TwoStage, evaluate, gaussian_nll, squared_error


def noisy_line(samples: int = 512, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """y = 2x + noise whose standard deviation is 0.1 left of 0 and 0.5 right of it."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(samples, 1, generator=generator) * 2 - 1
    y = 2 * x + torch.where(x < 0, 0.1, 0.5) * torch.randn(samples, 1, generator=generator)
    return list(zip(x.split(64), y.split(64), strict=True))


def model() -> GaussianHead:
    torch.manual_seed(0)
    return GaussianHead(mlp(1, [32]), 32)


def test_losses_are_the_papers() -> None:
    mean, variance, y = torch.randn(7, 1), torch.rand(7, 1) + 0.1, torch.randn(7, 1)
    torch.testing.assert_close(squared_error((mean, variance), y), (mean - y).square().mean())
    expected = (0.5 * (mean - y) ** 2 / variance + 0.5 * variance.log()).mean()
    torch.testing.assert_close(gaussian_nll((mean, variance), y), expected)


def test_targets_of_another_shape_are_refused_and_not_broadcast() -> None:
    for loss in (squared_error, gaussian_nll):
        with pytest.raises(ValueError, match=r"must have shape \(7, 1\) like the mean, got \(7,\)"):
            loss((torch.zeros(7, 1), torch.ones(7, 1)), torch.zeros(7))


@pytest.mark.parametrize("value", [1e-4, 0.3, 50.0])
def test_the_variance_head_starts_at_the_given_value_everywhere(value: float) -> None:
    net = model()
    net.start_variance(value)
    torch.testing.assert_close(net(torch.randn(5, 1))[1], torch.full((5, 1), value), rtol=2e-2, atol=0)


def test_an_exact_fit_and_missing_targets() -> None:
    net = model()
    net.start_variance(0.0)
    assert (net(torch.randn(5, 1))[1] > 0).all()
    with pytest.raises(ValueError, match="got inputs alone"):
        TwoStage(1, 1).fit(net, torch.optim.SGD(net.parameters(), 0.1), [torch.randn(5, 1)])


def test_two_stages_learn_the_mean_and_then_the_noise() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    TwoStage(mse_epochs=30, nll_epochs=60).fit(net, optimizer, noisy_line())
    mean, variance = net(torch.tensor([[-0.6], [0.6]]))
    torch.testing.assert_close(mean.detach(), torch.tensor([[-1.2], [1.2]]), rtol=0, atol=0.15)
    # 448 points: standard errors of the two standard deviations are about 0.005 and 0.02
    assert 0.07 < variance[0].sqrt().item() < 0.15
    assert 0.4 < variance[1].sqrt().item() < 0.6
    assert optimizer.param_groups[0]["lr"] == 1e-2


def test_the_variance_head_is_added_after_the_first_stage() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=0.1)  # decay must not touch it either
    before = net.variance.weight.detach().clone()
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(torch.equal(net.variance.weight, before)))
    TwoStage(mse_epochs=3, nll_epochs=2).fit(net, optimizer, noisy_line())
    assert seen == [True] * 3 * 8 + [False] * 2 * 8


def test_the_variance_head_starts_at_the_error_on_validation_data_and_the_rate_falls_to_the_second_stages() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    rates: list[float] = []
    optimizer.register_step_post_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    started: list[float] = []
    begin = net.start_variance
    net.start_variance = lambda value: (started.append(value), begin(value))[1]  # type: ignore[method-assign, func-returns-value]
    validation = [(x, y + 5) for x, y in noisy_line(seed=1)]
    TwoStage(mse_epochs=4, nll_epochs=1, nll_rate=0.1).fit(net, optimizer, noisy_line(), validation)
    assert started[0] > 10  # far off there, and not on training data
    falling = [1e-2 * (0.1 + 0.9 * (1 + math.cos(math.pi * epoch / 4)) / 2) for epoch in range(4)]
    assert rates[::8] == pytest.approx([*falling, 1e-3])


def test_second_stage_ends_when_validation_nll_no_longer_falls() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), 3e-2)
    few = [(x[:4], y[:4]) for x, y in noisy_line(64)]  # four points: over-fitted at once
    stages = TwoStage(mse_epochs=50, nll_epochs=200, nll_rate=1.0, patience=3)
    assert 3 < stages.fit(net, optimizer, few, noisy_line(seed=1)) < 200


def test_a_tracked_run_gives_members_with_both_heads() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    tracker = tradi.TRADI(net, optimizer)
    TwoStage(mse_epochs=10, nll_epochs=5).fit(net, optimizer, noisy_line())
    posterior = tracker.posterior().choose_scale(noisy_line(seed=1))
    assert {"variance.weight", "mean.weight"} <= posterior.mean.keys()
    prediction = tradi.GaussianMixture(*posterior.sample(10)(torch.linspace(-3, 3, 7)[:, None]))
    assert prediction.epistemic.shape == (7, 1)
    assert prediction.epistemic.min() > 0


def test_evaluation_averages_over_samples_and_restores_the_mode() -> None:
    net = model()
    uneven = [(x[:7], y[:7]) if i else (x, y) for i, (x, y) in enumerate(noisy_line())]
    x, y = (torch.cat(part) for part in zip(*uneven, strict=True))
    assert evaluate(net, uneven, squared_error) == pytest.approx(squared_error(net(x), y).item(), rel=1e-5)
    assert net.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mse_epochs": 0}, "mse_epochs must be at least 1, got 0"),
        ({"nll_rate": math.inf}, "nll_rate must be positive"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TwoStage(**options)  # type: ignore[arg-type]
