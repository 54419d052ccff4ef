"""What TRADI costs: tracking against training, sampling against memory, prediction against plain passes; and peers.

    python benchmarks/speed.py --out results/speed/speed.json

prints one JSON object, and a table on standard error. Every figure is a ratio of medians of alternate measurements in
this process. Run it on an idle machine; the load is written down beside the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from networks import Network, Still, Weights, networks, resnet18, size
from peers import nbytes, peers
from timing import Times, Traffic, alternately, exponent, peak_bytes, ratio
from torch import Tensor, nn
from torch.func import functional_call

import tradi
from tracking import OBSERVED, looks, tracking
from tradi.ensemble.parameter_swap import ParameterSwap

GOALS = {
    "track_step_over_train_step": {"mnist-mlp": 0.05, "enet": 0.03, "transformer": 0.03},
    "track_step_over_fused_adam_step": 1.0,
    "track_step_over_memory_floor": 1.3,
    "state_bytes_per_weight": 8,
    "sample_over_memory_floor": 5,
    "numpy_over_sample": 50,
    "predict_20_over_20_forwards": 1.05,
    "refresh_20_over_20_passes": 1.05,
    "attach_seconds_beyond_allocation": 1.0,
}
MEMBERS = 20
LIST_STEPS = 10_000  # a run's length for a list of weights that nobody trains


def shares(times: dict[str, Times], of: str) -> dict[str, Any]:
    return {name: ratio(times[name], times[of]) for name in ("run", "observed", "passed_over")}


def of_networks(all_networks: dict[str, Network], repetitions: int) -> dict[str, Any]:
    train_step, adam_step = {}, {}
    for name, network in all_networks.items():
        parameters = list(network.model.parameters())
        adam = torch.optim.Adam(parameters, 1e-6, fused=True)
        train = network.train_step(torch.optim.Adam(parameters, 1e-4))  # as most people write it
        fused = network.train_step(adam)
        train()
        others = {"train": train, "train_fused": fused, "adam": adam.step}
        times = tracking(network.model, network.steps, repetitions, before=train, **others)
        about = {"weights": size(network.model), "steps": network.steps, "looks": looks(network.steps)}
        train_step[name] = shares(times, "train") | about
        train_step[name]["run_with_fused_adam"] = ratio(times["run"], times["train_fused"])
        adam_step[name] = shares(times, "adam") | about
    return {"train": train_step, "adam": adam_step}


def of_weights(model: Weights, repetitions: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tracking a large list of weights against fused Adam and against streaming the same memory."""
    parameters = list(model.parameters())
    weights = [p.detach().view(-1) for p in parameters]
    a, b = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    for p in parameters:
        p.grad = torch.zeros_like(p)
    adam = torch.optim.Adam(parameters, 1e-6, fused=True)

    def five_arrays() -> None:
        """Read w, mu, var, write mu, var: a copy_ reads one array and writes one, so this is two and a half."""
        for w, mu, var in zip(weights, a, b, strict=True):
            mu.copy_(w)
            var.copy_(w)
            mu[: len(mu) // 2].copy_(var[: len(mu) // 2])

    times = tracking(model, LIST_STEPS, repetitions, adam=adam.step, floor=five_arrays)
    about = {"weights": size(model), "steps": LIST_STEPS, "looks": looks(LIST_STEPS)}
    return shares(times, "adam") | about, shares(times, "floor") | about


def traffic(model: nn.Module) -> dict[str, Any]:
    """What one observed step of a large list does, by count: a figure that no other process can disturb."""
    optimizer = Still(model.parameters())
    tracker = tradi.TRADI(model, optimizer, kalman=OBSERVED)
    optimizer.step()
    with Traffic() as counted:
        optimizer.step()
    held = tracker.state_dict()["weights"].values()
    state = sum(nbytes([*block["mean"].values(), block["second"]]) for block in held)
    tracker.detach()
    weights = size(model)
    return {
        "operations": counted.operations,
        "bytes_touched_per_weight": round(counted.bytes / weights, 2),
        "state_bytes_per_weight": state / weights,
    }


def tracked(model: nn.Module) -> tradi.Posterior:
    """A posterior of weights that moved a little."""
    optimizer = Still(model.parameters())
    with tradi.TRADI(model, optimizer) as tracker, torch.no_grad():
        for step in range(3):
            for parameter in model.parameters():
                parameter.mul_(1 + 0.01 * (-1) ** step)
                parameter.grad = torch.zeros(1).expand(parameter.shape)
            optimizer.step()
        return tracker.posterior()


def sampling(model: nn.Module, repetitions: int) -> dict[str, Any]:
    posterior = tracked(model)
    final = {name: p.detach() for name, p in posterior.model.named_parameters()}
    out = {name: torch.empty_like(w) for name, w in final.items()}
    members = iter(range(1 << 30))

    def three_arrays() -> None:
        """Read w and mu, write the member: a copy and a half."""
        for w, o in zip(final.values(), out.values(), strict=True):
            o.copy_(w)
            o.view(-1)[: o.numel() // 2].copy_(w.view(-1)[: o.numel() // 2])

    times = alternately(repetitions, sample=lambda: posterior.draw(next(members)), floor=three_arrays)
    slow = alternately(
        max(repetitions // 4, 2),
        sample=lambda: posterior.draw(next(members)),
        numpy=lambda: released_in_numpy(posterior, final),
    )
    return {
        "sample_over_memory_floor": ratio(times["sample"], times["floor"]) | {"weights": size(model)},
        "members_a_second": round(1 / times["sample"].seconds, 2),
        "nanoseconds_per_weight": round(1e9 * times["sample"].seconds / size(model), 2),
        "numpy_over_sample": ratio(slow["numpy"], slow["sample"]),
    }


def released_in_numpy(posterior: tradi.Posterior, final: dict[str, Tensor]) -> dict[str, Any]:
    """The released script's member, in float64: a phase for every weight and feature, so weights x features arrays."""
    generator, features = np.random.default_rng(0), 10
    members = {}
    for name, weight in final.items():
        w = weight.double().numpy().reshape(-1, 1)
        std = np.sqrt(np.maximum(posterior.variance[name].double().numpy().reshape(-1, 1), 0))
        theta = generator.normal(size=(1, features))
        phi = generator.uniform(0, 2 * np.pi, (len(w), features))
        z = std * np.cos(w * theta + phi)
        noise = np.sqrt(2 / features) * (z @ generator.normal(size=(features, 1)))
        members[name] = (posterior.mean[name].double().numpy().reshape(-1, 1) + noise).astype(np.float32)
    return members


def prediction(network: Network, repetitions: int) -> dict[str, Any]:
    """20 members from first to last, drawing included, against 20 passes of an ordinary module."""
    posterior = tracked(network.model)
    data = [network.x.clone() for _ in range(network.batches)]
    plain = posterior.final()[0]
    layers = [module for module in plain.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]

    @torch.no_grad()
    def forwards() -> Tensor:
        """What predict gives."""
        return torch.stack([torch.cat([plain(x) for x in data]) for _ in range(MEMBERS)])

    @torch.no_grad()
    def passes() -> None:
        """What refresh does: BatchNorm has statistics to compute, and nobody wants the outputs."""
        for layer in layers:
            layer.train()
        for x in data * MEMBERS:
            plain(x)
        plain.eval()

    functions: dict[str, Callable[[], object]] = {
        "predict": lambda: posterior.sample(MEMBERS).outputs(data),
        "forwards": forwards,
    }
    if layers:
        functions |= {"refresh": lambda: posterior.sample(MEMBERS).refresh(data), "passes": passes}
    times = alternately(repetitions, **functions)
    found = {"predict_20_over_20_forwards": ratio(times["predict"], times["forwards"])}
    if layers:
        found["refresh_20_over_20_passes"] = ratio(times["refresh"], times["passes"])
        found["refresh_20_over_20_forwards"] = ratio(times["refresh"], times["forwards"])
    return found


def growth(sizes: list[int], members: list[int], width: int, repetitions: int) -> dict[str, Any]:
    """Time and memory against the number of weights, and of prediction against the number of members."""
    rows = [_of_size(weights, repetitions) for weights in sizes]
    keys = [key for key in rows[0] if key.endswith(("_seconds", "_bytes")) and rows[0][key] is not None]
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4)))
    posterior = tracked(model)
    x = torch.randn(8, width)
    predicted = []
    for count in members:
        ensemble = posterior.sample(count)

        def run(ensemble: Any = ensemble) -> None:
            for _ in ensemble.iterate([x]):
                pass

        started = time.perf_counter()
        peak = peak_bytes(run)
        predicted.append({"members": count, "seconds": time.perf_counter() - started, "peak_bytes": peak})
    return {
        "weights": rows,
        "exponents_in_weights": {key: exponent(sizes, [row[key] for row in rows]) for key in keys},
        "prediction": predicted,
        "prediction_weights": size(model),
        "exponents_in_members": {
            key: exponent(members, [row[key] for row in predicted])
            for key in ("seconds", "peak_bytes")
            if predicted[0][key] is not None
        },
    }


