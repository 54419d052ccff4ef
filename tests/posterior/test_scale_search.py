from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.ensemble.test_ensemble import Counted, X, tracked
from tests.training import Custom, problem, same
from tradi.ensemble import ensemble as ensemble_module
from tradi.likelihoods import Classification, Gaussian
from tradi.posterior import label_search
from tradi.posterior.distribution import WeightDistribution
from tradi.posterior.randomness import key
from tradi.posterior.scale_search import LARGEST, ScaleSearch, largest_accepted, search


def alike(loss: float) -> Tensor:
    """The losses of many samples without spread: what few samples cost is a thousandth of the tolerance."""
    return torch.full((20_000,), loss, dtype=torch.float64)


@pytest.mark.parametrize("best", [0.05, 0.3, 1.0, 7.0, 60.0])
@pytest.mark.parametrize("tolerance", [0.01, 0.1, 0.5])
def test_search_finds_the_largest_scale_within_the_tolerance(best: float, tolerance: float) -> None:
    losses = search(lambda scale: alike((scale / best - 1) ** 2), tolerance)
    ideal = best * (1 + math.sqrt(tolerance))
    # Two halvings, in the logarithm, of a factor 4: the next scale up, which was tried and refused, is sqrt 2 away.
    answer = largest_accepted(losses, tolerance)
    assert ideal / math.sqrt(2) <= answer <= ideal * math.sqrt(2)
    assert min(scale for scale in losses if scale > answer) == pytest.approx(answer * math.sqrt(2))


def test_no_tolerance_takes_the_best_scale_seen() -> None:
    losses = search(lambda scale: alike((scale - 3) ** 2), 0.0)
    found = largest_accepted(losses, 0.0)
    assert found == min(losses, key=lambda scale: losses[scale].mean().item())
    assert 3 / math.sqrt(2) <= found <= 3 * math.sqrt(2)


def test_noise_that_only_hurts_is_turned_off() -> None:
    assert largest_accepted(search(lambda scale: alike(scale > 0), 0.5), 0.5) == 0.0


def test_noise_that_never_hurts_stops_at_a_limit() -> None:
    assert largest_accepted(search(lambda scale: alike(1.0), 0.1), 0.1) == LARGEST


def test_a_scale_with_an_infinite_loss_is_never_chosen() -> None:
    losses = search(lambda scale: alike(math.inf if scale > 2 else 1 - 0.1 * scale), 0.01)
    assert 1.7 <= largest_accepted(losses, 0.01) <= 2.0


def test_noise_that_mends_an_infinite_loss_is_accepted() -> None:
    """A network without noise may be so sure of a wrong class that its probability is 0."""
    sure = alike(0.1)
    sure[0] = math.inf
    assert largest_accepted({0.0: sure, 1.0: alike(0.3)}, 0.002) == 1.0


def test_an_excess_counts_with_its_standard_error_and_void_samples_do_not() -> None:
    base = torch.zeros(102, dtype=torch.float64)
    base[100:] = math.nan
    excess = torch.tensor([0.09, -0.07] * 51, dtype=torch.float64)  # mean 0.01, standard error 0.08 / 10
    losses = {0.0: base, 1.0: base + excess}
    # 0.01 + 0.0804 / 10, and 20 / 100 of this error and of the tolerance, are 0.02456.
    assert largest_accepted(losses, 0.0245) == 0.0
    assert largest_accepted(losses, 0.0246) == 1.0
    many = {0.0: base.repeat(10), 1.0: (base + excess).repeat(10)}
    assert largest_accepted(many, 0.0128) == 0.0  # ten times the samples: a standard error of 0.00253, and 20 / 1000
    assert largest_accepted(many, 0.0129) == 1.0


def test_noise_may_cost_no_more_than_its_limit_beside_none() -> None:
    losses = {0.0: alike(1.0), 1.0: alike(1.004), 2.0: alike(1.008)}
    assert largest_accepted(losses, 0.01) == 2.0
    assert largest_accepted(losses, 0.01, 0.007) == 1.0
    assert largest_accepted(losses, 0.01, 0.003) == 0.0


