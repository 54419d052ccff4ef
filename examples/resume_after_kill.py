"""A training is killed, resumes, and ends as if nothing had happened: python examples/resume_after_kill.py.

A first process trains and saves a checkpoint after every epoch, until it is killed. A second one resumes from the file.
Ends in a table that compares their posterior with that of a run that nobody killed: they are the same bit for bit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import tradi

EPOCHS = 6


def train(checkpoint: Path, killed_in: int | None = None) -> tradi.Posterior:
    """Train for all epochs, from the checkpoint if it is there."""
    torch.manual_seed(0)
    x, y = torch.randn(256, 8), torch.randint(3, (256,))
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    parts = {"model": model, "optimizer": optimizer, "tracker": tracker}
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        start = saved.pop("epoch")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
        print(f"resumed after epoch {start}")
    for epoch in range(start, EPOCHS):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for number, batch in enumerate(order.split(32)):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
            if epoch == killed_in and number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        beside = checkpoint.with_suffix(".partial")  # a kill while writing leaves the old file
        torch.save({name: part.state_dict() for name, part in parts.items()} | {"epoch": epoch + 1}, beside)
        beside.replace(checkpoint)
    return tracker.posterior()


def main(folder: Path = Path()) -> None:
    """Kill a training in its fourth epoch, resume it, and compare."""
    checkpoint, whole = folder / "killed.pt", folder / "whole.pt"
    for old in (checkpoint, whole):
        old.unlink(missing_ok=True)
    ended = subprocess.run([sys.executable, __file__, str(checkpoint)], check=False).returncode
    print(f"the first process ended with {ended}: killed in epoch 4 of {EPOCHS}")
    resumed, never_killed = train(checkpoint), train(whole)
    print(f"{'weight':10}{'mean, never killed':>20}{'mean, resumed':>16}{'same bit for bit':>18}")
    for name, mean in never_killed.mean.items():
        same = torch.equal(resumed.mean[name], mean) and torch.equal(
            resumed.variance[name], never_killed.variance[name]
        )
        first, other = mean.flatten()[0], resumed.mean[name].flatten()[0]
        print(f"{name:10}{first:>20.8f}{other:>16.8f}{same!s:>18}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        train(Path(sys.argv[1]), killed_in=3)
    else:
        main()
