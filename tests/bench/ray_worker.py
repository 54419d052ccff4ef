"""Run by test_engines.py: a benchmark on a Ray cluster of two nodes, one of which is killed while a case runs there."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tradi.bench.cases import Options
from tradi.bench.measures import against_ood
from tradi.bench.methods import Single, Tradi
from tradi.bench.problem import Data, Problem
from tradi.bench.recipe import Recipe
from tradi.bench.runner import show
from tradi.bench.spec import Benchmark, Variant
from tradi.models import mlp


def load(root: Path, split: int, seed: int) -> Data:
    """Two blobs, and points far from both."""
    del root, seed
    generator = torch.Generator().manual_seed(split)
    y = torch.randint(2, (120,), generator=generator)
    x = torch.randn(120, 2, generator=generator) + 4 * y[:, None]
    parts = [(x[part], y[part]) for part in (slice(0, 60), slice(60, 90), slice(90, 120))]
    return Data(parts[0], parts[1], parts[2], ood={"far": torch.randn(20, 2, generator=generator) * 30})


def network(data: Any, dropout: float | None) -> torch.nn.Module:
    del data, dropout
    return mlp(2, [4], 2)


@dataclass(frozen=True)
class Stuck(Single):
    """Seed 0 says which node it runs on and waits to be killed; another process finds that it has been."""

    notes: str = ""

    def ensemble(self, runs: Sequence[Any], data: Problem, seed: int) -> Any:
        if self.notes and seed == 0 and not (note := Path(self.notes)).exists():
            import ray

            print("seed 0 is stuck", flush=True)
            partial = note.with_suffix(".partial")
            partial.write_text(ray.get_runtime_context().get_node_id())
            partial.rename(note)
            time.sleep(600)
        return super().ensemble(runs, data, seed)


def benchmark(notes: str = "") -> Benchmark:
    variant = Variant("sgd", load, network, Recipe("sgd", 0.1, epochs=2, batch=32))
    methods: dict[str, Any] = {"Single network": Single(), "TRADI": Tradi(members=3), "Stuck": Stuck(notes=notes)}
    return Benchmark("blobs", "Blobs", (variant,), methods, (against_ood(),), seeds=(0, 1, 2))


def main(folder: Path) -> None:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": {"health_check_period_ms": 1000}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = {node.node_id: node for node in (cluster.add_node(num_cpus=1) for _ in range(2))}
    note = folder / "node"

    def kill() -> None:
        while not note.exists():
            time.sleep(0.1)
        cluster.remove_node(nodes[note.read_text()], allow_graceful=False)

    threading.Thread(target=kill, daemon=True).start()
    asked = Options(folder, folder / "ray", engine="ray", address=cluster.address)
    failures = show(benchmark(str(note)), asked, Console())
    (folder / "failures.json").write_text(json.dumps([failure.error for failure in failures]))
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
