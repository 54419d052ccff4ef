from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.posterior.test_conditioning import TwoHeads, data, joined, regression
from tradi.ensemble.ensemble import Ensemble
from tradi.likelihoods import Gaussian, SquaredError
from tradi.posterior.conditioning import HeadRegression, Regression
from tradi.posterior.linearised import NetworkRegression
from tradi.posterior.loudness import (
    NEGLIGIBLE,
    QUIET_ROWS,
    SCALES,
    TRUST,
    WIDER,
    Averaged,
    Component,
    Judged,
    averaged,
    judged,
    search,
)

HEAD: Any = object.__new__(HeadRegression)
NETWORK: Any = object.__new__(NetworkRegression)


def found(support: float, scale: float = 1.0, way: Regression = HEAD) -> Judged:
    return Judged((way,), scale, torch.zeros(3), support)


def test_shares_are_posterior_probabilities_of_the_scales() -> None:
    shares = averaged([found(-1.0, 0.5), found(-2.0, 2.0), found(-1.5, 8.0), found(-1.0 - NEGLIGIBLE - 1, 32.0)])
    weights = [math.exp(-s) for s in (0.0, 1.0, 0.5)]
    assert [one.scale for _, one in shares] == [0.5, 2.0, 8.0]  # and what hardly counts is left out
    assert [share for share, _ in shares] == pytest.approx([w / sum(weights) for w in weights], rel=1e-4)


def test_the_last_layer_alone_is_taken_only_where_data_clearly_prefers_it() -> None:
    for lead, expected in ((-1.0, NETWORK), (WIDER - 0.1, NETWORK), (WIDER + 0.1, HEAD)):
        shares = averaged([found(0.0, way=NETWORK), found(lead, way=HEAD)])
        assert [one.conditionings for _, one in shares] == [(expected,)]
    # It is all scales of a way together that count: three of one nat less than the other way's single one.
    three = [found(WIDER + 0.2 - math.log(3), scale, HEAD) for scale in (1.0, 2.0, 8.0)]
    assert len(averaged([found(0.0, way=NETWORK), *three])) == 3


def test_scales_that_give_no_finite_loss_are_left_out_and_none_at_all_is_an_error() -> None:
    shares = averaged([found(-math.inf, 0.5), found(-3.0, 2.0)])
    assert [(one.scale, share) for share, one in shares] == [(2.0, 1.0)]
    with pytest.raises(ValueError, match="validation NLL is not finite at any scale"):
        averaged([found(-math.inf)])


def test_louder_scales_are_not_tried_once_they_are_out_of_the_question() -> None:
    def tried(support: dict[float, float]) -> list[float]:
        return [
            one.scale for one in search(lambda _, scale: found(support[scale], scale), [HeadRegression], lambda _: True)
        ]

    assert SCALES == (2.0, 8.0, 32.0, 128.0)
    even = dict.fromkeys(SCALES, 0.0)
    assert tried(even) == list(SCALES)
    assert tried(even | {2.0: -50.0}) == list(SCALES)  # it is quieter scales that a scale falls behind
    assert tried(even | {8.0: -NEGLIGIBLE - 1}) == [2.0, 8.0]
    assert tried(even | {8.0: -NEGLIGIBLE + 1}) == list(SCALES)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7, 20])
def test_the_search_ends_with_its_budget_and_judges_every_way_first(budget: int) -> None:
    calls: list[tuple[Any, float]] = []

    def judge(way: type[Regression], scale: float) -> Judged:
        calls.append((way, scale))
        return found(0.0, scale)

    search(judge, [NetworkRegression, HeadRegression], lambda scales: len(calls) + scales <= budget)
    assert len(calls) == min(budget, 2 * len(SCALES))
    first = min(max(budget - 1, 1), len(SCALES))  # one is left for the other way, where there are two at all
    assert calls == [(NetworkRegression, scale) for scale in SCALES[:first]] + [
        (HeadRegression, scale) for scale in SCALES[: budget - first]
    ]


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 0.5), (0.7, 0.2, 0.1), (0.05, 0.95)])
def test_any_number_of_members_has_about_its_part_of_every_scale(shares: tuple[float, ...]) -> None:
    way = Averaged(tuple(Component(share, float(n), HEAD) for n, share in enumerate(shares)), ())
    for seed in range(3):
        scales = [way.component(seed, i).scale for i in range(200)]
        assert scales == [way.component(seed, i).scale for i in range(200)]
        for members in (5, 20, 200):
            for n, share in enumerate(shares):
                # The golden ratio's steps are never further off than this.
                assert abs(scales[:members].count(n) - share * members) < 1 + math.log2(members) / 2
    if len(shares) > 1:
        starts = {tuple(way.component(seed, i).scale for i in range(10)) for seed in range(10)}
        assert len(starts) > 1


def test_rescaled_keeps_the_heaviest_way_at_one_scale() -> None:
    other: Any = object.__new__(HeadRegression)
    way = Averaged((Component(0.3, 2.0, other), Component(0.7, 8.0, HEAD)), (NETWORK, HEAD)).rescaled(5.0)
    assert [(one.share, one.scale, one.conditioning) for one in way.components] == [(1.0, 5.0, HEAD)]
    assert way.ways == (NETWORK, HEAD)


