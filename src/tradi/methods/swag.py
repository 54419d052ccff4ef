"""SWAG (Maddox et al., 2019): a Gaussian fitted to weights collected along the end of training."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tradi.ensemble.copying import copied
from tradi.posterior.covariance import Covariance, Independent, Piece
from tradi.posterior.layers import Layer, by_layer
from tradi.posterior.posterior import Posterior
from tradi.posterior.randomness import Stream
from tradi.tracking.selection import Select, Weight, flat
from tradi.tracking.tracker import Rates, Tracker


@dataclass(frozen=True)
class LowRank(Covariance):
    r"""Half the variance on the diagonal, half in the plane of the last K deviations.

    $$ \tilde\omega = \bar\omega + \frac{1}{\sqrt 2} \sigma \odot z_1 + \frac{1}{\sqrt{2 (K - 1)}} D z_2, \quad
       z_1 \sim \mathcal N(0, I), \; z_2 \sim \mathcal N(0, I_K) $$

    z_2 is one vector for the whole network, unlike the noise of the other covariances.
    """

    def noise(self, layer: Layer, seed: int, member: int) -> Iterator[Piece]:
        for name, variance in layer.variance.items():
            D = layer.deviations[name].flatten(1)
            z1 = Stream(seed, member, name).normal(0, variance.numel(), variance.device).to(variance.dtype)
            z2 = Stream(seed, member, "deviations").normal(0, len(D), D.device).to(D.dtype)
            low_rank = (z2 @ D) / math.sqrt(2 * (len(D) - 1))
            yield name, slice(None), z1 * (variance.reshape(-1) / 2).sqrt() + low_rank


@dataclass(eq=False)
class Collected:
    """Mean, sum of squared deviations and the last deviations of one parameter over `count` collections."""

    mean: Tensor
    square: Tensor
    deviations: list[Tensor]
    count: int = 0

    def add(self, weight: Tensor, rank: int) -> None:
        """Welford's update; a deviation is from the mean at its time, as published."""
        self.count += 1
        before = weight - self.mean
        self.mean.add_(before / self.count)
        deviation = weight - self.mean
        self.square.addcmul_(before, deviation)
        if rank:
            self.deviations = [*self.deviations[1 - rank :], deviation]


class SWAG(Tracker):
    """Attach, train with a high constant learning rate towards the end, then take the `posterior()`.

    `posterior().rescaled(0)` is SWA, the mean alone; `rank=0` is the diagonal Gaussian.

    Args:
        model: any module; it is never modified.
        optimizer: any torch optimizer, or several that share the model.
        every: collect after every so many steps; `len(loader)` collects once an epoch. Of several optimizers, a step is
            one of each.
        start: steps that come before.
        rank: K, number of deviations kept; 0 for the diagonal alone.
        select: which weights, all trainable ones by default.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        every: int,
        start: int = 0,
        rank: int = 20,
        select: Select = "*",
    ) -> None:
        every, start, rank = (operator.index(number) for number in (every, start, rank))
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}")
        if start < 0:
            raise ValueError(f"start must not be negative, got {start}")
        if rank < 0 or rank == 1:
            raise ValueError(f"rank must be 0 (diagonal) or at least 2, got {rank}")
        self.every, self.start, self.rank = every, start, rank
        self._collected: dict[Weight, Collected] = {}
        self._collected_at = 0
        super().__init__(model, optimizer, select)

    @property
    def options(self) -> dict[str, Any]:
        return {"every": self.every, "start": self.start, "rank": self.rank}

    def observe(self, moved: Rates) -> None:
        del moved
        if (
            self.rounds > self._collected_at
            and self.rounds > self.start
            and (self.rounds - self.start) % self.every == 0
        ):
            self.collect()

    @torch.no_grad()
    def collect(self) -> None:
        """Take the weights as they are now into account."""
        self._collected_at = self.rounds
        if not self.usable(self.selected.values()):
            return
        for weight in self.selected.values():
            parameter = weight.parameter
            if weight not in self._collected and not parameter.requires_grad:
                continue  # one that is frozen later is still collected, so that deviations belong together
            value = flat(parameter).view(parameter.shape).to(torch.promote_types(parameter.dtype, torch.float32))
            if weight not in self._collected:
                self._collected[weight] = Collected(torch.zeros_like(value), torch.zeros_like(value), [])
            self._collected[weight].add(value, self.rank)

    def _current(self) -> dict[str, Collected]:
        """What was collected of the weights that are still in the model, by parameter name."""
        return {name: self._collected[w] for name, w in self.selected.items() if w in self._collected}

    def snapshot(self) -> Posterior:
        collected = self._current()
        collections = max((c.count for c in collected.values()), default=0)
        if collections < 2:
            raise RuntimeError(
                f"{collections} collection(s) in {self.rounds} steps, and SWAG needs 2: train longer, or lower "
                f"start = {self.start} or every = {self.every}"
            )
        model = copied(self.model, own=collected)
        final = {name: parameter.detach() for name, parameter in model.named_parameters()}
        mean = {name: c.mean.clone() for name, c in collected.items()}
        variance = {name: c.square / c.count for name, c in collected.items()}
        if not self.rank:
            return Posterior(model, by_layer(final, mean, variance), Independent())
        deviations = {name: _columns(c, min(self.rank, collections)) for name, c in collected.items()}
        return Posterior(model, by_layer(final, mean, variance, deviations=deviations), LowRank())

    def tracked_state(self) -> dict[str, Any]:
        return {
            "collected_at": self._collected_at,
            "weights": {
                name: {
                    "mean": c.mean.clone(),
                    "square": c.square.clone(),
                    "deviations": _columns(c, len(c.deviations)),
                    "count": c.count,
                }
                for name, c in self._current().items()
            },
        }

    def load_tracked_state(self, state: dict[str, Any]) -> None:
        own, collected = self.selected, {}
        try:
            collected_at = operator.index(state["collected_at"])
            for name, saved in state["weights"].items():
                collected[own[name]] = _collected(saved, own[name].parameter)
        except (AttributeError, LookupError, TypeError, RuntimeError) as error:
            raise ValueError(f"the checkpoint is damaged: {type(error).__name__}: {error}") from error
        self._collected_at, self._collected = collected_at, collected


def _collected(saved: dict[str, Any], parameter: Tensor) -> Collected:
    """What was collected of one weight, from a checkpoint.

    Raises:
        ValueError: if its tensors do not have the weight's shape.
    """
    device, dtype = parameter.device, torch.promote_types(parameter.dtype, torch.float32)
    mean, square, rows = (saved[part].to(device, dtype, copy=True) for part in ("mean", "square", "deviations"))
    if not mean.shape == square.shape == rows.shape[1:] == parameter.shape:
        raise ValueError(
            f"the checkpoint is damaged: a weight of shape {tuple(parameter.shape)} has a mean of shape "
            f"{tuple(mean.shape)}, squares of {tuple(square.shape)} and deviations of {tuple(rows.shape)}"
        )
    count = operator.index(saved["count"])
    if not len(rows) <= count:
        raise ValueError(f"the checkpoint is damaged: {len(rows)} deviations in {count} collections")
    return Collected(mean, square, list(rows), count)


def _columns(collected: Collected, columns: int) -> Tensor:
    """The last deviations, (columns, ...); a weight that joined late did not deviate before."""
    missing = [torch.zeros_like(collected.mean)] * (columns - len(collected.deviations))
    rows = [*missing, *collected.deviations]
    return torch.stack(rows) if rows else collected.mean.new_zeros(0, *collected.mean.shape)
