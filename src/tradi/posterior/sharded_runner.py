"""A sharded network as fitting sees it: every process runs a share of the data, and all come to the same answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, distributed, nn

from tradi._torch import tree_leaves, tree_map
from tradi.ensemble.batches import Pair, chosen, samples_in
from tradi.ensemble.batchnorm import running_layers, statistics_of
from tradi.ensemble.sharded import ShardedEnsemble, ShardedNetwork, statistics_of_shards
from tradi.posterior.conditioning import Replay
from tradi.posterior.conditions import ROWS
from tradi.posterior.distribution import State
from tradi.posterior.head import Head, find_head
from tradi.posterior.layers import Layer
from tradi.posterior.rows import is_linear
from tradi.posterior.runner import Module, Runner
from tradi.prediction.likelihood import Likelihood
from tradi.sharding import plain_name
from tradi.storage.tensors import digest


class ShardedRunner(Runner):
    """Runs a network that `fully_shard` sharded. All processes make the same calls together, with the same data.

    Args:
        network: a copy of the final weights.

    Raises:
        RuntimeError: if its weights are not sharded over all processes, or BatchNorm is in a module that is wrapped.
    """

    def __init__(self, network: ShardedNetwork) -> None:
        super().__init__(network.model)
        self._network = network
        shared, started = network.mesh.mesh.size(), distributed.get_world_size()
        if shared != started:
            refuse(f"fitting a network that {shared} of {started} processes hold")
        if any(plain_name(name) != name for name in running_layers(network.model)):
            refuse("a refresh of BatchNorm's statistics in a module that is wrapped")

    def kept(self, loader: Iterable[Any], argument: str, samples: int = ROWS) -> tuple[list[Pair], int]:
        data, total = super().kept(loader, argument, samples)
        tensors = {str(number): leaf for number, leaf in enumerate(tree_leaves(data)) if isinstance(leaf, Tensor)}
        every: list[str] = [""] * distributed.get_world_size()
        distributed.all_gather_object(every, digest(tensors, {"total": total}))
        if len({*every}) > 1:
            raise ValueError(
                f"{argument} gave other batches on another process, and all of them must be given all of the data: "
                "where each loads a part, pass tradi.gathered(loader)"
            )
        return data, total

    def replay(self, data: list[Pair], total: int) -> Replay:
        return ShardedReplay(self._network, data, total)

    def ensemble(
        self,
        draw: Callable[[int], State],
        size: int,
        *,
        architecture: Module | None = None,
        trained: Sequence[State] = ({},),
        moved: bool = False,
        refresh: Iterable[Any] | None = None,
    ) -> ShardedEnsemble:
        del architecture, trained  # of plain networks, and of one run
        return SharedOut(self._network, draw, size, moved=moved, refresh=refresh)

    def fisher(self, layers: Sequence[Layer], data: list[Pair], likelihood: Likelihood) -> NoReturn:
        del layers, data, likelihood
        refuse("noise where data has nothing to say of single weights (prior_samples=, which may be None)")


class ShardedReplay(Replay):
    """Every process runs each of its turns, and sums are over the turns of all."""

    def __init__(self, network: ShardedNetwork, data: list[Pair], total: int) -> None:
        self._network, self._given = network, data
        self._rank, self._processes = distributed.get_rank(), distributed.get_world_size()
        super().__init__(network.model, in_batches(data, self._processes), total)
        self.own = network.weights

    def over(self, data: list[Pair], total: int | None = None) -> Replay:
        return ShardedReplay(self._network, data, self.total if total is None else total)

    def at_once(self) -> Replay:
        return self  # fewer batches are fewer turns

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {plain_name(name): module for name, module in self.model.named_modules()}

    def holding(self, state: State) -> Any:
        return self._network.holding(state)

    def head(self, likelihood: Likelihood, layer: str | None) -> Head:
        args, kwargs = self.caller.arguments(*self.data[0])
        linear = {plain_name(name): name for name, module in self.model.named_modules() if is_linear(module)}
        with self.holding({}):
            found = find_head(self.model, args, kwargs, likelihood, None if layer is None else linear.get(layer, layer))
        name = plain_name(found.name)
        whole = {own: self._everywhere(f"{name}.{own}" if name else own) for own, _ in found.module.named_parameters()}
        siblings = tuple(map(plain_name, found.siblings))
        return replace(found, name=name, module=layer_with(found.module, whole), siblings=siblings)

    def _everywhere(self, name: str) -> Tensor:
        own, place = self.own[name], self._network.places.get(name)
        return own if place is None else place.everywhere(own)

    def size_of(self, name: str) -> int:
        place = self._network.places.get(name)
        return super().size_of(name) if place is None else place.shape.numel()

    def check_all_weights(self) -> NoReturn:
        refuse("conditioning all weights of a network that is so small and predicts numbers")

    @property
    def turns(self) -> range:
        """Every so many batches."""
        return range(self._rank, len(self.data), self._processes)

    def added_up(self, sums: Tensor) -> Tensor:
        found = sums.clone()
        distributed.all_reduce(found)
        return found

    def in_order(self, parts: list[Tensor]) -> Tensor:
        every: list[list[Tensor]] = [[]] * self._processes
        distributed.all_gather_object(every, [part.cpu() for part in parts])
        rows = [every[number % self._processes][number // self._processes] for number in range(len(self.data))]
        return torch.cat(rows).to(parts[0].device)

    @torch.no_grad()
    def run(self, state: State, layers: Iterable[str] = ()) -> Iterator[tuple[Any, Any, Any]]:
        """As in one process, but of its turns alone. It must be gone through to the end."""
        yield from super().run(state, layers)
        if len(self.data) % self._processes > 0 and self._rank >= len(self.data) % self._processes:
            args, kwargs = self.caller.arguments(*self.data[0])
            with self.holding(state):  # weights are gathered from all processes, and others have another turn
                self.model(*args, **kwargs)

    @property
    def _trained(self) -> State:
        return statistics_of(self.model, self._network.buffers)

    def _statistics(self, states: list[State]) -> list[State]:
        with torch.inference_mode(False):
            return [statistics_of_shards(self._network, self.caller, state, self._given) for state in states]


class SharedOut(ShardedEnsemble):
    """Members of a search: each process runs them on every so many batches, and all are given all outputs."""

    def _member_outputs(self, i: int, data: Iterable[Pair]) -> Iterator[Pair]:
        own, processes = [*data], distributed.get_world_size()
        with self._member(i) as run:
            for first in range(0, len(own), processes):
                inputs, target = own[min(first + distributed.get_rank(), len(own) - 1)]
                every: list[Any] = [None] * processes
                output = tree_map(_in_main_memory, run(*self._caller.arguments(inputs, target)))
                distributed.all_gather_object(every, output)
                for (_, wanted), found in zip(own[first : first + processes], every, strict=False):
                    yield tree_map(self._back, found), wanted

    def _back(self, leaf: Any) -> Any:
        return leaf.to(self._like.device) if isinstance(leaf, Tensor) else leaf


def in_batches(data: list[Pair], count: int) -> list[Pair]:
    """The data in so many batches at the least, a turn for every process.

    Raises:
        ValueError: if there are fewer samples.
    """
    if len(data) >= count:
        return data
    samples = sum(map(samples_in, data))
    if samples < count:
        raise ValueError(f"{count} processes need a sample each, and there are {samples} in all")
    size = max(samples // count, 1)
    parts = (chosen(batch, slice(start, start + size)) for batch in data for start in range(0, samples_in(batch), size))
    return [*parts]


def layer_with(module: nn.Module, parameters: State) -> nn.Module:
    """A linear layer like a sharded one, with whole weights, to be looked at and not run."""
    kind: Any = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.nn.modules"))
    layer: nn.Module = kind.__new__(kind)
    nn.Module.__init__(layer)
    for name in kind.__constants__:
        setattr(layer, name, getattr(module, name))
    for name in ("weight", "bias"):
        own = parameters.get(name)
        layer.register_parameter(name, None if own is None else nn.Parameter(own, requires_grad=False))
    return layer


def refuse(what: str) -> NoReturn:
    """Raise for what one process alone can do, and say how."""
    raise RuntimeError(
        f"{what} works in one process, and the weights are sharded over several: call posterior.save(path) on "
        "every process, then tradi.load_posterior(path, model) in one, with a model that is not sharded"
    )


def _in_main_memory(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf
