"""Going through a pool once, with no more of it in memory than may be chosen."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from tradi._torch import tree_leaves, tree_map
from tradi.acquisition.joint import BatchBALD
from tradi.acquisition.scores import bald, random
from tradi.ensemble.batches import as_loader, parts_of, samples_in
from tradi.ensemble.ensemble import Ensemble
from tradi.prediction.likelihoods import Likelihood
from tradi.progress import track

AT_ONCE = 1024  # samples of a tensor or of a data set that members see together
SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

Score = Callable[[Any], Tensor]


def acquire(
    ensemble: Ensemble,
    pool: Any,
    n: int,
    *,
    score: Score | BatchBALD = bald,
    seed: int = 0,
    likelihood: Likelihood | None = None,
) -> Tensor:
    """The samples of a pool whose labels would tell the most, the best first.

    The pool is read once, and of single scores only the n best are kept, of `BatchBALD` the predictions for its
    candidates. Where scores are equal, an order decides that depends on the seed and on the inputs themselves, not on
    batches. Samples with the same inputs, bit for bit, are copies: while n can be reached without, no two are chosen.

    Args:
        ensemble: whose members are asked; anything whose `predict` takes a list of batches.
        pool: inputs (a tensor, an array, or a dict of them), a `Dataset`, or a loader, in a fixed order. Targets in it
            are passed over. A loader's batches are predicted one by one, other pools 1,024 samples at a time.
        n: how many to choose.
        score: of single samples, a function of a prediction such as `tradi.acquisition.bald`, `random` or those of
            `tradi.metrics`; where it gives a number for every pixel or token, their mean counts. Or `BatchBALD()`.
        seed: of the order of equal scores, and of what `BatchBALD` draws.
        likelihood: what outputs mean, if it is another than the ensemble's.

    Returns:
        (n,) places in the pool, counted from 0.

    Raises:
        TypeError: if the pool is none of these, or `BatchBALD` cannot take its predictions.
        ValueError: if n is below 1 or above the size of the pool, the loader shuffles, or a score is not a number.
    """
    n = operator.index(n)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    joint = isinstance(score, BatchBALD)
    wanted = max(n, score.candidates) if isinstance(score, BatchBALD) else n
    rank = bald if isinstance(score, BatchBALD) else score
    best, total = _Candidates.none(), 0
    for batch in track(_loader(pool), "acquiring"):
        inputs, target = tree_map(_as_tensor, parts_of(batch, "pool"))
        prediction = None if rank is random else ensemble.predict([batch], likelihood=likelihood)
        scores = torch.zeros(samples_in((inputs, target))) if prediction is None else _one_each(rank(prediction))
        best = best.joined(_Candidates.of(inputs, scores, prediction if joint else None, total, seed)).first(wanted)
        total += len(scores)
    if n > total:
        raise ValueError(f"n must be at most the pool's {total} samples, got {n}")
    return best.chosen(score, n, seed) if isinstance(score, BatchBALD) else torch.from_numpy(best.place[:n])


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Samples that may be chosen, in the order of their rank.

    Args:
        place: in the pool.
        score: of each.
        mark: 64 bits that stand for the inputs and the seed: equal for copies, and an order among equal scores.
        prediction: of these samples, where the choice needs it.
    """

    place: NDArray[np.int64]
    score: NDArray[np.float64]
    mark: NDArray[np.uint64]
    prediction: Any = None

    @classmethod
    def none(cls) -> _Candidates:
        return cls(np.empty(0, np.int64), np.empty(0), np.empty(0, np.uint64))

    @classmethod
    def of(cls, inputs: Any, scores: Tensor, prediction: Any, start: int, seed: int) -> _Candidates:
        """All samples of a batch that starts at a place of the pool."""
        places = np.arange(start, start + len(scores))
        return cls(places, scores.double().cpu().numpy(), _marks(inputs, places, seed), prediction)

    @property
    def copies(self) -> NDArray[np.int64]:
        """How many samples before each have the same inputs."""
        order = np.argsort(self.mark, kind="stable")
        marks, numbers = self.mark[order], np.arange(len(order))
        first = np.r_[True, marks[1:] != marks[:-1]] if len(order) else np.empty(0, bool)
        copies = np.empty_like(numbers)
        copies[order] = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
        return copies

    def joined(self, other: _Candidates) -> _Candidates:
        """These and others that come later in the pool."""
        place = np.concatenate([self.place, other.place])
        score = np.concatenate([self.score, other.score])
        mark = np.concatenate([self.mark, other.mark])
        if self.prediction is None:
            return _Candidates(place, score, mark, other.prediction)
        both = zip(_columns(self.prediction), _columns(other.prediction), strict=True)
        prediction = type(self.prediction)(*(torch.cat(pair, 1) for pair in both))
        return _Candidates(place, score, mark, prediction)

    def first(self, n: int) -> _Candidates:
        """The n of the highest rank: copies last, then by score, then by mark."""
        order = np.lexsort((self.mark, -self.score, self.copies))[:n]
        kept, prediction = torch.from_numpy(order), self.prediction
        if prediction is not None:
            prediction = type(prediction)(*(column[:, kept.to(column.device)] for column in _columns(prediction)))
        return _Candidates(self.place[order], self.score[order], self.mark[order], prediction)

    def chosen(self, score: BatchBALD, n: int, seed: int) -> Tensor:
        """The places of a batch; of all that are no copies if they suffice, and with so many copies as are missing."""
        enough = max(n, int((self.copies == 0).sum()))
        return torch.from_numpy(self.place)[score.choose(self.first(enough).prediction, n, seed).places]