@pytest.mark.parametrize("size", [1, 2, 5, 19, 20])
def test_few_samples_accept_noise_only_if_it_is_shown_to_help(size: int) -> None:
    even = torch.zeros(size, dtype=torch.float64)
    assert largest_accepted({0.0: even, 1.0: even}, 0.1) == (0.0 if size < 20 else 1.0)
    better = {0.0: even, 1.0: even - 2.0 + 0.1 * torch.arange(size)}
    assert largest_accepted(better, 0.1) == (0.0 if size == 1 else 1.0)  # of one sample the spread is not known


def test_a_scale_that_is_best_by_luck_is_not_chosen() -> None:
    few = torch.tensor([0.5, -0.7] * 8, dtype=torch.float64)  # mean -0.1, standard error 0.6 / 4
    losses = {0.0: 0 * few, 1.0: few}
    assert largest_accepted(losses, 0.002) == 0.0
    assert largest_accepted({scale: loss.repeat(9) for scale, loss in losses.items()}, 0.002) == 1.0  # error 0.05


def test_noise_has_to_be_harmless_beside_every_smaller_scale() -> None:
    losses = {0.0: alike(1.0), 1.0: alike(0.5), 2.0: alike(0.55), 4.0: alike(0.9)}
    assert largest_accepted(losses, 0.1) == 2.0
    assert largest_accepted(losses, 0.01) == 1.0


def test_the_choice_says_what_it_chose_and_what_it_cost_and_changes_nothing_else() -> None:
    posterior = tracked()
    before, mean = posterior.sample(2)(X), posterior.mean
    chosen = posterior.choose_scale(problem(seed=1), refresh=problem(), members=4)
    assert chosen.scale_search is not None
    assert chosen.scale == chosen.scale_search.scale
    nonzero = len(chosen.scale_search.nll) - 1
    assert chosen.scale_search.passes == 4 * nonzero + 3
    assert chosen.scale_search.tolerance == 0.001
    assert chosen.scale_search.samples == 64
    assert f"scale {chosen.scale:g}" in str(chosen.scale_search)
    assert f"{chosen.scale_search.passes} passes" in str(chosen.scale_search)
    assert posterior.scale == 1.0
    assert torch.equal(before, posterior.sample(2)(X))
    assert same(posterior.mean, mean)


def test_recorded_nll_is_that_of_an_ensemble_of_the_search_s_own_stream() -> None:
    chosen = tracked().choose_scale(problem(seed=1), refresh=problem(), members=4, seed=7)
    assert chosen.scale_search is not None
    ensemble = chosen.sample(4, seed=key("scale search", 7))  # which refreshes itself
    assert not torch.equal(ensemble(X), chosen.sample(4, seed=7)(X))  # what is judged is never what predicts
    prediction = tradi.ClassPrediction(logits=ensemble.outputs(problem(seed=1)))
    nll = -prediction.log_prob(torch.cat([y for _, y in problem(seed=1)])).mean().item()
    assert chosen.scale_search.nll[chosen.scale] == pytest.approx(nll, rel=1e-5)


