"""One sample through 20 members: `ensemble.as_module()` beside single forward passes, in torch and in onnxruntime.

    python benchmarks/serving.py --out results/speed/serving.json

Everything has one thread and takes turns, and ratios are of processor time, which other processes disturb less than
time on the wall. Weights are random: only their shapes matter here.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from networks import convolutions
from timing import alternately, ratio
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import tradi
from tradi.bench.results import made_by
from tradi.models import mlp

MEMBERS = 20
GOAL = 8  # single forward passes


class Transformer(nn.Module):
    """Two encoder layers over 32 tokens, and a class for the text."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.position = nn.Parameter(0.02 * torch.randn(32, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.position).mean(1))


Input = Callable[[int], Tensor]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Input]] = {
    "table-mlp": (lambda: mlp(13, [50], 2), lambda n: torch.randn(n, 13)),
    "mnist-mlp": (lambda: mlp(784, [200, 200], 10, batchnorm=True), lambda n: torch.randn(n, 784)),
    "cnn": (convolutions, lambda n: torch.randn(n, 3, 32, 32)),
    "transformer": (Transformer, lambda n: torch.randint(100, (n, 32))),
}


def in_onnx(module: nn.Module, x: Tensor) -> Callable[[], object]:
    """The same in onnxruntime, on one thread."""
    file = io.BytesIO()
    torch.onnx.export(module, (x,), input_names=["x"], dynamo=True, verbose=False).save(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(file.getvalue(), options)
    feed = {"x": x.numpy()}
    return lambda: session.run(None, feed)


def by_vmap(members: list[nn.Module], x: Tensor) -> Callable[[], object]:
    """The other way to run members: their weights stacked, every operation on all of them at once."""
    state: dict[str, Tensor] = {}
    for part in stack_module_state(members):
        state |= {name: tensor.detach() for name, tensor in part.items()}
    base = copy.deepcopy(members[0])
    together = vmap(lambda own: functional_call(base, own, (x,)), randomness="error")
    return lambda: together(state)


def measure(make: Callable[[], nn.Module], inputs: Input, samples: int, rounds: int, onnx: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    posterior = tradi.methods.GaussianPerturbation(make(), 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # BatchNorm's statistics, which nothing here depends on
        ensemble = posterior.sample(MEMBERS, likelihood=tradi.likelihoods.Classification())
        members, module = list(ensemble), ensemble.as_module()
    x = inputs(samples)
    ways: dict[str, Callable[[], object]] = {
        "one_forward": lambda: members[0](x),
        "forwards": lambda: [member(x) for member in members],
        "as_module": lambda: module(x),
        "predict": lambda: ensemble.predict(x).mutual_information,
        "vmap": by_vmap(members, x),
    }
    if onnx:
        ways |= {"one_forward_onnx": in_onnx(members[0], x), "as_module_onnx": in_onnx(module, x)}
    times = alternately(rounds, **ways)
    found = {
        f"{name}_over_one_forward": ratio(times[name], times["one_forward"]) for name in ways if name != "one_forward"
    }
    if onnx:
        found["as_module_onnx_over_one_forward_onnx"] = ratio(times["as_module_onnx"], times["one_forward_onnx"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="few rounds and no export: the figures say nothing")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    rounds = 3 if options.quick else options.rounds
    found: dict[str, Any] = {"members": MEMBERS, "goal": GOAL, "load_before": os.getloadavg()[0], "threads": 1}
    for samples in (1, 64):
        rows = {
            name: measure(*NETWORKS[name], samples, max(rounds // (1 if samples == 1 else 5), 3), not options.quick)
            for name in options.networks
        }
        found[f"samples_{samples}"] = rows
        for name, row in rows.items():
            print(samples, name, {key: value["ratio_of_cpu_time"] for key, value in row.items()}, file=sys.stderr)
    versions = {name: version(name) for name in ("onnx", "onnxscript", "onnxruntime")}
    found |= {"made_by": made_by() | versions, "command": f"python benchmarks/serving.py --rounds {rounds}"}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