def test_a_scale_is_judged_by_half_its_losses_after_the_noise_was_estimated_and_by_a_little_evidence() -> None:
    rows, validation = data(), data(seed=1, samples=30)
    model = TwoHeads()
    way = regression(model, rows, Gaussian())
    fitted = [way.fitted(way.centre) for _ in range(3)]
    way = way.with_noise(fitted[0].noise)
    ensemble = Ensemble(model, lambda i: way.placed(fitted[i], 0, i), 3)
    one = judged(fitted, (way,), 2.0, ensemble, validation)
    x, y = joined(validation)
    means, variances = ensemble(x)
    variances = variances * fitted[0].noise
    mean = means.mean(0)
    variance = variances.mean(0) + means.var(0, correction=0)
    factor = (((y - mean).square() / variance).sum().item() + 20) / (30 + 20)
    density = torch.distributions.Normal(means, (factor * variances).sqrt()).log_prob(y).logsumexp(0) - math.log(3)
    torch.testing.assert_close(one.losses, -density[:, 0], rtol=1e-4, atol=1e-4)
    assert one.conditionings[0].noise == pytest.approx(factor * fitted[0].noise, rel=1e-4)
    assert (TRUST, QUIET_ROWS) == (0.5, 2)
    support = TRUST * density.sum().item() + QUIET_ROWS * fitted[0].log_evidence / 40
    assert one.support == pytest.approx(support, rel=1e-4)
    assert one.nll == pytest.approx(-density.mean().item(), rel=1e-4)
    # Without validation data it is the evidence that counts.
    assert judged(fitted, (way,), 2.0, ensemble, []).support == pytest.approx(fitted[0].log_evidence)


def tracked_regression(outputs: int = 1, seed: int = 0) -> tuple[tradi.Posterior, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))
    rows = [(x.float(), y.float()) for x, y in data(outputs, samples=80)]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    for x, y in rows * 40:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return tracker.posterior(), rows


@pytest.mark.parametrize("seed", range(3))
def test_few_validation_rows_lean_to_quiet_scales_and_many_settle_it(seed: int) -> None:
    posterior, rows = tracked_regression(seed=seed)
    conditioned = posterior.condition(rows)
    x, y = (part.float() for part in data(samples=200, seed=7 + seed)[1])
    many = tuple(part.float() for part in data(samples=800, seed=7 + seed)[1])

    def shares(x: Tensor, y: Tensor) -> dict[float, float]:
        way = conditioned.choose_scale([(x, y)], members=3).conditioning
        assert isinstance(way, Averaged)
        return {one.scale: one.share for one in way.components}

    for few in (1, 2):
        found = shares(x[:few], y[:few])
        assert found[2.0] + found[8.0] > 0.6
        assert found[128.0] < found[32.0] < found[8.0]
        assert found[128.0] < 0.12
        assert max(found.values()) < 0.4  # they cannot tell
    assert shares(*many).get(32.0, 0.0) < 0.01


def test_validation_rows_join_the_training_rows_and_the_noise_is_remembered() -> None:
    posterior, rows = tracked_regression()
    validation = [(x.float(), y.float()) for x, y in data(seed=1)]
    fitted = posterior.fit(rows, validation, passes=20)
    way = fitted.conditioning
    assert isinstance(way, Averaged)
    assert "conditioned on 120 training rows" in str(way)
    assert fitted.scale == max(way.components, key=lambda one: one.share).scale
    assert fitted.scale_search is not None
    assert fitted.scale_search.scale == fitted.scale
    noise = sum(one.share * (one.conditioning.noise or 0) for one in way.components)
    before = posterior.condition(rows).likelihood
    assert isinstance(before, SquaredError)
    assert isinstance(fitted.likelihood, SquaredError)
    assert fitted.likelihood.variance is not None
    assert before.variance is not None
    assert fitted.likelihood.variance[0] == pytest.approx(before.variance[0] * noise)


def test_a_second_choice_begins_with_the_training_rows_again() -> None:
    posterior, rows = tracked_regression()
    validation = [(x.float(), y.float()) for x, y in data(seed=1)]
    once = posterior.fit(rows, validation)
    twice = once.choose_scale(validation)
    assert once.scale_search is not None
    assert twice.scale_search is not None
    assert twice.scale_search.nll == once.scale_search.nll  # not judged on rows that members were conditioned on
    assert str(twice.conditioning) == str(once.conditioning)
    assert twice.likelihood == once.likelihood


def test_without_validation_data_the_evidence_decides_between_scales() -> None:
    posterior, rows = tracked_regression()
    with pytest.warns(UserWarning, match="without validation data the noise is chosen on the training data"):
        fitted = posterior.fit(rows)
    way = fitted.conditioning
    assert isinstance(way, Averaged)
    assert "conditioned on 80 training rows" in str(way)
    assert fitted.scale_search is not None
    assert fitted.scale_search.samples == 0
    assert fitted.scale == 2.0  # evidence prefers quiet draws
    prediction = fitted.sample(5).predict(rows)
    assert prediction.variance.min() > 0
