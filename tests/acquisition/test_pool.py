"""Pools of every form, larger than what is kept of them, with equal scores and with copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tradi
from tradi import Ensemble, GaussianMixture, metrics
from tradi.acquisition import BatchBALD, bald, greedy_classes, random
from tradi.methods import DeepEnsemble, SingleNetwork
from tradi.models import GaussianHead


def ensemble_of(*models: nn.Module) -> Ensemble:
    return DeepEnsemble(list(models)).sample()


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    torch.manual_seed(0)
    members = ensemble_of(*(nn.Linear(4, 3) for _ in range(6)))
    members.likelihood = tradi.likelihoods.Classification()
    return members


X = torch.randn(3000, 4, generator=torch.Generator().manual_seed(1))


class Stream:
    """Batches that are made when they are asked for, once."""

    def __init__(self, x: Tensor, size: int = 7) -> None:
        self.x, self.size, self.read = x, size, 0

    def __iter__(self) -> Iterator[Tensor]:
        for part in self.x.split(self.size):
            self.read += len(part)
            yield part


SCORES = {
    "bald": bald,
    "entropy": metrics.predictive_entropy,
    "confidence": metrics.one_minus_confidence,
    "the second class": lambda prediction: prediction.probs[:, 1],
}


@pytest.mark.parametrize("score", SCORES)
def test_the_highest_scores_of_all_are_chosen_in_order(score: str, ensemble: Ensemble) -> None:
    chosen = tradi.acquire(ensemble, X, 50, score=SCORES[score])
    scores = SCORES[score](ensemble.predict(X))
    torch.testing.assert_close(scores[chosen], scores.sort(descending=True).values[:50])
    assert len(set(chosen.tolist())) == 50


class Rows(Dataset[Tensor]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Tensor:
        return X[i]


POOLS: dict[str, Any] = {
    "array": X.numpy(),
    "data set": Rows(),
    "data set with targets": TensorDataset(X, torch.zeros(len(X), dtype=torch.long)),
    "loader": DataLoader(Rows(), 100),
    "list of batches": list(X.split(999)),
    "batches with targets": [(part, torch.zeros(len(part), dtype=torch.long)) for part in X.split(500)],
    "dict": {"input": X},
    "dict of arrays": {"input": X.numpy()},
    "generator": (part for part in X.split(80)),
}


@pytest.mark.parametrize("form", POOLS)
def test_pools_of_every_form_give_the_same(form: str, ensemble: Ensemble) -> None:
    assert torch.equal(tradi.acquire(ensemble, POOLS[form], 20), tradi.acquire(ensemble, X, 20))


@pytest.mark.parametrize("score", [bald, random])
def test_a_stream_is_read_once_and_the_choice_is_not_of_its_batches(score: Any, ensemble: Ensemble) -> None:
    stream = Stream(X)
    chosen = tradi.acquire(ensemble, stream, 30, score=score)
    assert stream.read == len(X)
    assert torch.equal(chosen, tradi.acquire(ensemble, X, 30, score=score))


def test_what_is_kept_of_a_long_stream_does_not_grow(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    from tradi.acquisition.pool import _Candidates

    sizes = []
    first = _Candidates.first

    def seen(self: _Candidates, n: int) -> _Candidates:
        kept = first(self, n)
        sizes.append((len(kept.place), kept.prediction.logits.shape[1]))
        return kept

    monkeypatch.setattr(_Candidates, "first", seen)
    tradi.acquire(ensemble, Stream(X, 50), 5, score=BatchBALD(candidates=40))
    assert max(sizes) == (40, 40)


def test_equal_scores_are_ordered_by_chance_that_the_seed_decides(ensemble: Ensemble) -> None:
    def equal(prediction: Any) -> Tensor:
        return torch.zeros(len(prediction.labels))

    with pytest.warns(UserWarning, match="all 3000 samples are equal"):
        one, again, other = (tradi.acquire(ensemble, X, 500, score=equal, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert torch.equal(one, tradi.acquire(ensemble, X, 500, score=random))  # which runs no network
    assert not torch.equal(one, other)
    # Uniform over the pool: the mean place has a standard error of 39, and about 83 are shared by chance.
    assert abs(one.double().mean() - 1500) < 4 * 39
    assert len(set(one.tolist()) & set(other.tolist())) < 140


@pytest.mark.parametrize("score", [bald, random, BatchBALD(candidates=12), BatchBALD(candidates=200)])
def test_copies_are_chosen_when_nothing_else_is_left_and_not_before(score: Any, ensemble: Ensemble) -> None:
    distinct = X[:10]
    pool = distinct.repeat(5, 1)[torch.randperm(50, generator=torch.Generator().manual_seed(0))]
    for size in (1, 3, 50):
        chosen = tradi.acquire(ensemble, list(pool.split(size)), 10, score=score)
        assert len({tuple(row.tolist()) for row in pool[chosen]}) == 10
    more = tradi.acquire(ensemble, pool, 14, score=score)
    assert len(set(more.tolist())) == 14
    assert len({tuple(row.tolist()) for row in pool[more]}) == 10


def test_inputs_of_two_parts_are_copies_where_both_parts_are() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(a + b)

    members = ensemble_of(Sum(), Sum())
    members.likelihood = tradi.likelihoods.Classification()
    pool = {"a": torch.tensor([[0.0], [0], [1]]), "b": torch.tensor([[2.0], [2], [1]])}  # all scores are equal
    with pytest.warns(UserWarning, match="equal up to rounding"):
        assert len(set(tradi.acquire(members, pool, 2).tolist()) & {0, 1}) == 1


def test_joint_choices_are_among_the_candidates_and_those_of_the_greedy_batch(ensemble: Ensemble) -> None:
    single = tradi.acquire(ensemble, X, 40)
    chosen = tradi.acquire(ensemble, Stream(X), 6, score=BatchBALD(candidates=40))
    probs = ensemble.predict(X[single]).member_log_probs.exp()
    assert chosen.tolist() == single[greedy_classes(probs, 6).places].tolist()
    assert chosen.tolist() != single[:6].tolist()
    assert len(tradi.acquire(ensemble, X, 9, score=BatchBALD(candidates=3))) == 9


def test_numbers_are_scored_by_the_share_of_disagreement_in_the_variance() -> None:
    torch.manual_seed(0)
    members = ensemble_of(*(GaussianHead(nn.Linear(4, 8), 8) for _ in range(5)))
    members.likelihood = tradi.likelihoods.Gaussian()
    found: GaussianMixture = members.predict(X)
    information = ((found.epistemic + found.aleatoric) / found.aleatoric).log() / 2
    expected = information[:, 0].topk(10).indices
    assert tradi.acquire(members, X, 10).tolist() == expected.tolist()
    assert random(found).shape == information.shape
    by_variance = tradi.acquire(members, X, 10, score=metrics.variance_of_mean)
    assert by_variance.tolist() == found.epistemic[:, 0].topk(10).indices.tolist()
    assert len(tradi.acquire(members, X, 5, score=BatchBALD(candidates=20))) == 5


def test_scores_of_pixels_are_averaged_over_them() -> None:
    torch.manual_seed(0)
    members = ensemble_of(*(nn.Conv2d(1, 3, 1) for _ in range(3)))
    members.likelihood = tradi.likelihoods.Classification()
    images = torch.randn(20, 1, 5, 5)
    expected = members.predict(images).mutual_information.mean((1, 2)).topk(4).indices
    assert tradi.acquire(members, images, 4).tolist() == expected.tolist()


def test_what_cannot_be_is_refused(ensemble: Ensemble) -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        tradi.acquire(ensemble, X, 0)
    with pytest.raises(ValueError, match="at most the pool's 3 samples, got 4"):
        tradi.acquire(ensemble, X[:3], 4)
    for loader in (DataLoader(Rows(), 10, shuffle=True), DataLoader(Rows(), batch_sampler=shuffling())):
        with pytest.raises(ValueError, match="shuffle=False"):
            tradi.acquire(ensemble, loader, 4)
    with pytest.raises(TypeError, match="pool is a tuple"):
        tradi.acquire(ensemble, (X, X), 4)
    with pytest.raises(ValueError, match="NaN"):
        tradi.acquire(ensemble, X, 4, score=lambda prediction: prediction.entropy * torch.nan)


def shuffling() -> Any:
    sampler = torch.utils.data.RandomSampler(range(len(X)))
    return torch.utils.data.BatchSampler(sampler, 10, drop_last=False)


@pytest.mark.parametrize("score", [bald, BatchBALD(candidates=30)])
def test_members_that_are_all_alike_leave_the_choice_to_chance_with_a_warning(score: Any) -> None:
    torch.manual_seed(0)
    alike = SingleNetwork(nn.Linear(4, 3)).sample(3, likelihood=tradi.likelihoods.Classification())
    assert 0 < alike.predict(X).mutual_information.max() < 1e-6  # rounding
    with pytest.warns(UserWarning, match="so chance decides; if they are about 0, members are all alike") as caught:
        chosen = tradi.acquire(alike, list(X.split(1000)), 20, score=score)
    assert len(caught) == 1
    assert torch.equal(chosen, tradi.acquire(alike, X, 20, score=random))
    assert len(tradi.acquire(alike, X[:5], 5, score=score)) == 5  # all of them: nothing is left to chance


WRONG_SCORES: dict[str, Any] = {
    "too few": (lambda p: p.entropy[:5], ValueError, r"each of 30 samples, \(30,\).* got the shape \(5,\)"),
    "an axis first": (lambda p: p.entropy[None], ValueError, r"got the shape \(1, 30\)"),
    "one of all": (lambda p: p.entropy.mean(), ValueError, r"got the shape \(\)"),
    "a list": (lambda p: p.entropy.tolist(), TypeError, r"\(30,\), got list"),
    "complex": (lambda p: p.entropy.to(torch.complex64), TypeError, "got torch.complex64"),
    "a name": ("bald", TypeError, "got 'bald'"),
    "a class": (BatchBALD, TypeError, "got the class BatchBALD"),
}


@pytest.mark.parametrize("kind", WRONG_SCORES)
def test_a_score_is_one_number_for_each_sample(kind: str, ensemble: Ensemble) -> None:
    score, error, match = WRONG_SCORES[kind]
    with pytest.raises(error, match=match):
        tradi.acquire(ensemble, X[:30], 2, score=score)


def test_a_score_may_be_an_array(ensemble: Ensemble) -> None:
    by_array = tradi.acquire(ensemble, X, 9, score=lambda prediction: prediction.entropy.numpy())
    assert torch.equal(by_array, tradi.acquire(ensemble, X, 9, score=metrics.predictive_entropy))


class Frame:
    """What a table of pandas is to `acquire`."""

    def to_numpy(self) -> Any:
        return X.numpy()


WRONG_POOLS: dict[str, Any] = {
    "nothing": ({}, ValueError, "no axis of samples"),
    "a number": (torch.tensor(1.0), ValueError, "no axis of samples"),
    "a table": (Frame(), TypeError, r"got Frame: pass its .to_numpy\(\)"),
    "a sample": (X[0], ValueError, r"give the ensemble a batch"),
    "a batch that is a sample": ([X[0]], ValueError, r"give the ensemble a batch"),
    "what drops the rest": (DataLoader(Rows(), 7, drop_last=True), ValueError, "pass drop_last=False"),
}


@pytest.mark.parametrize("kind", WRONG_POOLS)
def test_a_pool_has_samples_that_are_all_there(kind: str, ensemble: Ensemble) -> None:
    pool, error, match = WRONG_POOLS[kind]
    with pytest.raises(error, match=match):
        tradi.acquire(ensemble, pool, 1)


def test_a_network_that_does_not_keep_the_samples_apart_is_refused() -> None:
    class Together(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.flatten(), torch.ones(x.numel())

    members = ensemble_of(Together(), Together())
    members.likelihood = tradi.likelihoods.Gaussian()
    with pytest.raises(ValueError, match=r"\(2, 120\), are not one for each of the pool's 30 samples"):
        tradi.acquire(members, X[:30], 1, score=metrics.variance_of_mean)


def test_only_an_ensemble_is_asked() -> None:
    for wrong in (nn.Linear(4, 3), DeepEnsemble([nn.Linear(4, 3)])):
        with pytest.raises(TypeError, match=rf"got {type(wrong).__name__}: call .sample\(\) first"):
            tradi.acquire(wrong, X, 1)  # type: ignore[arg-type]


def test_seeds_are_whole_numbers_of_any_size(ensemble: Ensemble) -> None:
    expected = tradi.acquire(ensemble, X, 50, score=random, seed=3)
    assert torch.equal(tradi.acquire(ensemble, X, 50, score=random, seed=np.int64(3)), expected)
    assert not torch.equal(tradi.acquire(ensemble, X, 50, score=random, seed=2**70 + 3), expected)
    assert len(tradi.acquire(ensemble, X[:20], 6, score=BatchBALD(configurations=5), seed=2**70)) == 6
    for wrong in (None, 1.5):
        with pytest.raises(TypeError, match="integer"):
            tradi.acquire(ensemble, X, 1, seed=wrong)  # type: ignore[arg-type]
