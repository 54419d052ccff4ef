"""A trained network as fitting sees it: it runs over data, with its own weights or a member's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from tradi.ensemble.batches import Pair
from tradi.ensemble.copying import sharing, tensors_in
from tradi.ensemble.ensemble import Ensemble
from tradi.posterior.conditioning import Replay
from tradi.posterior.conditions import ROWS, kept
from tradi.posterior.distribution import State
from tradi.posterior.fisher import fisher
from tradi.posterior.layers import Layer
from tradi.prediction.likelihood import Likelihood

Module = Callable[[nn.Module], nn.Module]


def like(model: nn.Module) -> Tensor:
    """A tensor on the model's device, of its floating-point type."""
    return next(model.parameters()).detach()


def in_place_of_first(runners: Sequence[Runner]) -> list[State]:
    """What the network of each holds in place of the first one's tensors, by name: nothing for the first."""
    return [{}, *(tensors_in(other.model) for other in runners[1:])]


class Runner:
    """Runs a network that lies in one process.

    Args:
        model: nobody changes its parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @cached_property
    def _members(self) -> nn.Module:
        return sharing(self.model)

    def kept(self, loader: Iterable[Any], argument: str, samples: int = ROWS) -> tuple[list[Pair], int]:
        """So many samples at the most, and how many there are in all; the loader is read once."""
        return kept(loader, argument, like(self.model), samples)

    def replay(self, data: list[Pair], total: int) -> Replay:
        """The network over some data, which stands for so many samples."""
        return Replay(sharing(self.model).eval(), data, total)

    def ensemble(
        self,
        draw: Callable[[int], State],
        size: int,
        *,
        architecture: Module | None = None,
        trained: Sequence[State] = ({},),
        moved: bool = False,
        refresh: Iterable[Any] | None = None,
    ) -> Ensemble:
        """Members of a search; arguments are those of an `Ensemble`.

        Args:
            draw: weights of member i, by parameter name.
            size: number of members.
            architecture: what is built around the network, if anything.
            trained: as in an `Ensemble`.
            moved: likewise.
            refresh: likewise.
        """
        model = self._members if architecture is None else architecture(self._members)
        return Ensemble(model, draw, size, trained=trained, moved=moved, refresh=refresh)

    def fisher(self, layers: Sequence[Layer], data: list[Pair], likelihood: Likelihood) -> list[dict[str, Tensor]]:
        """What data says about every weight of the layers: see `fisher.fisher`."""
        return fisher(self.model, layers, data, likelihood)
