"""Going through a pool once, with no more of it in memory than may be chosen."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
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
DIGITS = 6  # after the point that `bald` has in single precision: members that are all alike differ in the seventh

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
    candidates. Where scores are equal (those of `bald` to within 1e-6), an order decides that depends on the seed and
    on the inputs themselves, not on batches; a warning says so if all are equal. Samples with the same inputs, bit for
    bit, are copies: while n can be reached without, no two are chosen.

    Args:
        ensemble: whose members are asked; anything whose `predict` takes a list of batches.
        pool: inputs (a tensor, an array, or a dict of them), a `Dataset`, or a loader, in a fixed order. Targets in it
            are passed over. A loader's batches are predicted one by one, other pools 1,024 samples at a time.
        n: how many to choose.
        score: of single samples, a function of a prediction such as `tradi.acquisition.bald`, `random` or those of
            `tradi.metrics`, that gives (batch,) numbers; where it gives one for every pixel or token, (batch, ...),
            their mean counts. Or `BatchBALD()`.
        seed: of the order of equal scores, and of what `BatchBALD` draws.
        likelihood: what outputs mean, if it is another than the ensemble's.

    Returns:
        (n,) places in the pool, counted from 0.

    Raises:
        TypeError: if the ensemble, the pool or the score is none of these, n or the seed is no whole number, or
            `BatchBALD` cannot take the predictions.
        ValueError: if n is below 1 or above the size of the pool, the loader shuffles or leaves samples out, scores are
            not one for each sample, or one is not a number.
    """
    n, seed = operator.index(n), operator.index(seed)
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    _check(ensemble, score)
    joint = isinstance(score, BatchBALD)
    wanted = max(n, score.candidates) if isinstance(score, BatchBALD) else n
    rank = bald if isinstance(score, BatchBALD) else score
    best, total, low, high = _Candidates.none(), 0, np.inf, -np.inf
    for batch in track(_loader(pool), "acquiring"):
        inputs, target = tree_map(_as_tensor, parts_of(batch, "pool"))
        prediction = None if rank is random else ensemble.predict([batch], likelihood=likelihood)
        size = samples_in((inputs, target)) if prediction is None else _size(prediction, inputs, target)
        scores = np.zeros(size) if prediction is None else _one_each(rank(prediction), size)
        low, high = min(low, scores.min(initial=low)), max(high, scores.max(initial=high))
        scores = scores.round(DIGITS) if rank is bald else scores
        best = best.joined(_Candidates.of(inputs, scores, prediction if joint else None, total, seed)).first(wanted)
        total += size
    if n > total:
        raise ValueError(f"n must be at most the pool's {total} samples, got {n}")
    alike = high - low < 10.0**-DIGITS if rank is bald else high == low
    if alike and n < total and rank is not random:
        warnings.warn(
            f"the scores of all {total} samples are equal up to rounding ({low:.2g} to {high:.2g}), so chance decides; "
            "if they are about 0, members are all alike: one network, or noise of scale 0, which more validation data "
            "may change",
            stacklevel=2,
        )
    if isinstance(score, BatchBALD) and not alike:
        return best.chosen(score, n, seed)
    return torch.from_numpy(best.place[:n])


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
    def of(cls, inputs: Any, scores: NDArray[np.float64], prediction: Any, start: int, seed: int) -> _Candidates:
        """All samples of a batch that starts at a place of the pool."""
        places = np.arange(start, start + len(scores))
        return cls(places, scores, _marks(inputs, places, seed), prediction)

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


def _check(ensemble: Any, score: Any) -> None:
    if not callable(getattr(ensemble, "predict", None)):
        raise TypeError(
            f"acquire asks the members of an ensemble, got {type(ensemble).__name__}: call .sample() first, such as "
            "posterior.sample(20)"
        )
    if isinstance(score, type) or not (callable(score) or isinstance(score, BatchBALD)):
        got = f"the class {score.__name__}" if isinstance(score, type) else repr(score)
        raise TypeError(
            f"score must be a function of a prediction, such as tradi.acquisition.bald, or BatchBALD(), got {got}"
        )


