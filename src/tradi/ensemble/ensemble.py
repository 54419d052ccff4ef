"""The ensemble: members of one architecture, run one after another."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.batches import Caller, Pair, as_loader, batches, check_reiterable, in_parts, naming_types
from tradi.ensemble.batchnorm import paired, refreshed, running_layers, statistics_of
from tradi.ensemble.copying import Snapshot, copied
from tradi.ensemble.files import naming, read, write
from tradi.ensemble.joining import appended, concatenated, joined, put, room, stacked
from tradi.ensemble.packing import packed, unpacked
from tradi.ensemble.parameter_swap import SwappedIn
from tradi.ensemble.serving import ServingModule
from tradi.ensemble.stages import Stages
from tradi.prediction.likelihoods import Likelihood, check_likelihood, task_of
from tradi.progress import track
from tradi.sharding import local

KEEP_BYTES = 1 << 28  # of members' own weights that are kept between calls, unless the user says otherwise
PART_BYTES = 1 << 28  # of a data set that members take turns over

State = dict[str, Tensor]
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


class Ensemble:
    """Members of one architecture with weights of their own, run one after another.

    Threads may share it: each runs members in a module of its own, around the same weights.

    `keep_bytes`, which may be set, is how many bytes of members' weights are kept once drawn. Only what members do not
    have in common counts. Members that do not fit are drawn again at every call.

    Args:
        model: gives the architecture and whatever a member does not draw. It must belong to the ensemble alone, but
            for parameters that nobody changes.
        draw: weights of member i, by parameter name: a function of i and nothing else.
        size: number of members.
        trained: what the networks that members were drawn around hold in place of the model's own; member i belongs to
            number i modulo their count. BatchNorm's statistics are refreshed relative to theirs; where none are known
            they cannot be.
        moved: the members' weights are not those that BatchNorm's statistics belong to, so a refresh is due.
        refresh: training data that the statistics are recomputed on at first use; None leaves that to `refresh()`.
        likelihood: what outputs mean; `predict` needs it.

    Raises:
        ValueError: if `size` is below 1.
    """

    def __init__(
        self,
        model: nn.Module,
        draw: Callable[[int], State],
        size: int,
        *,
        trained: Sequence[State] = ({},),
        moved: bool = False,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        size = operator.index(size)
        if size < 1:
            raise ValueError(f"an ensemble needs at least 1 member, got {size}")
        if refresh is not None:
            check_reiterable(refresh, "refresh")
        self.likelihood = likelihood
        self.keep_bytes = KEEP_BYTES
        self._snapshot = Snapshot(model.eval())
        self._model = model
        self._draw = draw
        self._size = size
        self._trained = trained
        self._stale = moved and bool(running_layers(model))
        self._refresh = refresh
        self._shared = {name: p.detach() for name, p in model.named_parameters()}
        self._buffers = dict(model.named_buffers())
        self._statistics: dict[int, State] = {}
        self._kept: dict[int, State] = {}
        self._kept_bytes = 0
        self._caller = Caller(model)
        self._stages = Stages(model)
        self._lock = threading.RLock()  # one thread draws or refreshes

    def __repr__(self) -> str:
        weights = sum(parameter.numel() for parameter in self._model.parameters())
        parts = [f"{self._size} members of {type(self._model).__name__}", f"{weights:,} weights each"]
        if self.likelihood is not None:
            parts.append(repr(self.likelihood))
        if running_layers(self._model):
            due = "is refreshed at first use" if self._refresh is not None else "is not refreshed"
            parts.append(f"BatchNorm {due if self._stale else 'is up to date'}")
        return f"Ensemble({', '.join(parts)})"

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, of which a copy gets its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[nn.Module]:
        return (self[i] for i in range(self._size))

    def __getitem__(self, i: int) -> nn.Module:
        """Member i as an ordinary module of its own, in eval mode.

        Frozen weights that it did not draw are shared: train them in `copy.deepcopy(ensemble[i])` alone.

        Raises:
            IndexError: if there is no such member.
        """
        i = self._index(i)
        self._make_ready()
        with torch.inference_mode(False), torch.no_grad():
            own = self._own(i)
            module = copied(self._model, own=own)
            tensors = dict(module.named_parameters()) | dict(module.named_buffers())
            for name, value in own.items():
                tensors[name].copy_(value)
        return module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raw outputs of all members, stacked along a new first axis: (members, batch, ...).

        Tuples, dicts and dataclasses keep their form, with every tensor in them stacked. Gradients flow to the inputs
        alone. The model must return new tensors: one that it fills again at every call is the last member's for all.
        """
        self._make_ready()
        outputs = []
        for i in range(self._size):
            with self._member(i) as run:
                outputs.append(run(args, kwargs))
        return joined(stacked, outputs)

    def predict(self, data: Any, *, likelihood: Likelihood | None = None) -> Any:
        """The prediction of the task: the members' averaged probabilities, or their mixture of Gaussians.

        Args:
            data: inputs (a tensor, an array, or a dict of them), or a loader, which is read once for all members.
            likelihood: what outputs mean, if it is another than the posterior's; where neither is known, it is inferred
                from the targets of the loader.

        Returns:
            A `ClassPrediction`, `GaussianMixture` or `BernoulliPrediction`, in the order of the data.

        Raises:
            TypeError: if the likelihood is not known and cannot be inferred, or the targets do not fit it.
        """
        task = likelihood or self.likelihood
        check_likelihood(task)
        found: list[Likelihood] = []

        def wanted(output: Any, target: Any) -> Any:
            if not found:
                found.append(task_of(task, output, target))
            return found[0].output(output)

        outputs = self._gathered(data, wanted)
        return found[0].predict(outputs)

    def outputs(self, data: Any) -> Any:
        """Raw outputs of a whole data set, (members, samples, ...), in one pass over it.

        Args:
            data: inputs or a loader, as in `predict`.

        Returns:
            what the network returns, members first: a tensor, or tensors in the same tuples, lists and dicts.

        Raises:
            TypeError: if outputs of batches cannot be joined: single numbers, other lengths, or no tensors at all.
        """
        return self._gathered(data, lambda output, _: output)

    def iterate(self, loader: Iterable[Any]) -> Iterator[tuple[int, int, Any, Any]]:
        """(member, number of the batch, output, target), keeping no outputs and reading the data once.

        Members take turns over as many batches as fit in memory: of every batch the last member is seen before the
        first of the next ones.

        Args:
            loader: of (inputs, target) batches.

        Yields:
            one tuple for every member and batch. A number counts batches of the loader; an output is one member's.
        """
        self._make_ready()
        number = 0
        for part in in_parts(batches(loader, "loader", self._like), PART_BYTES):
            for i in range(self._size):
                for place, (output, target) in enumerate(self._member_outputs(i, part)):
                    yield i, number + place, output, target
            number += len(part)

    def _gathered(self, data: Any, wanted: Callable[[Any, Any], Any]) -> Any:
        """What is wanted of every output, (members, samples, ...)."""
        self._make_ready()
        loader = as_loader(data, "data")
        done = []
        for part in in_parts(batches(loader, "data", self._like), PART_BYTES):
            everything: Any = None  # made for all members once the first has shown its form, and filled in place
            for i in track(range(self._size), "predicting", self._size):
                member = joined(concatenated, [wanted(*pair) for pair in self._member_outputs(i, part)])
                if i == 0:
                    everything = joined(partial(room, self._size), [member])
                joined(partial(put, i), [everything, member])
            done.append(everything)
        return done[0] if len(done) == 1 else joined(appended, done)

    def _member_outputs(self, i: int, data: Iterable[Pair]) -> Iterator[Pair]:
        with self._member(i) as run:
            for inputs, target in data:
                args, kwargs = self._caller.arguments(inputs, target)
                with torch.no_grad(), naming_types(inputs, self._like):
                    output = run(args, kwargs)
                yield output, target

    def save(self, path: str | PathLike[str], *, whole: bool = False) -> None:
        """Write all members to a safetensors file: whoever loads it needs no posterior and no training data.

        It holds the weights and BatchNorm statistics of every member, what members share once, and the likelihood.
        BatchNorm is refreshed first if that is due. All members are in memory meanwhile. `tradi.load_ensemble` reads
        the file, and the members predict the same, bit for bit, on the same machine.

        Args:
            path: of the file.
            whole: write frozen weights too. Without them the file is for models that have the same ones already, which
                is checked.

        Raises:
            ValueError: if there is more to members than tensors, as with MCDropout.
            OSError: if it cannot be written; what was there before still is.
        """
        self._make_ready()
        members = [self._own(i) for i in range(self._size)]
        write(path, "an ensemble", packed(self._model, members, self.likelihood, whole))

    def as_module(self, *, likelihood: Likelihood | None = None) -> ServingModule:
        """All members in one `nn.Module` that returns the prediction's fields as tensors, in a dict by name.

        For serving, export and libraries that take a network; see docs/serving.md. Members' weights are copied into it.

        Args:
            likelihood: what outputs mean, if it is another than the posterior's.

        Returns:
            a module whose `forward` takes what the network takes.

        Raises:
            TypeError: if the likelihood is not known.
            ValueError: if there is more to members than tensors, as with MCDropout.
        """
        check_likelihood(likelihood)
        self._make_ready()
        task = task_of(likelihood or self.likelihood, None, None)
        return ServingModule(self._model, [self._own(i) for i in range(self._size)], task)

    def refresh(self, loader: Iterable[Any]) -> Ensemble:
        """Recompute every member's BatchNorm statistics on the (training) data, now; returns the ensemble itself.

        Pass shuffled, representative data; some thousand samples are as good as millions. Without such layers nothing
        is read and nothing happens.

        Args:
            loader: of training batches.

        Returns:
            the ensemble itself.

        Raises:
            ValueError: if the ensemble comes from a file, which holds the members' statistics as they were saved.
        """
        if running_layers(self._model):
            if not self._trained:
                raise ValueError(
                    "an ensemble from a file keeps the BatchNorm statistics that it was saved with, since the trained "
                    "network that it was drawn around is not in the file: refresh before saving"
                )
            check_reiterable(loader, "refresh")
            loader = self._at_hand(loader)
            trained = [statistics_of(self._model, state) for state in self._trained]
            before = self._refreshed([self._shared | self._buffers | state for state in self._trained], loader)
            statistics: dict[int, State] = {}
            for members in track(self._groups(loader), "refreshing BatchNorm"):
                fresh = self._refreshed([*members.values()], loader)
                for i, own in zip(members, fresh, strict=True):
                    run = i % len(trained)
                    statistics[i] = paired(self._model, own, trained[run], before[run])
            with self._lock:
                self._statistics, self._stale = statistics, False
        return self

    def _at_hand(self, loader: Iterable[Any]) -> Iterable[Any]:
        """The data in memory, if it fits: a loader that shuffles would show other samples to every member."""
        parts = in_parts(batches(loader, "refresh", self._like), PART_BYTES)
        first = next(parts)
        return first if next(parts, None) is None else loader

    def _refreshed(self, states: list[State], loader: Iterable[Any]) -> list[State]:
        with self._lock, self._stages.one() as stage, torch.inference_mode(False):
            data = batches(loader, "refresh", self._like)
            return refreshed(stage.module, stage.swap, self._caller, states, data)

    def _make_ready(self) -> None:
        """Refresh at first use where the data for it is known, and warn where it is not."""
        self._snapshot.check()
        if not self._stale:
            return
        with self._lock:
            if self._stale and self._refresh is not None:
                self.refresh(self._refresh)
        if self._stale:
            self._stale = False
            warnings.warn(
                "members have other weights than those that BatchNorm's statistics were collected with: pass "
                "refresh=training_batches to choose_scale() or sample(), or call refresh(training_batches)",
                stacklevel=3,
            )

    def _groups(self, loader: Iterable[Any]) -> Iterator[dict[int, State]]:
        """Members that read the data together, and what each runs with: as many as fit in memory, one at the least.

        Where the data is at hand, each by itself: the weights of one then stay in the cache from batch to batch.
        """
        at_hand = type(loader) in (list, tuple)  # reading it again costs nothing
        group: dict[int, State] = {}
        held = 0
        for i in range(self._size):
            own = self._own(i)
            size = self._bytes_of(own)
            if group and (at_hand or held + size > self.keep_bytes):
                yield group
                group, held = {}, 0
            group[i] = self._state(own)
            held += size
        yield group

    @property
    def _like(self) -> Tensor:
        """A tensor on the model's device, of its floating-point type."""
        tensors = [*self._shared.values(), *self._buffers.values()]
        return next((t for t in tensors if t.is_floating_point()), torch.empty(0))

    def _index(self, i: int) -> int:
        if not -self._size <= i < self._size:
            raise IndexError(f"member {i} of an ensemble of {self._size}")
        return i % self._size

    @contextmanager
    def _member(self, i: int) -> Iterator[Run]:
        """How to run member i, as often as need be: a function of arguments and keyword arguments."""
        state = self._state(self._own(i))
        with self._stages.one() as stage:
            yield partial(_run, stage.module, stage.swap.with_state(state))

    def _state(self, own: State) -> State:
        # Detached weights stand in for those not drawn, so that no graph is built behind a user's back, and copies of
        # buffers, so that a forward that writes to them leaves nothing behind for the next member.
        state = self._shared | self._buffers | own
        return state | {name: state[name].clone() for name in self._buffers}

    def _own(self, i: int) -> State:
        return {**self._weights(i), **self._statistics.get(i, {})}

    def _weights(self, i: int) -> State:
        with self._lock:
            if i in self._kept:
                return self._kept[i]
            like = self._shared | self._buffers
            with torch.inference_mode(False), torch.no_grad():  # what is kept must serve in any mode later
                weights = {name: _laid_out(value, like.get(name, value)) for name, value in self._draw(i).items()}
            size = self._bytes_of(weights)
            if self._kept_bytes + size <= self.keep_bytes:
                self._kept[i] = weights
                self._kept_bytes += size
            return weights

    def _bytes_of(self, state: State) -> int:
        """Memory of a member's own, beside what all members share."""
        known = [*self._shared.values(), *(tensor for trained in self._trained for tensor in trained.values())]
        common = {local(tensor).untyped_storage().data_ptr() for tensor in known}
        held = map(local, state.values())
        return sum(t.nbytes for t in held if t.untyped_storage().data_ptr() not in common)


