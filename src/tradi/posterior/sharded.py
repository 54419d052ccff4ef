"""The posterior of a network whose weights are sharded over processes: every process holds its part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

from torch import Tensor, distributed, nn

from tradi.ensemble.batchnorm import running_layers
from tradi.ensemble.ensemble import Ensemble
from tradi.ensemble.files import Frozen, Packed, write
from tradi.ensemble.sharded import ShardedEnsemble, ShardedNetwork
from tradi.posterior import packing
from tradi.posterior.covariance import Covariance
from tradi.posterior.distribution import State, check_finite
from tradi.posterior.fitting import Run
from tradi.posterior.layers import Layer, by_layer
from tradi.posterior.parts import Parts
from tradi.posterior.posterior import Posterior
from tradi.posterior.sharded_runner import ShardedRunner, refuse
from tradi.prediction.likelihoods import Likelihood
from tradi.sharding import all_of, gathered, plain_name

SHARDED = ("model", "mean", "variance")  # what a process holds a part of; all of them hold the rest


class ShardedPosterior(Posterior):
    """A posterior of shards: sampled on all processes together, or saved as one file for one process.

    Its tensors are DTensors, and its members are bit for bit those that one process draws from the saved file. It is
    made, fitted, sampled and saved by all processes together. What it is fitted to must be the same batches on every
    process, which share out the work: where each loads a part, pass `tradi.gathered(loader)`. All weights of a small
    network that predicts numbers are conditioned in one process alone: `save` it, then
    `tradi.load_posterior(path, model)` with a model that is not sharded.

    Args:
        network: the sharded network, with a copy of the final weights.
        parts: what was tracked of it.

    Raises:
        ValueError: if the scale is negative, or a weight is not finite in any of the processes.
    """

    def __init__(self, network: ShardedNetwork, parts: Parts) -> None:
        self._network = network
        problem = None
        try:
            check_finite({name: network.weights[name] for name in network.trainable}, parts.layers)
            self._take(network, parts)
        except ValueError as error:
            problem = str(error)
        problem = network.mesh.agree(problem)
        if problem is not None:
            raise ValueError(problem)
        for layer in self._layers:  # now, when all processes are here: later, one of them may ask alone
            _ = layer.unit, layer.mean_variance

    @property
    def run(self) -> Run:
        """What is fitted to data, by all processes together."""
        return Run(ShardedRunner(self._network), self._parts)

    def check_agreement(self, what: str) -> None:
        """Raise where processes came to several answers, as unequal machines might. All must call it together."""
        found = f"{what}: scale {self.scale}, {self.conditioning}"
        every = [""] * distributed.get_world_size()
        distributed.all_gather_object(every, found)
        if len({*every}) > 1:
            raise RuntimeError(f"processes came to several posteriors: {'; '.join(every)}")

    @property
    def mean(self) -> State:
        """Tracked means by parameter name: DTensors, which may be changed."""
        return self._whole(super().mean)

    @property
    def variance(self) -> State:
        """Tracked variances by parameter name: DTensors too."""
        return self._whole(super().variance)

    def noise(self, member: int, seed: int = 0) -> State:
        """The noise of one member by parameter name, before the scale: DTensors.

        Args:
            member: its number.
            seed: of the ensemble that it belongs to.

        Returns:
            a DTensor for every tracked weight.
        """
        return self._whole(super().noise(member, seed))

    def draw(self, member: int, seed: int = 0) -> State:
        """All weights and buffers of one member, by name: DTensors.

        Args:
            member: its number.
            seed: of the ensemble that it belongs to.

        Returns:
            DTensors by name.
        """
        own = self._network
        return self._whole(own.tensors | own.held(super().draw(member, seed)))

    def _whole(self, state: State) -> State:
        places = self._network.places
        return {name: all_of(values, places.get(name)) for name, values in state.items()}

    def sample(
        self,
        members: int,
        seed: int = 0,
        *,
        refresh: Iterable[Any] | None = None,
        likelihood: Likelihood | None = None,
    ) -> ShardedEnsemble:
        """Members that run on all processes together; arguments are those of `Posterior.sample`.

        What they refresh BatchNorm's statistics on must be the same batches on every process: see `tradi.gathered`.

        Returns:
            the ensemble, which all processes call together.

        Raises:
            RuntimeError: if BatchNorm is inside activation checkpointing or a compiled block.
        """
        if any(plain_name(name) != name for name in running_layers(self.model)):
            refuse("a refresh of BatchNorm's statistics in a module that is wrapped")
        return ShardedEnsemble(
            self._network,
            lambda i: self._parts.draw(self._weights, i, seed),
            members,
            moved=self.moved,
            refresh=self.refresh if refresh is None else refresh,
            likelihood=likelihood or self.likelihood,
        )

    def final(self) -> Ensemble:
        """The network as training left it, as an ensemble of one.

        Returns:
            the ensemble, which all processes call together.
        """
        own = None if self.conditioning is None else self.conditioning.network_likelihood
        return ShardedEnsemble(self._network, lambda _: {}, 1, likelihood=own or self.likelihood)

    def save(self, path: str | PathLike[str], *, whole: bool = True) -> None:
        """Write one file, as `Posterior.save` does: all processes call it, the first of the mesh writes.

        Tensors come to its main memory one by one, and no device ever holds more than one of them. Frozen weights are
        always in the file.

        Raises:
            OSError, ValueError: on every process if the file cannot be written.
        """
        packed, problem = self.packed(whole), None
        mesh = self._network.mesh
        if mesh.is_first:
            try:
                write(path, "a posterior", [packed])
            except (OSError, ValueError) as error:
                problem = error
        if mesh.agree(None if problem is None else str(problem)):
            raise problem or OSError(f"{path} could not be written: the first process says why")

    def packed(self, whole: bool = True) -> Packed:
        """What a file needs to know, on the first process of the mesh; on others, without the numbers in it."""
        del whole
        own = self._network
        tracked = {name for layer in self._layers for name in layer.mean}
        frozen = Frozen(tuple(name for name in own.weights if name not in own.trainable | tracked), None)
        tensors, about = packing.packed_with(own.weights | own.saved_buffers, frozen, self._parts)
        found: dict[str, dict[str, Tensor]] = {
            kind: {
                name: gathered(values, own.places.get(name) if kind in SHARDED else None)
                for name, values in named.items()
            }
            for kind, named in tensors.items()
        }
        return found, about

    def architecture(self) -> nn.Module:
        refuse("a copy of the network")

    def _with(self, parts: Parts) -> ShardedPosterior:
        return ShardedPosterior(self._network, parts)


def posterior_of_shards(
    module: nn.Module,
    mean: dict[str, Tensor],
    variance: dict[str, Tensor],
    gradient: dict[str, float],
    covariance: Covariance | None,
    finish: Callable[[list[Layer]], list[Layer]],
) -> ShardedPosterior:
    """A posterior from what every process tracked of its part of a sharded module. All must call it together.

    Args:
        module: the sharded module; it is not copied.
        mean: tracked means here, by parameter name.
        variance: tracked variances here, by parameter name.
        gradient: average squared gradients of whole weights, by parameter name.
        covariance: of the noise within a layer.
        finish: what is done to the layers at the end, such as `share_out`.
    """
    network = ShardedNetwork(module)
    layers = finish(
        by_layer(
            network.weights,
            {plain_name(name): own for name, own in mean.items()},
            {plain_name(name): own for name, own in variance.items()},
            gradient={plain_name(name): own for name, own in gradient.items()},
            places=network.places,
        )
    )
    return ShardedPosterior(network, Parts(layers, covariance))
