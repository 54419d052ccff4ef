"""One training run, followed by any number of trackers, and the time that each of them takes."""

from __future__ import annotations

import copy
import hashlib
import io
import operator
import time
import warnings
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tradi._torch import compiled_or_plain
from tradi.bench.identity import fingerprint
from tradi.bench.problem import Problem
from tradi.bench.recipe import Recipe
from tradi.models.regression import GaussianHead
from tradi.posterior.posterior import Posterior
from tradi.progress import track
from tradi.storage.atomic import write_whole
from tradi.tracking.tracker import Tracker

DIGEST = 32  # bytes before a checkpoint

# Attaches a tracker, given how many steps an epoch has and the recipe.
Attach = Callable[[nn.Module, Optimizer, int, Recipe], Tracker]


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


def train(
    model: nn.Module, problem: Problem, recipe: Recipe, attach: dict[str, Attach], checkpoint: Path | None = None
) -> Run:
    """Train a network by a recipe with all the given trackers attached at once.

    Args:
        model: a fresh one.
        problem: what it learns.
        recipe: how.
        attach: trackers by name.
        checkpoint: file in which a run of epochs is kept after each of them, and from which it goes on if it is there.
    """
    start = fingerprint(model.state_dict().values())  # which depends on a seed or a file of weights
    optimizer = recipe.build(model, int(problem.about["train"]))
    loader = problem.training(recipe.batch)
    trackers, clocks = {}, {name: Clock() for name in attach}
    for name, build in attach.items():  # hooks run in the order of their registration
        optimizer.register_step_post_hook(clocks[name].start)
        trackers[name] = build(model, optimizer, len(loader), recipe)
        optimizer.register_step_post_hook(clocks[name].stop)
    forward = compiled_or_plain(model) if recipe.compiled else model
    run = _Training(model, forward, optimizer, partial(recipe.sampled, optimizer), trackers, clocks)
    optimizer.register_step_post_hook(run.count)
    if isinstance(model, GaussianHead) and recipe.stages is not None:
        started = time.perf_counter()
        recipe.stages.fit(model, optimizer, loader, problem.validation_batches)
        run.seconds = time.perf_counter() - started
    else:
        schedule = recipe.schedule(optimizer, len(loader))
        kept = _Kept(checkpoint, f"{recipe!r}\n{model!r}\n{start}\n{problem.about}", recipe.epochs, run, schedule)
        done = kept.resume()
        for epoch in track(range(done, recipe.epochs), "training, epochs", recipe.epochs - done):
            run.epoch(loader, problem.loss, schedule)
            kept.write(epoch + 1)
    tracking = {name: clock.seconds for name, clock in clocks.items()}
    posteriors = {name: tracker.posterior() for name, tracker in trackers.items()}
    return Run(model.eval(), posteriors, run.seconds - sum(tracking.values()), tracking, run.steps)


