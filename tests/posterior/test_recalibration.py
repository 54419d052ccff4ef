from __future__ import annotations

import math

import pytest
import torch
from scipy import optimize
from torch import Tensor, nn

import tradi
from tradi.likelihoods import Bernoulli, Classification, Gaussian, Likelihood, SquaredError, Tokens
from tradi.methods import DeepEnsemble
from tradi.posterior.recalibration import noise_factor, recalibrated


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Scaled(nn.Module):
    """Gives its inputs, times a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def ensemble(*factors: float) -> tradi.Ensemble:
    return DeepEnsemble([Scaled(factor) for factor in factors]).sample(len(factors))


@pytest.mark.parametrize("rows", [1, 5, 400])
def test_the_factor_on_variances_is_the_average_square_beside_twenty_rows_that_ask_for_none(rows: int) -> None:
    means, variances, y = normal(3, rows, 1), normal(3, rows, 1).square() + 0.1, 3 * normal(rows, 1, seed=1)
    mixture = tradi.GaussianMixture(means, variances)
    mean = means.mean(0)
    variance = variances.mean(0) + means.var(0, correction=0)
    expected = (((y - mean).square() / variance).sum() + 20) / (rows + 20)
    half = rows // 2
    batches = [(None, y[:half, 0]), (None, y[half:, 0])]  # shaped otherwise
    assert noise_factor(mixture, batches) == pytest.approx(expected.item(), rel=1e-5)


def test_numbers_get_a_factor_on_their_variance() -> None:
    x = normal(500, 1)
    y = x + 2 * normal(500, 1, seed=1)
    found = recalibrated(ensemble(1.0), SquaredError(variance=(1.0,)), [(x, y)])
    factor = ((y - x).square().sum().item() + 20) / 520
    assert isinstance(found, SquaredError)
    assert found.variance == pytest.approx((factor,), rel=1e-5)
    assert recalibrated(ensemble(1.0), SquaredError(variance=(1.0,)), [(x, y)]) == found

    class Pair(Scaled):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return x, torch.ones_like(x)

    pair = DeepEnsemble([Pair(1.0)]).sample(1)
    assert recalibrated(pair, Gaussian(), [(x, y)]).options()["temperature"] == pytest.approx(factor, rel=1e-5)
    assert recalibrated(pair, Gaussian(3.0), [(x, y)]).options()["temperature"] == pytest.approx(
        3 * (((y - x).square().sum().item() / 3 + 20) / 520), rel=1e-5
    )


TASKS: dict[str, tuple[Likelihood, tuple[int, ...]]] = {
    "classes": (Classification(), (400, 3)),
    "pixels": (Classification(), (10, 3, 5, 4)),
    "labels": (Bernoulli(), (200, 3)),
    "tokens": (Tokens(), (30, 8, 4)),
}


@pytest.mark.parametrize(("task", "shape"), TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("sure", [0.3, 1.0, 4.0])
def test_labels_get_the_temperature_of_the_lowest_loss(task: Likelihood, shape: tuple[int, ...], sure: float) -> None:
    """Labels are drawn from the logits' own probabilities; members are surer of them by a factor."""
    logits = normal(*shape)
    torch.manual_seed(5)
    if isinstance(task, Bernoulli):
        y = logits.sigmoid().bernoulli()
    elif isinstance(task, Tokens):
        drawn = torch.distributions.Categorical(logits=logits).sample()
        y = torch.cat([drawn[:, :1], drawn[:, :-1]], 1)  # the logits at a position are about the next token
        y[::3, 5:] = -100
    else:
        y = torch.distributions.Categorical(logits=logits.movedim(1, -1)).sample()
        y[0] = -100
    members = ensemble(0.7 * sure, 1.3 * sure)
    found = recalibrated(members, task, [(logits[:7], y[:7]), (logits[7:], y[7:])]).options()["temperature"]

    def loss(log_temperature: float) -> float:
        tempered = task.tempered(math.exp(log_temperature))
        values = torch.stack([tempered.log_prob(output, y) for output in members(logits)])
        samples = values.logsumexp(0).reshape(len(logits), -1).nanmean(1)
        return -samples.double().nanmean().item()

    best = optimize.minimize_scalar(loss, bounds=(-2, 2), method="bounded", options={"xatol": 1e-5})
    # Golden sections of 4 nats: 0.618^16 of them, and where a loss is flat in float32.
    assert math.log(found) == pytest.approx(best.x, abs=0.01)
    assert 0.7 * sure < found < 1.4 * sure


def test_a_temperature_divides_logits_wherever_a_likelihood_reads_them() -> None:
    logits, labels = normal(6, 3), torch.tensor([0, 1, 2, 0, 1, -100])
    warm = Classification(temperature=2.0)
    torch.testing.assert_close(
        warm.log_prob(logits, labels), Classification().log_prob(logits / 2, labels), equal_nan=True
    )
    torch.testing.assert_close(warm.predict(logits[None]).probs, (logits / 2).softmax(1))
    torch.testing.assert_close(Bernoulli(temperature=2.0).predict(logits[None]).probs, (logits / 2).sigmoid())
    assert warm.tempered(3.0) == Classification(temperature=6.0)
    for kind in (Classification, Bernoulli, Tokens, Gaussian):
        for wrong in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(ValueError, match="temperature must be positive and finite"):
                kind(temperature=wrong)
