"""What runs the cases: a Ray cluster gives what one process does, whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.bench.ray_worker import benchmark
from tradi.bench import engines
from tradi.bench.cases import Options, cases
from tradi.bench.engines import Failure
from tradi.bench.results import read_results
from tradi.bench.runner import run
from tradi.cli.main import main

ROOT = Path(__file__).parents[2]


def test_a_cluster_that_loses_a_node_gives_the_results_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="sweeps on a cluster need Ray")
    command = [sys.executable, "-m", "tests.bench.ray_worker", str(tmp_path)]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    env["RAY_raylet_start_wait_time_s"] = "300"  # on a busy machine
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "failures.json").read_text()) == [], "what ran on the lost node ran again"
    assert "seed 0 is stuck" in done.stdout + done.stderr, "what workers print is in the terminal"
    assert list(run(benchmark(), Options(tmp_path, tmp_path / "one")))
    one, cluster = (read_results(tmp_path / place) for place in ("one", "ray"))
    assert len(one) == 9
    for ours, theirs in zip(one, cluster, strict=True):
        assert ours.key == theirs.key
        assert theirs.metrics == pytest.approx(ours.metrics)
    files = [
        sorted(str(p.relative_to(tmp_path / place)) for p in (tmp_path / place).rglob("*")) for place in ("one", "ray")
    ]
    assert files[0] == files[1]
    assert cases(benchmark(), Options(tmp_path, tmp_path / "ray")) == []


class LostError(Exception):
    """What Ray raises when it has given up."""


class Cluster:
    """Ray's functions, as far as they are used, on nodes of given sizes; cases of seed 0 are lost."""

    exceptions = SimpleNamespace(RayError=LostError)

    def __init__(self, *processors: int) -> None:
        self._processors, self.at_once = processors, 0
        self.asked: list[float] = []

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": float(count)}} for count in self._processors]

    def remote(self, work: Any) -> Any:
        def options(**asked: Any) -> Any:
            if "num_cpus" in asked:
                self.asked.append(asked["num_cpus"])
            return SimpleNamespace(options=options, remote=lambda *arguments: lambda: (work, arguments))

        return SimpleNamespace(options=options)

    def wait(self, jobs: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        self.at_once = max(self.at_once, len(jobs))
        return jobs[-num_returns:], []

    def get(self, job: Any) -> list[Failure]:
        on_node, (work, case, options) = job()
        if case.seed == 0:
            raise LostError("the worker died")
        found: list[Failure] = on_node(work, case, options)
        return found


def test_a_case_that_is_lost_again_and_again_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    todo, options = cases(benchmark(), Options(tmp_path, tmp_path)), Options(tmp_path, tmp_path, jobs=2)
    benchmark().declaration().write(tmp_path)
    cluster = Cluster(0, 4, 2)
    ended = {case.seed: failures for case, failures in engines._on_cluster(cluster, lambda *_: [], todo, options)}
    assert [failure.method for failure in ended.pop(0)] == ["Single network", "TRADI", "Stuck"]
    assert ended == {1: [], 2: []}
    assert cluster.at_once == 2
    assert cluster.asked == [1, 1, 1]


def test_heavy_cases_get_the_processors_of_a_cluster_but_no_more_than_a_node_has() -> None:
    assert engines._shares(Cluster(0, 8, 8), None) == (16, 16)
    assert engines._shares(Cluster(0, 8, 8), 1) == (1, 8)
    assert engines._shares(Cluster(0, 8, 8), 4) == (4, 16)
    assert engines._shares(Cluster(0), 3) == (3, 3)


def test_a_node_that_does_not_share_the_folder_of_results_says_so_before_it_trains(tmp_path: Path) -> None:
    case, *_ = cases(benchmark(), Options(tmp_path, tmp_path))
    (failure, *_) = engines._on_node(lambda *_: pytest.fail("it ran"), case, Options(tmp_path, tmp_path))
    assert "--out must be one that all share" in failure.error


def test_an_address_without_ray_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "toy", "--address", "auto", "--out", str(tmp_path)])
    assert "add --engine ray" in capsys.readouterr().err