@dataclass(eq=False)
class Clock:
    """Seconds between two hooks of an optimizer, added up over its steps."""

    seconds: float = 0.0
    started: float = 0.0

    def start(self, *_: object) -> None:
        self.started = time.perf_counter()

    def stop(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.started


@dataclass(eq=False)
class _Training:
    """A run under way."""

    model: nn.Module
    forward: Callable[..., Any]
    optimizer: Optimizer
    sampled: Callable[[], AbstractContextManager[None]]
    trackers: dict[str, Tracker]
    clocks: dict[str, Clock]
    seconds: float = 0.0
    steps: int = 0

    def count(self, *_: object) -> None:
        self.steps += 1

    def epoch(self, loader: Any, loss: Callable[..., torch.Tensor], schedule: LRScheduler) -> None:
        started = time.perf_counter()
        self.model.train()
        for x, y in loader:
            with self.sampled():
                self.optimizer.zero_grad()
                loss(self.forward(x), y).backward()
            self.optimizer.step()
            schedule.step()
        self.seconds += time.perf_counter() - started


@dataclass(eq=False)
class _Kept:
    """A run as it is kept in a file, with all that decides how it goes on: a resumed run is the uninterrupted one.

    Args:
        path: of the file; None keeps nothing.
        settings: another run's file, of other settings or without a tracker that is asked for, is as good as none.
        epochs: of the whole run.
        run: what is kept.
        schedule: of its learning rate.
        known: the first bytes of the file that this process has written last.
    """

    path: Path | None
    settings: str
    epochs: int
    run: _Training
    schedule: LRScheduler
    known: bytes = b""

    def resume(self) -> int:
        """Put the run where the file left it, or leave all as it was; the number of epochs that are done.

        Raises:
            ValueError: if the file is damaged, or none of a run.
        """
        if self.path is None or not self.path.exists():
            return 0
        content, before = self.path.read_bytes(), copy.deepcopy(self._state(0))
        try:
            saved = _unpacked(content)
            if not self._is_mine(saved):
                return 0
            done = operator.index(saved["epochs"])
            if not 0 <= done <= self.epochs:
                raise ValueError(f"{done} of {self.epochs} epochs")
            self._load(saved)
        except Exception as error:  # whatever a decoder, or torch, may say of a damaged file
            self._load(before)
            said = f"{type(error).__name__}: {error}"
            raise ValueError(f"{self.path} cannot be resumed from ({said}): delete it to train again") from error
        return done

    def write(self, epochs: int) -> None:
        """Replace the file in one go: a killed process leaves no half of one. What is further stays."""
        if self.path is not None and not self._is_further(self.path, epochs):
            content = _packed(self._state(epochs))
            write_whole(self.path, content)
            self.known = content[:DIGEST]

    def _is_further(self, path: Path, epochs: int) -> bool:
        """Whether another process has put the same run there, with more epochs done."""
        if not path.exists():
            return False
        with path.open("rb") as file:
            if file.read(DIGEST) == self.known:
                return False
        try:
            saved = _unpacked(path.read_bytes())
            mine = saved["settings"] == self.settings and self.run.trackers.keys() <= saved["trackers"].keys()
            return bool(mine and saved["epochs"] > epochs)
        except Exception:  # whatever a decoder may say of a damaged file
            return False

    def _state(self, epochs: int) -> dict[str, Any]:
        run = self.run
        return {
            "settings": self.settings,
            "epochs": epochs,
            "model": run.model.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "trackers": {name: tracker.state_dict() for name, tracker in run.trackers.items()},
            "clocks": {name: clock.seconds for name, clock in run.clocks.items()},
            "seconds": run.seconds,
            "steps": run.steps,
            "random": torch.get_rng_state(),
        }

    def _load(self, saved: dict[str, Any]) -> None:
        run = self.run
        run.model.load_state_dict(saved["model"])
        run.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        for name, tracker in run.trackers.items():
            tracker.load_state_dict(saved["trackers"][name])
            run.clocks[name].seconds = float(saved["clocks"][name])
        run.seconds, run.steps = float(saved["seconds"]), operator.index(saved["steps"])
        torch.set_rng_state(saved["random"])

    def _is_mine(self, saved: dict[str, Any]) -> bool:
        wanted, kept = self.run.trackers.keys(), saved["trackers"].keys()
        if saved["settings"] != self.settings or not wanted <= kept:
            what = "was trained otherwise" if saved["settings"] != self.settings else "lacks trackers asked for now"
            warnings.warn(f"{self.path} {what}: it is trained again in its place", stacklevel=5)
            return False
        if wanted < kept and saved["epochs"] < self.epochs:
            warnings.warn(
                f"{self.path} goes on without the trackers of methods that are not asked for now: these would have to "
                "train again",
                stacklevel=5,
            )
        return True


def _packed(state: dict[str, Any]) -> bytes:
    """A checkpoint with its SHA-256 before it: torch itself does not notice every damage to a tensor."""
    content = io.BytesIO()
    torch.save(state, content)
    return hashlib.sha256(content.getbuffer()).digest() + content.getvalue()


def _unpacked(content: bytes) -> dict[str, Any]:
    digest, packed = content[:DIGEST], content[DIGEST:]
    if hashlib.sha256(packed).digest() != digest:
        raise ValueError("it is damaged, or no checkpoint of a run")
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it holds packed entries, which torch does not write: they may unpack to any size")
    state: dict[str, Any] = torch.load(io.BytesIO(packed), weights_only=True)
    return state