def _size(prediction: Any, inputs: Any, target: Any) -> int:
    """How many samples a prediction is of, which are those of the inputs where these are a tensor."""
    given = samples_in((inputs, target))
    if not is_dataclass(prediction):
        return given
    shape = _columns(prediction)[0].shape  # (members, samples, ...)
    if len(shape) < 2 or (isinstance(inputs, Tensor) and shape[1] != given):
        raise ValueError(
            f"members' outputs, {tuple(shape)}, are not one for each of the pool's {given} samples: inputs have an "
            "axis of samples first, such as x[None] for a single one"
        )
    return shape[1]


def _one_each(scores: Any, size: int) -> NDArray[np.float64]:
    """A number for each of so many samples, the mean of those that it has."""
    scores = _as_tensor(scores)
    if not isinstance(scores, Tensor) or scores.is_complex():
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"score must give a tensor of real numbers, ({size},), got {got}")
    if not scores.ndim or len(scores) != size:
        raise ValueError(
            f"score must give one number for each of {size} samples, ({size},) or ({size}, ...), got the shape "
            f"{tuple(scores.shape)}"
        )
    found = scores.detach().double().cpu()
    if found.isnan().any():
        raise ValueError("a score is not a number (NaN)")
    return (found.flatten(1).mean(1) if found.ndim > 1 else found).numpy()


def _marks(inputs: Any, places: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A hash of every sample's inputs; where these are not rows of tensors, of its place, and no two are copies."""
    leaves = [leaf.detach().cpu() for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.ndim]
    rows = [leaf.reshape(len(places), -1) for leaf in leaves if len(leaf) == len(places)]
    if not rows:
        rows = [torch.from_numpy(places)[:, None]]
    content = [row.contiguous().view(torch.uint8).numpy() for row in rows]
    key = seed.to_bytes(max(8, seed.bit_length() // 8 + 1), "little", signed=True)
    found = (blake2b(b"".join(row[i].tobytes() for row in content), digest_size=8, key=key) for i in range(len(places)))
    return np.frombuffer(b"".join(one.digest() for one in found), np.uint64)


def _loader(pool: Any) -> Iterable[Any]:
    """Batches of a pool in its order."""
    if hasattr(pool, "to_numpy"):
        raise TypeError(f"pool must be numbers, got {type(pool).__name__}: pass its .to_numpy(), as for training")
    if isinstance(pool, Dataset):
        return DataLoader(pool, AT_ONCE)
    if isinstance(pool, Tensor | np.ndarray | Mapping):
        return _split(pool)
    if isinstance(pool, DataLoader):
        samplers = (pool.sampler, getattr(pool.batch_sampler, "sampler", None))
        if any(isinstance(sampler, SHUFFLING) for sampler in samplers):
            raise ValueError("the pool's loader shuffles, so places in it mean nothing: pass shuffle=False")
        if getattr(pool.batch_sampler, "drop_last", False):
            raise ValueError("the pool's loader leaves out the last samples of its data: pass drop_last=False")
    loader: Iterable[Any] = as_loader(pool, "pool")
    return loader


def _split(pool: Any) -> Iterator[Any]:
    """A tensor, an array or a dict of them, so many samples at a time."""
    one: Any = next(iter(pool.values()), None) if isinstance(pool, Mapping) else pool
    if not getattr(one, "shape", ()):
        raise ValueError("pool has no axis of samples: pass (samples, ...), or a dict of such by the inputs' names")
    size = len(one)
    for start in range(0, size, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        yield {name: value[part] for name, value in pool.items()} if isinstance(pool, Mapping) else pool[part]


def _as_tensor(leaf: Any) -> Any:
    return torch.as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf
