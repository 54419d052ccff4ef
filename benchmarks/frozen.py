"""What a posterior of 8,000 tracked weights costs beside a frozen base of 300 MB.

    python benchmarks/frozen.py --out results/speed/frozen.json

Memory is what the kernel says of the process, before and after. With PYTHONPATH at the sources of another commit and
`--name before` its figures join those that are in the file. Times are of whatever machine it runs on: keep it idle.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tradi.bench.results import made_by
from tradi.storage.tensors import digest

MEMBERS = 20
GOALS = {"posterior_and_members_megabytes": 5.0, "file_megabytes": 1.0, "eight_threads_over_one": 1.6}


class Adapter(nn.Module):
    """A frozen layer and a trainable change of rank one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 1, False), nn.Linear(1, width, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def network(width: int) -> nn.Module:
    """Twelve frozen layers, one of them with an adapter, and a head: 75 million weights at a width of 2,500."""
    frozen = [nn.Linear(width, width).requires_grad_(False) for _ in range(11)]
    layers = [layer for one in (*frozen, Adapter(width)) for layer in (one, nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(width, 250).requires_grad_(False), nn.Tanh(), nn.Linear(250, 12))


def resident() -> int:
    """Bytes that the process holds in memory."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def milliseconds(function: Callable[[], object], repetitions: int) -> float:
    """The fastest of some calls."""
    found = []
    for _ in range(repetitions):
        started = time.perf_counter()
        function()
        found.append(time.perf_counter() - started)
    return round(1e3 * min(found), 3)


def measure(width: int, repetitions: int) -> dict[str, Any]:
    """Memory, times and sizes of files."""
    torch.manual_seed(0)
    model = network(width)
    x, y = torch.randn(64, width), torch.randint(12, (64,))
    data = list(zip(x.split(16), y.split(16), strict=True))
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(weights, 0.01)
    tracker = tradi.TRADI(model, optimizer)
    for inputs, target in data:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), target).backward()
        optimizer.step()
    optimizer.zero_grad()
    found: dict[str, Any] = {"base_megabytes": round(sum(p.nbytes for p in model.parameters()) / 1e6, 1)}
    found["tracked_weights"] = sum(p.numel() for p in weights)
    one = x[:1]
    with torch.no_grad():
        model(one)
        found["forward_milliseconds"] = milliseconds(lambda: model(one), repetitions)
    before = resident()
    found["posterior_milliseconds"] = milliseconds(tracker.posterior, repetitions)
    posterior = tracker.posterior()
    found["posterior_megabytes"] = round((resident() - before) / 1e6, 2)
    ensemble = posterior.sample(MEMBERS)
    ensemble(one)
    found["posterior_and_members_megabytes"] = round((resident() - before) / 1e6, 2)
    few = {members: posterior.sample(members) for members in (3, 4, MEMBERS)}
    calls = {members: milliseconds(partial(own, one), repetitions) for members, own in few.items()}
    found["call_milliseconds"] = calls
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior"
        found["save_milliseconds"] = milliseconds(lambda: posterior.save(path), 2)
        found["file_megabytes"] = round(path.stat().st_size / 1e6, 3)
        again = copy.deepcopy(model)
        found["load_milliseconds"] = milliseconds(lambda: tradi.load_posterior(path, again), 2)
    found["fit_seconds"] = round(milliseconds(lambda: posterior.fit(data, data), 1) / 1e3, 2)
    return found


def nanoseconds(function: Callable[[], object], units: int, repetitions: int) -> float:
    """Processor time per unit, of the fastest of some calls."""
    found = []
    for _ in range(repetitions):
        started = time.process_time()
        function()
        found.append(time.process_time() - started)
    return float(f"{1e9 * min(found) / units:.3g}")


def rates(width: int, repetitions: int) -> dict[str, float]:
    """The constants of `tradi.estimate`: an observed step, the draw of a member, the hash of frozen weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 2 * width), nn.Linear(2 * width, width))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    tracker = tradi.TRADI(model, optimizer)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    moved = dict.fromkeys(tracker.tracked, 0.01)
    posterior = tracker.posterior().with_covariance(tradi.Independent())
    weights = sum(p.numel() for p in model.parameters())
    frozen: dict[str, Tensor] = {name: p.detach() for name, p in model.named_parameters()}
    return {
        "step_per_weight": nanoseconds(lambda: tracker.observe(moved), weights, repetitions),
        "draw_per_weight": nanoseconds(lambda: posterior.draw(0), weights, repetitions),
        "hash_per_byte": nanoseconds(lambda: digest(frozen, {}), 4 * weights, repetitions),
    }


def threads(seconds: float) -> dict[str, float]:
    """Predictions a second of one ensemble by one thread and by eight."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    ensemble = tradi.methods.GaussianPerturbation(model, 0.01).sample(MEMBERS)
    x = torch.randn(128, 512)
    ensemble(x)

    def rate(workers: int) -> float:
        until = time.perf_counter() + seconds

        def work(_: int) -> int:
            done = 0
            while time.perf_counter() < until:
                ensemble(x)
                done += 1
            return done

        with ThreadPoolExecutor(workers) as pool:
            return sum(pool.map(work, range(workers))) / seconds

    one, eight = rate(1), rate(8)
    return {
        "one_thread": round(one, 1),
        "eight_threads": round(eight, 1),
        "eight_threads_over_one": round(eight / one, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", default="now", help="what the figures go by in the file")
    parser.add_argument("--quick", action="store_true", help="a small base: the figures say nothing")
    options = parser.parse_args()
    width, repetitions, seconds = (50, 1, 0.1) if options.quick else (2500, 5, 5.0)
    found: dict[str, Any] = {"load_before": os.getloadavg()[0], "threads": torch.get_num_threads()}
    found |= measure(width, repetitions) | {"predictions_a_second": threads(seconds)}
    found["nanoseconds"] = rates(width, repetitions)
    found["made_by"] = made_by()
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    known |= {options.name: found, "goals": GOALS, "command": "python benchmarks/frozen.py"}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(known, indent=2) + "\n")
    print(json.dumps(found, indent=2), file=sys.stderr)


if __name__ == "__main__":
    main()
