"""How members of a regression were conditioned, but for the training rows: those are in no file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import NoReturn

from torch import nn

from tradi.ensemble.batches import Pair
from tradi.ensemble.copying import sharing
from tradi.posterior.conditioning import Conditioning, Draw, HeadRegression, Regression, Replay
from tradi.posterior.distribution import check_scale
from tradi.posterior.head import Head, State
from tradi.posterior.linearised import NetworkRegression
from tradi.posterior.loudness import Averaged, Component
from tradi.prediction.likelihood import Likelihood

WAYS: dict[str, type[Regression]] = {way.__name__: way for way in (HeadRegression, NetworkRegression)}


@dataclass(frozen=True)
class Share:
    """A `Component` in words and numbers.

    Args:
        share: of the members.
        scale: that they are drawn at.
        way: name of the regression.
        noise: its factor tau on the noise variances; None takes every member's own.
        precisions: prior precisions, one for each regression.
    """

    share: float
    scale: float
    way: str
    noise: float | None
    precisions: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.way not in WAYS:
            raise ValueError(f"unknown regression {self.way!r}: this version of tradi knows {sorted(WAYS)}")
        check_scale(self.scale)
        if not 0 < self.share <= 1 + 1e-6:
            raise ValueError(f"a share must be positive, and 1 at the most, got {self.share}")
        if not all(number > 0 for number in (*self.precisions, 1 if self.noise is None else self.noise)):
            raise ValueError(f"noise and precisions must be positive, got {self.noise} and {self.precisions}")


@dataclass(frozen=True, eq=False)
class WithoutRows(Conditioning):
    """What is left of an `Averaged` conditioning in a file: members cannot be drawn until it has its rows again.

    Args:
        shares: of the members.
        head: the layer that gives the mean.
        likelihood: that rows are weighted by.
        samples: how many there were in all.
    """

    shares: tuple[Share, ...]
    head: Head
    likelihood: Likelihood
    samples: int

    @staticmethod
    def of(averaged: Averaged) -> WithoutRows:
        """All of it but the rows."""
        shares = (
            Share(one.share, one.scale, type(way).__name__, way.noise, tuple(way.precisions))
            for one in averaged.components
            for way in [one.conditioning]
        )
        way = averaged.components[0].conditioning
        return WithoutRows(tuple(shares), way.head, way.likelihood, way.replay.total)

    def __str__(self) -> str:
        what = WAYS[self.shares[0].way].what
        return f"{what} to be conditioned on {self.samples:,} training samples: pass them as sample(refresh=)"

    def conditioned_on(self, data: list[Pair], total: int, model: nn.Module, centre: State) -> Averaged:
        """The conditioning with its rows.

        Args:
            data: (inputs, target) pairs, of which there may be more than are kept.
            total: how many samples there are in all.
            model: the trained network.
            centre: what was tracked of the weights, by parameter name.
        """
        if total != self.samples:
            warnings.warn(
                f"members were conditioned on {self.samples:,} samples, and refresh has {total:,}, so these are other "
                "members: fit() conditioned on the validation data too; pass refresh=[*train, *validation]",
                stacklevel=4,
            )
        replay = Replay(sharing(model).eval(), data, total).at_once()
        head = replace(self.head, module=dict(replay.model.named_modules())[self.head.name])
        ways = {name: WAYS[name](replay, head, self.likelihood, centre) for name in {s.way for s in self.shares}}
        components = tuple(
            Component(one.share, one.scale, ways[one.way].with_prior(one.noise, one.precisions)) for one in self.shares
        )
        return Averaged(components, (components[0].conditioning,))

    def weights(self, draw: Draw, scale: float, seed: int, member: int) -> State:
        del draw, scale, seed, member
        self._refuse()

    def module(self, model: nn.Module) -> nn.Module:
        del model
        self._refuse()

    @property
    def network_likelihood(self) -> Likelihood:
        return self.likelihood

    def rescaled(self, scale: float) -> WithoutRows:
        heaviest = max(self.shares, key=lambda one: one.share)
        return replace(self, shares=(replace(heaviest, share=1.0, scale=scale),))

    def _refuse(self) -> NoReturn:
        raise ValueError(
            f"members are conditioned on {self.samples:,} training samples, which no file holds: pass them again, "
            "sample(..., refresh=training_batches), or save the ensemble itself where they are known, "
            "ensemble.save(path)"
        )