@pytest.mark.parametrize("fits", [True, False])
def test_noise_is_drawn_once_a_member_where_it_fits_and_data_is_read_once(
    fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = tracked().with_covariance(tradi.FourierFeatures(prior_samples=None))  # which takes passes of its own
    expected = posterior.choose_scale(problem(seed=1), refresh=problem(), members=4).scale_search
    if not fits:
        monkeypatch.setattr(ensemble_module, "KEEP_BYTES", 0)
        monkeypatch.setattr(ensemble_module, "PART_BYTES", 0)
        monkeypatch.setattr(label_search, "KEEP_BYTES", 0)
    drawn: list[int] = []
    noise = WeightDistribution.noise
    monkeypatch.setattr(WeightDistribution, "noise", lambda self, i, seed: drawn.append(i) or noise(self, i, seed))  # type: ignore[func-returns-value]
    validation, refresh = Counted(), Counted()
    choice = posterior.choose_scale(validation, refresh=refresh, members=4).scale_search
    assert choice is not None
    assert expected is not None
    # Of what does not fit: for the refresh, and for every batch that is judged.
    assert len(drawn) == (4 if fits else (1 + len(problem())) * (choice.passes - 2))  # two without noise
    assert choice.passes == 4 * (len(choice.nll) - 1) + 3
    assert (validation.passes, refresh.passes) == (1, 1)  # into memory
    again = posterior.choose_scale(problem(), refresh=problem(), members=4).scale_search
    assert again is not None
    assert choice.nll == again.nll


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        out = self.net(x)
        return out if self.training else (out[:, :1], out[:, 1:2].exp())


def test_regression_by_mixture_nll() -> None:
    posterior = tracked(TwoHeads())
    data = [(x, x[:, :1]) for x, _ in problem()]
    chosen = posterior.choose_scale(data, members=3, seed=1)
    assert chosen.scale_search is not None
    means, variances = chosen.sample(3, seed=key("scale search", 1)).outputs(data)
    nll = -tradi.GaussianMixture(means, variances).log_prob(torch.cat([y for _, y in data])).mean().item()
    assert chosen.scale_search.nll[chosen.scale] == pytest.approx(nll, rel=1e-5)


def test_void_pixels_are_left_out() -> None:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out = self.net(x)
            return out if self.training else out[:, :, None].expand(-1, -1, 5)

    posterior = tracked(Pixels())
    labels = [(x, y[:, None].repeat(1, 5)) for x, y in problem()]
    void = [(x, y.clone()) for x, y in labels]
    for _, y in void:
        y[:, 3:] = -100
    full = posterior.choose_scale(labels, members=2).scale_search
    partial = posterior.choose_scale(void, members=2).scale_search
    assert full is not None
    assert partial is not None
    assert full.nll == pytest.approx(partial.nll)


def test_single_samples_without_a_class_are_left_out_and_images_may_differ_in_size() -> None:
    posterior = tracked(nn.Linear(4, 3))
    whole = posterior.choose_scale(problem(), members=2).scale_search
    first = [(torch.cat([x, x[:2]]), torch.cat([y, torch.tensor([-100, -1])])) for x, y in problem()]
    void = posterior.choose_scale(first, members=2).scale_search
    assert whole is not None
    assert void is not None
    assert void.nll == pytest.approx(whole.nll)

    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out = self.net(x)
            return out if self.training else out[:, :, None].expand(-1, -1, len(x))

    sizes = [(x[:n], y[:n, None].repeat(1, n)) for (x, y), n in zip(problem(), (16, 5, 9, 2), strict=True)]
    assert tracked(Pixels()).choose_scale(sizes, members=2).scale_search is not None


def test_the_choice_is_kept_in_the_file(tmp_path: Path) -> None:
    chosen = tracked(nn.Linear(4, 3)).choose_scale(problem(), members=2)
    chosen.save(tmp_path / "p")
    assert tradi.load_posterior(tmp_path / "p", nn.Linear(4, 3)).scale_search == chosen.scale_search


def test_an_answer_at_the_limits_of_the_search_is_a_warning() -> None:
    posterior = tracked(nn.Linear(4, 3))
    with pytest.warns(
        UserWarning, match="no noise up to 4096 times what was tracked does harm: was hardly any weight tracked"
    ):
        posterior.choose_scale(problem(), members=1, likelihood=Custom(lambda out, y: torch.zeros(len(y))))
    still = posterior.rescaled(0).sample(1)[0]

    def only_the_mean(out: Tensor, y: Tensor) -> Tensor:
        known = any(torch.equal(out, still(x)) for x, _ in problem())
        return torch.full((len(y),), 0.0 if known else -9.0)

    with pytest.warns(
        UserWarning, match=r"scale 0: no noise is shown to cost less.*choose_scale\(\.\.\., tolerance=\)"
    ):
        posterior.choose_scale(problem(), members=1, likelihood=Custom(only_the_mean))


def test_a_search_says_what_it_knows() -> None:
    everything = ScaleSearch(2.0, {0.0: 0.5, 2.0: 0.4, 8.0: 0.3}, 0.002, 5, 11, 1.25, head=0.5, samples=1200)
    assert str(everything) == (
        "scale 2 with validation NLL 0.4000 (best 0.3000 at 8; no noise 0.5000; noise of the head times 0.5; "
        "5 members, 11 passes in 1.2 s)"
    )
    assert everything.where == "chosen on 1,200 validation samples"
    loud = ScaleSearch(2.0, {2.0: 0.4}, 0.0, 5, 5, 0.0)  # of numbers, with a small budget
    assert str(loud) == "scale 2 with validation NLL 0.4000 (best 0.4000 at 2; 5 members, 5 passes in 0.0 s)"
    assert loud.where == "chosen on the training data alone"
    head = ScaleSearch(0.0, {}, 0.002, 5, 0, 0.0, head=1.0, temperature=1.25)  # where nothing was tracked
    assert str(head) == "scale 0 (noise of the head times 1; temperature 1.25; 5 members, 0 passes in 0.0 s)"
    for known in (everything, loud, head):
        assert ScaleSearch.unpacked(json.loads(json.dumps(known.packed()))) == known


def test_likelihoods_agree_with_torch_distributions() -> None:
    logits, labels = torch.randn(6, 3), torch.randint(3, (6,))
    expected = torch.distributions.Categorical(logits=logits).log_prob(labels)
    torch.testing.assert_close(Classification().log_prob(logits, labels), expected)
    mean, variance, y = torch.randn(6, 1), torch.rand(6, 1) + 0.1, torch.randn(6, 1)
    expected = torch.distributions.Normal(mean, variance.sqrt()).log_prob(y)
    torch.testing.assert_close(Gaussian().log_prob((mean, variance), y), expected)


def test_a_network_that_fits_nothing_is_an_error() -> None:
    posterior = tracked()
    with pytest.raises(ValueError, match="not finite at any scale"):
        posterior.choose_scale(
            problem(), refresh=problem(), likelihood=Custom(lambda out, y: torch.full((len(y),), -math.inf))
        )


def test_bad_input_names_cause_and_remedy() -> None:
    posterior = tracked()
    with pytest.raises(ValueError, match="BatchNorm: pass refresh="):
        posterior.choose_scale(problem())
    with pytest.raises(ValueError, match="tolerance must be finite and not negative, got -1"):
        posterior.choose_scale(problem(), refresh=problem(), tolerance=-1)
    with pytest.raises(ValueError, match="members must be at least 1, got 0"):
        posterior.choose_scale(problem(), refresh=problem(), members=0)
    with pytest.raises(ValueError, match="inputs alone"):
        posterior.choose_scale([X], refresh=problem())
    with pytest.raises(ValueError, match="validation gave no batches"):
        posterior.choose_scale([], refresh=problem())
    with pytest.raises(TypeError, match="validation must be iterable more than once"):
        posterior.choose_scale(iter(problem()), refresh=problem())
    with pytest.raises(TypeError, match=r"fit none of tradi\.likelihoods"):
        posterior.choose_scale([(X, X[:, :2])], refresh=problem())
    with pytest.raises(TypeError, match="refresh must be iterable more than once"):
        posterior.choose_scale(problem(), refresh=iter(problem()))
    with pytest.raises(ValueError, match="refresh gave no batches"):
        posterior.choose_scale(problem(), refresh=[])
    with pytest.raises(ValueError, match="must be below 3, got 255; negative ones are ignored"):
        posterior.choose_scale([(X, torch.full((16,), 255))], refresh=problem())
    with pytest.raises(TypeError, match=r"\(16, 1\) of torch.int64 fit none of tradi.likelihoods"):
        posterior.choose_scale([(X, torch.zeros(16, 1, dtype=torch.int64))], refresh=problem())
    with pytest.raises(TypeError, match="targets must be tensors or arrays of numbers, got list"):
        posterior.choose_scale([(X, ["0"] * 16)], refresh=problem())
    with pytest.raises(ValueError, match="look for NaN in the validation inputs"):
        posterior.choose_scale([(X * math.nan, problem()[0][1])], refresh=problem())
    with pytest.raises(ValueError, match="must have shape"):
        Gaussian().log_prob((X, X), X[:, :1])
