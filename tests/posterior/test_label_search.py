from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tradi
from tests.ensemble.test_ensemble import tracked
from tests.training import Batches, problem, same, snapshot
from tradi.likelihoods import Classification, Gaussian
from tradi.posterior.covariance import Independent
from tradi.posterior.distribution import WeightDistribution
from tradi.posterior.label_search import LabelSearch, SearchedRun
from tradi.posterior.laplace import LaplaceHead
from tradi.posterior.randomness import key
from tradi.posterior.runner import Runner


def noisy(samples: int, seed: int) -> Batches:
    """The small problem, with a tenth of the labels wrong: noise can help and can hurt."""
    (x, y), generator = problem(samples, samples, seed)[0], torch.Generator().manual_seed(seed)
    other = torch.randint(0, 3, (samples,), generator=generator)
    return [(x, torch.where(torch.rand(samples, generator=generator) < 0.1, other, y))]


def trained(seed: int) -> tradi.Posterior:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    ((x, y),) = noisy(200, seed)
    for i in range(100):
        optimizer.zero_grad()
        rows = slice(20 * (i % 10), 20 * (i % 10) + 20)
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    return tracker.posterior().condition(noisy(200, seed))


def scales(posterior: tradi.Posterior, validation: Batches, **options: Any) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = posterior.choose_scale(validation, **options).scale_search
    assert found is not None
    assert found.head is not None
    return found.scale, found.head


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_few_rows_never_give_louder_noise_than_many_of_the_same_kind(seed: int) -> None:
    posterior, ((x, y),) = trained(seed), noisy(2000, 100 + seed)
    for count in (1, 2, 5):
        scale, head = scales(posterior, [(x[:count], y[:count])])
        assert scale == 0
        assert head <= 0.5  # two wrong labels among two rows are a lot


def test_thirty_rows_never_give_louder_noise_than_many_and_what_they_give_does_no_harm() -> None:
    louder, admitted, harm = 0, 0, 0.0
    for seed in SEEDS:
        posterior, ((x, y),) = trained(seed), noisy(2000, 100 + seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            few, many = (posterior.choose_scale([(x[:n], y[:n])]) for n in (30, 2000))
        louder += few.scale > many.scale
        admitted += many.scale > 0
        ((x, y),) = noisy(2000, 200 + seed)
        losses = [-one.sample(20).predict(x).log_prob(y).mean().item() for one in (few, few.rescaled(0.0))]
        harm += (losses[0] - losses[1]) / len(SEEDS)
    assert harm < 0.002
    assert louder == 0
    assert admitted > len(SEEDS) / 2


def test_the_heads_own_noise_is_chosen_first_and_judged_with_the_rest() -> None:
    posterior = trained(0)
    chosen = posterior.choose_scale(noisy(1000, 7), members=4, seed=3)
    search = chosen.scale_search
    assert search is not None
    assert isinstance(chosen.conditioning, LaplaceHead)
    assert chosen.conditioning.spread == search.head
    assert search.passes == 2 + 4 * (len(search.nll) - (0 if search.head else 1)) + (0 if search.head else 1)
    judges = chosen.sample(4, seed=key("scale search", 3))
    ((x, y),) = noisy(1000, 7)
    nll = -judges.predict(x).log_prob(y).mean().item()
    assert search.nll[chosen.scale] == pytest.approx(nll, rel=1e-5)
    assert not torch.equal(judges(x), chosen.sample(4, seed=3)(x))


def test_a_posterior_at_scale_0_keeps_the_noise_of_its_head_alone() -> None:
    posterior = trained(0)
    quiet = posterior.rescaled(0.0)
    members: Any = list(quiet.sample(3))
    for name, mean in posterior.mean.items():
        values = [dict(member.named_parameters())[name] for member in members]
        assert all(torch.equal(value, values[0]) for value in values) == (not name.startswith("2."))
        if not name.startswith("2."):
            assert torch.equal(values[0], mean)


@pytest.mark.parametrize("passes", [1, 5, 11, 21])
def test_passes_bound_the_search(passes: int) -> None:
    chosen = trained(0).choose_scale(noisy(500, 7), members=5, passes=passes)
    assert chosen.scale_search is not None
    # Scales 0 and 1 are looked at in any case.
    assert chosen.scale_search.passes <= max(passes, 12)
    with pytest.raises(ValueError, match="passes must be at least 1, got 0"):
        trained(0).choose_scale(noisy(500, 7), passes=0)


def test_batchnorm_of_a_classifier_is_refreshed_while_scales_are_compared() -> None:
    posterior = tracked().condition(problem())
    before = snapshot(posterior.model)
    chosen = posterior.choose_scale(problem(samples=400, seed=1), members=3)
    assert chosen.refresh is not None
    assert same(before, snapshot(posterior.model))
    member: Any = chosen.rescaled(3.0).sample(1)[0]
    trained_norm: Any = posterior.model
    assert not torch.equal(member[1].running_mean, trained_norm[1].running_mean)
    with torch.no_grad():
        assert chosen.sample(2)(problem()[0][0]).isfinite().all()


def test_noise_may_cost_sure_networks_a_share_of_their_nll_and_several_runs_less() -> None:
    task, posterior = Classification(), trained(0)
    run = SearchedRun(Runner(posterior.model), WeightDistribution([], Independent()), None)
    one, two = (LabelSearch([run] * runs, task, None, 5, 0.001, 0) for runs in (1, 2))
    assert [one._limit(nll) for nll in (0.0, 0.02, 0.05, 1.0)] == pytest.approx([0.0, 0.0004, 0.001, 0.001])
    assert [two._limit(nll) for nll in (0.0, 0.02, 0.2, 1.0)] == pytest.approx([0.0, 0.0001, 0.001, 0.001])
    assert LabelSearch([run], Gaussian(), None, 5, 0.001, 0)._limit(0.02) == math.inf
