"""One training run, followed by any number of trackers, and the time that each of them takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tradi.bench.problem import Data, Shuffled
from tradi.bench.recipe import Recipe
from tradi.methods import SWAG, TRADI
from tradi.posterior import Posterior
from tradi.regression import MeanVariance
from tradi.tracking import Move

# Attaches a tracker, given how many steps an epoch has and how many epochs there will be.
Attach = Callable[[nn.Module, Optimizer, int, int], TRADI | SWAG]


@dataclass(frozen=True, eq=False)
class Run:
    """A trained network and what was tracked of its training.

    Args:
        model: the network, in eval mode.
        posteriors: by tracker.
        seconds: of training, trackers apart.
        tracking: seconds by tracker.
        steps: optimizer steps.
    """

    model: nn.Module
    posteriors: dict[str, Posterior]
    seconds: float
    tracking: dict[str, float]
    steps: int


def train(model: nn.Module, data: Data, recipe: Recipe, attach: dict[str, Attach]) -> Run:
    """Train a network by a recipe with all the given trackers attached at once."""
    optimizer = recipe.build(model)
    loader = Shuffled(data.train, recipe.batch)
    trackers = {name: one(model, optimizer, len(loader), recipe.total_epochs) for name, one in attach.items()}
    clocks = {name: _clocked(tracker) for name, tracker in trackers.items()}
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    optimizer.register_step_post_hook(count)
    started = time.perf_counter()
    if isinstance(model, MeanVariance) and recipe.stages is not None:
        recipe.stages.fit(model, optimizer, loader, data.validation_batches)
    else:
        _classify(model, optimizer, loader, recipe)
    seconds = time.perf_counter() - started
    tracking = {name: clock[0] for name, clock in clocks.items()}
    posteriors = {name: tracker.posterior() for name, tracker in trackers.items()}
    return Run(model.eval(), posteriors, seconds - sum(tracking.values()), tracking, steps)


def _classify(model: nn.Module, optimizer: Optimizer, loader: Shuffled, recipe: Recipe) -> None:
    schedule = recipe.schedule(optimizer, len(loader))
    model.train()
    for _ in range(recipe.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()


def _clocked(tracker: TRADI | SWAG) -> list[float]:
    """Let a tracker measure itself: the one element of the list counts the seconds spent in `observe`."""
    clock, observe = [0.0], tracker.observe

    def timed(moves: list[Move]) -> None:
        started = time.perf_counter()
        observe(moves)
        clock[0] += time.perf_counter() - started

    tracker.observe = timed  # type: ignore[method-assign]
    return clock