def load_ensemble(path: str | PathLike[str], model: nn.Module) -> Ensemble:
    """Read an ensemble that `Ensemble.save` wrote; the model gives the architecture, and its own weights stay.

    Args:
        path: of the file.
        model: a network of the architecture that was trained, on the device where members are to run, with the same
            frozen weights if the file leaves them out.

    Returns:
        the ensemble that was saved, with a network of its own.

    Raises:
        ValueError: if the file is not an ensemble, was changed, is of another architecture or format version, or leaves
            out frozen weights and the model has others; it names the file.
        OSError: if there is no file, or it cannot be read.
    """
    parts = read(path, "an ensemble", model)
    with naming(path):
        module, members, likelihood = unpacked(parts, model)
    return Ensemble(module, members.__getitem__, len(members), trained=(), likelihood=likelihood)


def _run(module: nn.Module, member: SwappedIn, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with member:
        return module(*args, **kwargs)


def _laid_out(value: Tensor, like: Tensor) -> Tensor:
    """The values in memory in the order of the tensor that they stand in for.

    An operation may round differently on tensors in another order, and a member is to be one network however its
    tensors came about: drawn, copied, or read from a file.
    """
    if value.shape != like.shape or value.stride() == like.stride():
        return value
    return torch.empty_like(like, dtype=value.dtype).copy_(value)
