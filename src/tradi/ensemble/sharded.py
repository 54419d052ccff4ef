"""Members of a network that `fully_shard` sharded: their shards take turns in the module that was trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from tradi.ensemble.batches import Caller, Pair, batches
from tradi.ensemble.batchnorm import STATISTICS, collecting, running_layers
from tradi.ensemble.copying import Snapshot
from tradi.ensemble.ensemble import Ensemble, Run
from tradi.prediction.likelihoods import Likelihood
from tradi.sharding import Place, local, plain_name, reshard

State = dict[str, Tensor]


class ShardedNetwork(Snapshot):
    """A sharded module, and a copy of what this process held of it at one time.

    An FSDP module cannot be copied, so whoever runs it with other weights borrows the one that is trained.

    Args:
        module: that `fully_shard` was applied to.

    Raises:
        TypeError: if a weight is sharded otherwise than by rows.
    """

    def __init__(self, module: nn.Module) -> None:
        reshard(module)
        self._model, self._versions = module, []  # which may change: the weights are here
        self.trainable = {name for name, parameter in _parameters(module).items() if parameter.requires_grad}
        self.places: dict[str, Place] = {}
        self.weights: State = {}
        for name, parameter in _parameters(module).items():
            place = Place.of(name, parameter)
            if place is not None:
                self.places[name] = place
            self.weights[name] = local(parameter).detach().clone()
        self.buffers = {name: buffer.detach().clone() for name, buffer in _buffers(module).items()}

    @property
    def tensors(self) -> State:
        """All that it held, by name."""
        return self.weights | self.buffers

    def held(self, state: State) -> State:
        """What this process holds of tensors, of which some may be whole."""
        return {name: self.places[name].held(own) if name in self.places else own for name, own in state.items()}

    def holding(self, state: State) -> Holding:
        """The module in eval mode with these tensors, and otherwise with those of this time."""
        return Holding(self._model, self.tensors | self.held(state))

    @property
    def saved_buffers(self) -> State:
        """Those of the buffers that belong into a file."""
        saved = {plain_name(name) for name in self.model.state_dict()}
        return {name: buffer for name, buffer in self.buffers.items() if name in saved}

    @property
    def mesh(self) -> Place:
        """A place in the mesh that all processes share."""
        return next(iter(self.places.values()))


class ShardedEnsemble(Ensemble):
    """Members whose weights are sharded as the network is: no process holds all weights of a member.

    All processes must make the same calls together, with as many batches: every forward pass gathers weights, layer by
    layer, as in training. Members run in the module that is trained; afterwards it is as it was before. Run none
    between a forward and its backward pass.

    Args:
        network: whose module members run in.
        draw: what member i has in place of the network's weights and buffers, by name: a function of i alone. Of
            sharded weights it is what this process holds, or all of it.
        size: number of members.
        moved, refresh, likelihood: as those of an `Ensemble`. BatchNorm's statistics are refreshed on the batches that
            every process is given, which must be the same: see `tradi.gathered`.
    """

    def __init__(
        self,
        network: ShardedNetwork,
        draw: Callable[[int], State],
        size: int,
        *,
        moved: bool = False,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
    ) -> None:
        def held(i: int) -> State:
            return network.held(draw(i))

        trained = [network.tensors]
        with _in_eval_mode(network.model):
            super().__init__(
                network.model, held, size, trained=trained, moved=moved, refresh=refresh, likelihood=likelihood
            )
        self._snapshot = self._network = network
        self._shared, self._buffers = network.weights, network.buffers

    def _refreshed(self, states: list[State], loader: Iterable[Any]) -> list[State]:
        def data() -> Iterator[Pair]:
            return batches(loader, "refresh", self._like)

        with self._lock, torch.inference_mode(False):
            return [statistics_of_shards(self._network, self._caller, state, data()) for state in states]

    def _state(self, own: State) -> State:
        return self._network.tensors | own

    def _bytes_of(self, state: State) -> int:
        """The same on every process, as they must keep the same members: what they draw, they draw together."""
        places = self._network.places
        return sum(places[name].bytes_of(own) if name in places else own.nbytes for name, own in state.items())

    def __getitem__(self, i: int) -> nn.Module:
        return _refuse("a member as a module of its own")

    def save(self, path: str | PathLike[str], *, whole: bool = False) -> None:
        del whole
        _refuse(f"{path}, a file of all members,")

    @contextmanager
    def _member(self, i: int) -> Iterator[Run]:
        own = self._own(i)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with self._lock, torch.no_grad(), self._network.holding(own):
                return self._model(*args, **kwargs)

        yield run


@torch.no_grad()
def statistics_of_shards(network: ShardedNetwork, caller: Caller, state: State, data: Iterable[Pair]) -> State:
    """BatchNorm's running statistics with other weights, over batches that are the same on every process.

    Args:
        network: gives the layers.
        caller: passes inputs to it.
        state: weights to run it with, by name.
        data: (inputs, target) pairs.
    """
    layers = running_layers(network.model)
    names = [f"{name}.{part}" for name in layers for part in STATISTICS]
    empty = {name: torch.zeros_like(network.buffers[name]) for name in names}
    with network.holding(state | empty):
        with collecting([*layers.values()]) as weigh:
            weigh.seen = dict.fromkeys(layers.values(), 0)
            for inputs, target in data:
                args, kwargs = caller.arguments(inputs, target)
                network.model(*args, **kwargs)
        own = _buffers(network.model)
        return {name: own[name].clone() for name in names}


def _refuse(what: str) -> NoReturn:
    raise RuntimeError(
        f"{what} would need all weights in one process: call posterior.save(path) on every process, then "
        "tradi.load_posterior(path, model) in one, with a model that is not sharded"
    )


class Holding(AbstractContextManager[None]):
    """A module with other tensors, as often as it is entered.

    FSDP gathers weights from memory of its own, so they are copied there and back.

    Args:
        module: that `fully_shard` was applied to.
        state: what this process holds of the tensors, by name.
    """

    def __init__(self, module: nn.Module, state: State) -> None:
        self._module, self._state = module, state

    def __enter__(self) -> None:
        self._inside = _holding(self._module, self._state)
        self._inside.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._inside.__exit__(*exception)


@contextmanager
def _holding(module: nn.Module, state: State) -> Iterator[None]:
    reshard(module)
    held = {name: local(own) for name, own in (_parameters(module) | _buffers(module)).items() if name in state}
    before = {name: own.detach().clone() for name, own in held.items()}
    try:
        _copy(held, state)
        with _in_eval_mode(module):
            yield
    finally:
        reshard(module)
        _copy(held, before)


@torch.no_grad()
def _copy(held: State, values: State) -> None:
    for name, own in held.items():
        own.copy_(values[name])


@contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    training = [one for one in module.modules() if one.training]
    module.eval()
    try:
        yield
    finally:
        for one in training:
            one.training = True


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    return {plain_name(name): parameter for name, parameter in module.named_parameters()}


def _buffers(module: nn.Module) -> State:
    return {plain_name(name): buffer for name, buffer in module.named_buffers()}
