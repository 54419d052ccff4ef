"""The benchmark of speed runs, at a size that says nothing about speed, and gives every figure it promises."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tradi.data.uci import uci
from tradi.metrics.regression import gaussian_crps

ROOT = Path(__file__).parents[1]
RATIOS = (
    "track_step_over_train_step",
    "track_step_over_fused_adam_step",
    "track_step_over_memory_floor",
    "predict_20_over_20_forwards",
    "refresh_20_over_20_passes",
)


def test_speed_gives_all_keys_and_draws_them(tmp_path: Path) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("installed without the benchmarks")
    out = tmp_path / "speed.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), "--quick", "--out", str(out)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(run.stdout)
    assert found == json.loads(out.read_text())
    for key in RATIOS:
        assert key in run.stderr
        assert found[key]
    assert found["track_step_over_train_step"].keys() == {"mnist-mlp", "enet", "transformer"}
    for parts in found["track_step_over_train_step"].values():
        assert {"run", "observed", "passed_over"} <= parts.keys()
        low, high = parts["run"]["spread"]
        assert low <= high
        assert parts["run"]["milliseconds"][1] > 0
    assert found["state_bytes_per_weight"] == 8
    # Four operations on an observed step, eleven operands of four bytes each: w, mu -> d; d, mu -> mu; var -> var;
    # d, d, var -> var; and norms of the gradient and of the weights, which say whether the step can be tracked. From
    # memory come w, mu, var, the gradient, and mu, var go back; d stays in the cache.
    assert 44 <= found["by_count"]["bytes_touched_per_weight"] < 57
    assert {"sample_over_memory_floor", "members_a_second", "numpy_over_sample"} <= found.keys()
    growth = found["growth"]
    assert {"track_seconds", "sample_seconds"} <= growth["exponents_in_weights"].keys()
    assert "seconds" in growth["exponents_in_members"]
    assert found["peers"]["torch-uncertainty's SWAG, every epoch"]["bytes_per_weight"] == pytest.approx(4 * 22)
    assert found["peers"]["TRADI"]["bytes_per_weight"] == 8
    assert {"processor", "torch", "threads", "load_before", "load_after", "command"} <= found["machine"].keys()
    draw = [sys.executable, str(ROOT / "benchmarks" / "draw.py"), str(out)]
    draw += [str(tmp_path / name) for name in ("speed.md", "speed.png")]
    subprocess.run(draw, check=True, capture_output=True)
    assert (tmp_path / "speed.png").stat().st_size > 0
    assert "track_step_over_train_step" in (tmp_path / "speed.md").read_text()


def test_the_whole_price_is_measured_method_by_method_and_what_is_there_is_kept(tmp_path: Path) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("installed without the benchmarks")
    out, network = tmp_path / "price.json", "MNIST MLP, 10 epochs"
    kept = {"total_over_training": 7.0, "peak_megabytes": 8.0}
    out.write_text(json.dumps({"networks": {network: {"SWAG": kept}}}))
    command = [sys.executable, str(ROOT / "benchmarks" / "price.py"), "--quick", "--out", str(out)]
    command += ["--networks", network, "--methods", "training alone", "TRADI", "SWAG", "Laplace, last layer"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(out.read_text())
    assert found["goals"].keys() > {network}
    rows = found["networks"][network]
    assert rows["SWAG"] == kept
    assert rows["TRADI"]["after_training_seconds"].keys() == {"condition", "scale", "members"}
    assert rows["TRADI"]["total_over_training"] > 0 == rows["training alone"]["total_over_training"]
    assert "TRADI" in run.stderr


def test_every_network_of_the_price_trains_and_a_method_that_cannot_take_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("installed without the benchmarks")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    price = runpy.run_path(str(ROOT / "benchmarks" / "price.py"))
    for make in price["NETWORKS"].values():
        task = make(True)
        task.step(task.model)()
        assert task.steps >= task.epochs
    monkeypatch.setitem(price["METHODS"], "TRADI", lambda task, rounds: 1 / 0)
    assert price["measure"](next(iter(price["NETWORKS"])), "TRADI", True) == {
        "failed": "ZeroDivisionError: division by zero"
    }


def test_networks_and_trees_are_compared_and_what_is_there_is_kept(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("installed without the benchmarks")
    tables = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    levels, fits = tables["LEVELS"], []

    def normal(x: Any, y: Any, test: Any, seed: int) -> Any:
        fits.append(seed)
        return np.tile(stats.norm(y.mean(), y.std()).ppf(levels), (len(test), 1))

    for method in tables["METHODS"]:
        monkeypatch.setitem(tables["METHODS"], method, normal)
    words = ["tables.py", "run", "--sets", "yacht", "--splits", "3", "--data", str(data_root), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    tables["main"]()
    tables["main"]()
    assert fits == [3, 3]  # one for each method, and none for what is there already
    record = json.loads((tmp_path / "yacht" / "split-3.json").read_text())
    assert {"command", "made_by", "seed", "levels"} <= record.keys()
    data = uci("yacht", 3, data_root)
    y = data.test[1][:, 0].double()
    exact = gaussian_crps(torch.zeros_like(y), torch.ones_like(y), y) * data.target_std
    # 19 levels leave the tails out, which the exact score has.
    assert record["methods"]["TRADIRegressor"]["crps"] == pytest.approx(exact, rel=0.1)
    monkeypatch.setattr(sys, "argv", ["tables.py", "table", "--out", str(tmp_path)])
    tables["main"]()
    assert "| yacht | 277 | 1 |" in capsys.readouterr().out


def test_the_table_against_trees_is_that_of_the_result_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tables.py", "table", "--out", str(ROOT / "results" / "tables")])
    runpy.run_path(str(ROOT / "benchmarks" / "tables.py"), run_name="__main__")
    table = capsys.readouterr().out.strip()
    assert table.count("\n| ") == 9
    assert table in (ROOT / "docs" / "scikit-learn.md").read_text()


SERVING = {
    "table-mlp": "MLP for a table",
    "mnist-mlp": "MLP for MNIST",
    "cnn": "CNN",
    "transformer": "transformer",
}
SERVED = (
    "as_module_over_one_forward",
    "forwards_over_one_forward",
    "vmap_over_one_forward",
    "as_module_onnx_over_one_forward",
    "as_module_onnx_over_one_forward_onnx",
)


def test_serving_is_measured(tmp_path: Path) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("installed without the benchmarks")
    pytest.importorskip("onnxruntime", reason="the benchmark runs exported ensembles too")
    out = tmp_path / "serving.json"
    script = str(ROOT / "benchmarks" / "serving.py")
    command = [sys.executable, script, "--quick", "--networks", "table-mlp", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert found["members"] == 20
    for samples in ("samples_1", "samples_64"):
        row = found[samples]["table-mlp"]
        assert row.keys() == {f"{way}_over_one_forward" for way in ("forwards", "as_module", "predict", "vmap")}
        assert all(way["ratio_of_cpu_time"] > 0 for way in row.values())


def test_the_page_on_serving_has_the_figures_that_were_measured() -> None:
    measured = json.loads((ROOT / "results" / "speed" / "serving.json").read_text())["samples_1"]
    page = (ROOT / "docs" / "serving.md").read_text()
    for name, title in SERVING.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {title}")]
        assert line.split(" | ")[1:] == [
            f"{measured[name][key]['ratio_of_cpu_time']:.1f}" + (" |" if key == SERVED[-1] else "") for key in SERVED
        ]


def test_a_frozen_base_is_measured_under_the_name_that_is_given(tmp_path: Path) -> None:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("installed without the benchmarks")
    out = tmp_path / "frozen.json"
    out.write_text(json.dumps({"before": {"commit": "old"}}))
    command = [sys.executable, str(ROOT / "benchmarks" / "frozen.py"), "--quick", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    found, kept = (json.loads(path.read_text()) for path in (out, ROOT / "results" / "speed" / "frozen.json"))
    assert found["before"] == {"commit": "old"}
    assert found["now"].keys() == kept["now"].keys()
    goals, reached = kept["goals"], kept["now"]
    assert reached["posterior_and_members_megabytes"] < goals["posterior_and_members_megabytes"]
    assert reached["file_megabytes"] < goals["file_megabytes"]
