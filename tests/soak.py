"""Trainings that are killed again and again, and long ones: `make soak`, and in short form test_soak.py.

    python -m tests.soak kills FOLDER --kills 60     every posterior must be that of a run nobody killed, bit for bit
    python -m tests.soak load --steps 10000          memory must stay flat
    python -m tests.soak members --members 1000      so many members predict, in the memory of their outputs

Children are forked, which spares them the import of torch, and kill themselves by SIGKILL at a chosen place.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import tradi
from tests.training import network, problem
from tradi.methods import SWAG
from tradi.storage.atomic import replacing
from tradi.tracking.tracker import Tracker

STEPS = 12
EVERY = 2  # steps between two saves
DATA = problem()
PLACES = ("step", "write", "fsync", "replace", "renamed")  # where a run is killed: the last four lie inside a save


class Run:
    """A training and all its state."""

    def __init__(self, optimizer: str, tracker: Callable[[nn.Module, Any], Tracker], mixed: bool = False) -> None:
        self.model = network()
        kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        self.optimizer = kinds[optimizer](self.model.parameters(), lr=0.02)
        self.tracker = tracker(self.model, self.optimizer)
        self.mixed = mixed
        self.scaler = torch.amp.GradScaler("cpu", enabled=mixed, init_scale=2.0**127)  # the first steps are skipped

    def step(self, number: int) -> None:
        x, y = DATA[number % len(DATA)]
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def save(self, path: Path, done: int) -> None:
        state = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "tracker", "scaler")}
        content = io.BytesIO()
        torch.save(state | {"done": done, "random": torch.get_rng_state()}, content)
        half = len(content.getvalue()) // 2
        with replacing(path) as file:
            file.write(content.getvalue()[:half])
            reached("write", done)
            file.write(content.getvalue()[half:])

    def load(self, path: Path) -> int:
        if not path.exists():
            torch.manual_seed(1)
            return 0
        state = torch.load(path, weights_only=True)
        for name in ("model", "optimizer", "tracker", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        torch.set_rng_state(state["random"])
        return int(state["done"])


RUNS: dict[str, Callable[[], Run]] = {
    "SGD": lambda: Run("sgd", tradi.TRADI),
    "AdamW": lambda: Run("adamw", tradi.TRADI),
    "bf16 and GradScaler": lambda: Run("adamw", tradi.TRADI, mixed=True),
    "SWAG": lambda: Run("sgd", lambda model, optimizer: SWAG(model, optimizer, every=3, rank=4)),
    "full covariance": lambda: Run("sgd", lambda m, o: tradi.TRADI(m, o, covariance=tradi.FullCovariance())),
}

chosen: tuple[str, int] | None = None  # where this process ends


def reached(place: str, done: int) -> None:
    if chosen == (place, done):
        os.kill(os.getpid(), signal.SIGKILL)


def train(name: str, folder: Path) -> None:
    """Go on from the checkpoint, if there is one, to the end; then write the posterior."""
    run, path = RUNS[name](), folder / "run.pt"
    for number in range(run.load(path), STEPS):
        run.step(number)
        done = number + 1
        reached("step", done)
        if done % EVERY == 0:
            with dying_inside(done):
                run.save(path, done)
            reached("renamed", done)
    run.tracker.posterior().save(folder / "posterior.safetensors")


class dying_inside:  # noqa: N801
    """Let the calls by which a file appears under its name be places to die at."""

    def __init__(self, done: int) -> None:
        self.done, self.kept = done, (os.fsync, Path.replace)

    def __enter__(self) -> None:
        fsync, replace = self.kept

        def dying_fsync(number: Any) -> None:
            reached("fsync", self.done)
            fsync(number)

        def dying_replace(path: Path, target: Any) -> Any:
            reached("replace", self.done)
            return replace(path, target)

        os.fsync, Path.replace = dying_fsync, dying_replace  # type: ignore[assignment, method-assign]

    def __exit__(self, *_: object) -> None:
        os.fsync, Path.replace = self.kept  # type: ignore[method-assign]


def forked(name: str, folder: Path, where: tuple[str, int] | None) -> int:
    """The signal that ended a child which trains; 0 if it came to the end."""
    global chosen
    child = os.fork()
    if child == 0:
        chosen = where
        try:
            train(name, folder)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"{name}: a child that was to die at {where} failed")
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kills(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Kill every kind of run `count / kinds` times or more, and compare its posterior with one of an unkilled run."""
    draw, found = random.Random(seed), {}
    for name in RUNS:
        whole, warm = folder / name / "whole", folder / name / "warm"
        whole.mkdir(parents=True)
        warm.mkdir()
        train(name, warm)  # what torch imports only when it is used, children find imported
        if forked(name, whole, None):
            raise SystemExit(f"{name}: the run that nobody kills was killed")
        expected, died, rounds, equal = (whole / "posterior.safetensors").read_bytes(), 0, 0, 0
        while died < count / len(RUNS):
            place = folder / name / f"killed-{rounds}"
            place.mkdir()
            for number in range(1, STEPS + 1):  # in any order, a later place might be passed already
                where = draw.choice(PLACES if number % EVERY == 0 else PLACES[:1])
                died += forked(name, place, (where, number)) == signal.SIGKILL
            if forked(name, place, None):
                raise SystemExit(f"{name}: the last child was killed by somebody else")
            equal += (place / "posterior.safetensors").read_bytes() == expected
            rounds += 1
        left = sum(path.name.endswith(".partial") for path in (folder / name).rglob("*"))
        found[name] = {"killed": died, "runs": rounds, "equal": equal, "partial files left": left}
    return found


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def load(steps: int) -> dict[str, Any]:
    """Steps of an optimizer that are tracked, and the memory and the objects at a tenth of them and at the end."""
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    trackers = [tradi.TRADI(model, optimizer), SWAG(model, optimizer, every=20, rank=5)]
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    sizes = []
    for number in range(1, steps + 1):
        optimizer.step()
        if number in (steps // 10, steps):
            for tracker in trackers:
                tracker.posterior()  # before memory is read: the first one fills caches, which is no growth
            objects = len(gc.get_objects())  # a list of megabytes, before memory is read for the same reason
            sizes.append((resident(), objects))
    (early, fewer), (late, more) = sizes
    finite = all(value.isfinite().all() for t in trackers for value in t.posterior().variance.values())
    return {"steps": trackers[0].steps, "bytes grown": late - early, "objects grown": more - fewer, "finite": finite}


def members(count: int) -> dict[str, Any]:
    """So many members that predict; draws again give the same ones."""
    run = RUNS["SGD"]()
    for number in range(STEPS):
        run.step(number)
    posterior, before = run.tracker.posterior(), resident()
    ensemble = posterior.sample(count, seed=1, refresh=DATA)
    outputs = ensemble(DATA[0][0])
    prediction = ensemble.predict(DATA)
    again = posterior.sample(count, seed=1, refresh=DATA)
    return {
        "members": len(outputs),
        "different": len({tuple(row.flatten().tolist()) for row in outputs}),
        "finite": bool(prediction.probs.isfinite().all()),
        "same again": bool(torch.equal(again[count - 1].eval()(DATA[0][0]), ensemble[count - 1].eval()(DATA[0][0]))),
        "bytes grown": resident() - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    killing = commands.add_parser("kills")
    killing.add_argument("folder", type=Path)
    killing.add_argument("--kills", type=int, default=60)
    killing.add_argument("--seed", type=int, default=0)
    commands.add_parser("load").add_argument("--steps", type=int, default=10_000)
    commands.add_parser("members").add_argument("--members", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "kills":
        found = kills(options.folder, options.kills, options.seed)
    else:
        found = load(options.steps) if options.command == "load" else members(options.members)
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