def _of_size(weights: int, repetitions: int) -> dict[str, Any]:
    model = Weights([(weights // 10,)] * 10)
    optimizer = Still(model.parameters())
    started = time.perf_counter()
    tracker = tradi.TRADI(model, optimizer, kalman=OBSERVED)
    attached = time.perf_counter() - started
    state = peak_bytes(optimizer.step)
    times = alternately(repetitions, track=optimizer.step)
    tracker.detach()
    del tracker
    posterior = tracked(model)
    members = iter(range(1 << 30))
    drawing = peak_bytes(lambda: posterior.draw(next(members)))
    times |= alternately(repetitions, sample=lambda: posterior.draw(next(members)))
    return {
        "weights": weights,
        "attach_seconds": attached,
        "track_seconds": times["track"].seconds,
        "track_bytes": state,
        "sample_seconds": times["sample"].seconds,
        "sample_bytes": drawing,
    }


def overhead(network: Network, repetitions: int) -> dict[str, Any]:
    """Running a module with other weights: looked up once, as members are, and at every call, as torch does."""
    model = network.model.eval()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    member, x = ParameterSwap(model).with_state(state), network.x[:1]

    @torch.no_grad()
    def held() -> None:
        with member:
            model(x)

    times = alternately(
        20 * repetitions,
        plain=torch.no_grad()(lambda: model(x)),
        held=held,
        called=torch.no_grad()(lambda: functional_call(model, state, (x,))),
    )
    return {name: ratio(times[name], times["plain"]) for name in ("held", "called")}


def compiled(weights: int, repetitions: int) -> dict[str, Any]:
    """What torch.compile would make of an observed step, and how long it would keep a run waiting for that."""

    def update(w: Tensor, mean: Tensor, second: Tensor, q: float) -> None:
        innovation = w - mean
        mean.add_(innovation, alpha=q)
        second.mul_(1 - q).addcmul_(innovation, innovation, value=q * (1 - q))

    model = Weights([(weights,)])
    (parameter,) = model.parameters()
    w, mean, second = parameter.detach(), parameter.detach().clone(), torch.zeros(weights)
    fast = torch.compile(update)
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as empty:  # what an earlier run compiled does not count
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
            fast(w, mean, second, 0.1)
    except Exception as error:  # no compiler: a figure less
        return {"missing": type(error).__name__}
    waiting = time.perf_counter() - started
    times = tracking(model, LIST_STEPS, repetitions, compiled=lambda: fast(w, mean, second, 0.1))
    return {"seconds_to_compile": round(waiting, 2)} | ratio(times["observed"], times["compiled"])


def of_tracking(all_networks: dict[str, Network], large: Weights, repetitions: int) -> dict[str, Any]:
    of_all = of_networks(all_networks, repetitions)
    adam, floor = of_weights(large, repetitions)
    counts = traffic(large)
    return {
        "track_step_over_train_step": of_all["train"],
        "track_step_over_fused_adam_step": of_all["adam"] | {"resnet18-weights": adam},
        "track_step_over_memory_floor": {"resnet18-weights": floor},
        "by_count": counts,
        "state_bytes_per_weight": counts["state_bytes_per_weight"],
    }


def of_prediction(all_networks: dict[str, Network], quick: bool, repetitions: int) -> dict[str, Any]:
    rows = {name: prediction(network, 2 if quick else network.rounds) for name, network in all_networks.items()}
    keys = ("predict_20_over_20_forwards", "refresh_20_over_20_passes", "refresh_20_over_20_forwards")
    found: dict[str, Any] = {key: {name: own[key] for name, own in rows.items() if key in own} for key in keys}
    return found | {"other_weights_over_own": overhead(all_networks["mnist-mlp"], repetitions)}


def of_growth(quick: bool) -> dict[str, Any]:
    sizes = [10_000, 100_000, 1_000_000] if quick else [1_000_000, 10_000_000, 100_000_000]
    found = growth(sizes, [2, 4, 8] if quick else [5, 20, 80], 64 if quick else 2048, 2 if quick else 5)
    # Attaching allocates nothing: the state is made at the first step.
    return {"growth": found, "attach_seconds_beyond_allocation": round(found["weights"][-1]["attach_seconds"], 4)}


PARTS = ("tracking", "drawing", "prediction", "compiled", "growth", "peers")


def measure(quick: bool, parts: Sequence[str]) -> dict[str, Any]:
    repetitions = 2 if quick else 25
    all_networks = networks(quick)
    large = Weights([(64, 64), (64,), (64, 64, 3, 3)] if quick else resnet18())
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "tracking": lambda: of_tracking(all_networks, large, repetitions),
        "drawing": lambda: sampling(large, repetitions),
        "prediction": lambda: of_prediction(all_networks, quick, repetitions),
        "compiled": lambda: {
            "look_over_compiled_look": {"missing": "--quick"} if quick else compiled(11_000_000, repetitions)
        },
        "growth": lambda: of_growth(quick),
        "peers": lambda: {
            "peers": peers(all_networks["mnist-mlp"], traffic(large)["state_bytes_per_weight"], repetitions)
        },
    }
    found: dict[str, Any] = {"goals": GOALS}
    for part in parts:
        say(part)
        found |= ways[part]()
    return found


def say(what: str) -> None:
    """What is measured now: all of it takes half an hour."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return {
        "command": " ".join(["python", "benchmarks/speed.py", *sys.argv[1:]]),
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "torch": torch.__version__,
        "tradi": f"{tradi.__version__} ({commit.stdout.strip() or 'no git'})",
    }


def table(found: dict[str, Any]) -> str:
    """The main figures beside their goals."""
    lines = [f"{'':58}{'ratio':>9}  {'middle half':>17}  {'goal':>6}"]

    def row(name: str, value: dict[str, Any] | None, goal: float | None = None) -> None:
        if value is None:
            lines.append(f"{name:58}{'not installed':>9}")
            return
        low, high = value["spread"]
        lines.append(f"{name:58}{value['ratio']:9.4g}  {low:8.4g} {high:8.4g}  {goal or '':>6}")

    for key in ("track_step_over_train_step", "track_step_over_fused_adam_step", "track_step_over_memory_floor"):
        for name, parts in found.get(key, {}).items():
            goal = GOALS[key][name] if isinstance(GOALS[key], dict) else GOALS[key]  # type: ignore[index]
            of_a_look = key == "track_step_over_memory_floor"  # a step that is passed over moves no memory
            row(f"{key}, {name}, a run", parts["run"], None if of_a_look else goal)  # type: ignore[arg-type]
            if "run_with_fused_adam" in parts:
                row("    a run that trains with fused Adam", parts["run_with_fused_adam"])
            row("    a step that is looked at", parts["observed"], goal if of_a_look else None)  # type: ignore[arg-type]
            row("    a step that is passed over", parts["passed_over"])
    for key, goal in (("sample_over_memory_floor", 5), ("numpy_over_sample", 50)):
        if key in found:
            row(key, found[key], goal)
    for key in ("predict_20_over_20_forwards", "refresh_20_over_20_passes", "refresh_20_over_20_forwards"):
        for name, value in found.get(key, {}).items():
            row(f"{key}, {name}", value, GOALS.get(key))  # type: ignore[arg-type]
    if "ratio" in found.get("look_over_compiled_look", {}):
        row("an eager look over a compiled one", found["look_over_compiled_look"])
    for name, value in found.get("peers", {}).items():
        row(f"extra time of a run: {name}", value and value["run_over_training"])
    rest = ("state_bytes_per_weight", "members_a_second", "nanoseconds_per_weight", "attach_seconds_beyond_allocation")
    lines += [f"{key:58}{found[key]:9.4g}" for key in rest if key in found]
    for of in ("weights", "members"):
        exponents = found.get("growth", {}).get(f"exponents_in_{of}", {})
        lines += [f"{f'exponent of {key} in {of}':58}{value:9.4g}" for key, value in exponents.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: whether it runs, not how fast")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the JSON to this file too")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"some of {PARTS}")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message="members have other weights")  # times, not outputs
    about = machine()
    found = {"machine": about} | measure(options.quick, options.parts)
    about["load_after"] = [round(load, 2) for load in os.getloadavg()]
    text = json.dumps(found, indent=1)
    print(text)
    print(table(found), file=sys.stderr)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