def _columns(prediction: Any) -> list[Tensor]:
    """The tensors that a prediction is made from, each (members, samples, ...)."""
    return [getattr(prediction, field.name) for field in fields(prediction)]


def _one_each(scores: Tensor) -> Tensor:
    scores = scores.detach().flatten(1).mean(1) if scores.ndim > 1 else scores.detach()
    if scores.isnan().any():
        raise ValueError("a score is not a number (NaN)")
    return scores


def _marks(inputs: Any, places: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A hash of every sample's inputs; where these are not rows of tensors, of its place, and no two are copies."""
    leaves = [leaf.detach().cpu() for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim]
    rows = [leaf.reshape(len(places), -1) for leaf in leaves if len(leaf) == len(places)]
    if not rows:
        rows = [torch.from_numpy(places)[:, None]]
    content = [row.contiguous().view(torch.uint8).numpy() for row in rows]
    key = seed.to_bytes(8, "little", signed=True)
    found = (blake2b(b"".join(row[i].tobytes() for row in content), digest_size=8, key=key) for i in range(len(places)))
    return np.frombuffer(b"".join(one.digest() for one in found), np.uint64)


def _loader(pool: Any) -> Iterable[Any]:
    """Batches of a pool in its order."""
    if isinstance(pool, Dataset):
        return DataLoader(pool, AT_ONCE)
    if isinstance(pool, Tensor | np.ndarray | Mapping):
        return _split(pool)
    if isinstance(pool, DataLoader):
        samplers = (pool.sampler, getattr(pool.batch_sampler, "sampler", None))
        if any(isinstance(sampler, SHUFFLING) for sampler in samplers):
            raise ValueError("the pool's loader shuffles, so places in it mean nothing: pass shuffle=False")
    loader: Iterable[Any] = as_loader(pool, "pool")
    return loader


def _split(pool: Any) -> Iterator[Any]:
    """A tensor, an array or a dict of them, so many samples at a time."""
    size = len(next(iter(pool.values())) if isinstance(pool, Mapping) else pool)
    for start in range(0, size, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        yield {name: value[part] for name, value in pool.items()} if isinstance(pool, Mapping) else pool[part]


def _as_tensor(leaf: Any) -> Any:
    return torch.as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
