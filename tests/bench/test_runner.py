from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.data.test_bdd import ANOMALIES, write_bdd
from tests.data.test_streethazards import write_streethazards
from tradi.bench import BENCHMARKS, results
from tradi.bench.cases import Case, Options, cases
from tradi.bench.declaration import read_declaration
from tradi.bench.engines import KILLED, Failure
from tradi.bench.evaluate import evaluate
from tradi.bench.measures import against_ood
from tradi.bench.methods import Deep, Single, Swag, Tradi
from tradi.bench.problem import Data, Problem, Shuffled
from tradi.bench.recipe import Recipe
from tradi.bench.results import Key, forget_peak_memory, peak_memory_mb, read_results
from tradi.bench.runner import run, run_case, show
from tradi.bench.spec import Benchmark, Variant
from tradi.ensemble.ensemble import Ensemble
from tradi.methods import SingleNetwork
from tradi.models import mlp
from tradi.models.regression import GaussianHead, TwoStage


def load(root: Path, split: int, seed: int) -> Data:
    """Three blobs, and points far from all of them."""
    del root
    generator = torch.Generator().manual_seed(split)
    y = torch.randint(3, (300,), generator=generator)
    x = torch.randn(300, 2, generator=generator) + 4 * torch.nn.functional.one_hot(y, 3)[:, :2]
    parts = [(x[part], y[part]) for part in (slice(0, 200), slice(200, 250), slice(250, 300))]
    return Data(parts[0], parts[1], parts[2], ood={"notMNIST": torch.randn(40, 2, generator=generator) * 30})


class Broken(Single):
    def ensemble(self, runs: Sequence[Any], data: Problem, seed: int) -> Any:
        raise RuntimeError("out of luck")


METHODS: dict[str, Any] = {"Single network": Single(), "TRADI": Tradi(members=4), "Deep Ensemble of 5": Deep(runs=2)}
BLOBS = Benchmark(
    "blobs",
    "Blobs",
    (
        Variant(
            "sgd",
            load,
            lambda data, dropout: mlp(2, [8], 3, batchnorm=True),
            Recipe("sgd", 0.1, epochs=12, batch=32),
            2,
        ),
    ),
    METHODS,
    (against_ood(),),
    seeds=(0, 1),
)


def done(benchmark: Benchmark, options: Options) -> tuple[list[Case], list[Failure]]:
    finished = list(run(benchmark, options))
    return [case for case, _ in finished], [failure for _, failed in finished for failure in failed]


def test_every_method_of_every_case_has_a_result_file_that_can_be_made_again(tmp_path: Path) -> None:
    options = Options(tmp_path, tmp_path / "out", command="tradi bench blobs")
    ran, failures = done(BLOBS, options)
    assert (len(ran), failures) == (4, [])
    results = read_results(tmp_path / "out")
    assert {(r.key.method, r.key.seed, r.key.split) for r in results} == {
        (method, seed, split) for method in METHODS for seed in (0, 1) for split in (0, 1)
    }
    for result in results:
        assert result.made_by["command"] == "tradi bench blobs"
        assert {"tradi", "commit", "torch", "python"} <= result.made_by.keys()
        assert "Recipe(optimizer='sgd'" in result.settings["recipe"]
        assert result.seconds.keys() == {"training", "tracking", "preparing", "predicting"}
        assert result.peak_memory_mb > 10
        assert 0.8 < result.metrics["accuracy"] <= 1
        assert "notMNIST/confidence/auroc" in result.metrics
    again = Options(tmp_path, tmp_path / "again")
    done(BLOBS, again)
    for one, other in zip(results, read_results(tmp_path / "again"), strict=True):
        assert one.metrics == other.metrics


def test_methods_share_runs_and_each_pays_for_its_own(tmp_path: Path) -> None:
    done(BLOBS, Options(tmp_path, tmp_path, seeds=(0,), splits=(0,)))
    results = {result.key.method: result for result in read_results(tmp_path)}
    assert results["TRADI"].seconds["tracking"] > 0
    assert results["Single network"].seconds["tracking"] == 0
    single, ours, deep = (results[name].seconds["training"] for name in METHODS)
    assert ours == pytest.approx(single + results["TRADI"].seconds["tracking"])
    assert deep > single
    assert results["Deep Ensemble of 5"].notes["steps"] == [7 * 12, 7 * 12]
    assert results["TRADI"].notes["searches"][0]["scale"] >= 0


def test_what_is_there_is_not_run_again_and_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    options = Options(tmp_path, tmp_path)
    next(run(BLOBS, options))  # and no further, as after a kill
    left = cases(BLOBS, options)
    assert len(left) == 3
    (tmp_path / "blobs" / "sgd" / "TRADI" / "seed-0-split-0.json").unlink()
    left = cases(BLOBS, options)
    assert [list(case.methods) for case in left] == [["TRADI"], *[list(METHODS)] * 3]
    done(BLOBS, options)
    assert cases(BLOBS, options) == []


@dataclass(frozen=True)
class Meanwhile(Single):
    """A method during which another process on the same folder goes through all that is left."""

    out: Path = Path()

    def ensemble(self, runs: Sequence[Any], data: Problem, seed: int) -> Any:
        assert done(BLOBS, Options(self.out, self.out, seeds=(0,), splits=(0,)))[1] == []
        return super().ensemble(runs, data, seed)


def test_what_another_process_has_done_meanwhile_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = replace(BLOBS, methods={"Meanwhile": Meanwhile(out=tmp_path), **METHODS})
    written, names = results.Result.write, []

    def write(result: results.Result, folder: Path) -> Path:
        names.append(result.key.method)
        return written(result, folder)

    monkeypatch.setattr(results.Result, "write", write)
    _, failures = done(benchmark, Options(tmp_path, tmp_path, seeds=(0,), splits=(0,)))
    assert failures == []
    assert names == [*METHODS, "Meanwhile"]


def test_a_failed_method_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    benchmark = replace(BLOBS, methods={"Broken": Broken(), **METHODS})
    options = Options(tmp_path, tmp_path, seeds=(0,), splits=(0,))
    _, failures = done(benchmark, options)
    assert [(f.method, "out of luck" in f.error) for f in failures] == [("Broken", True)]
    assert {result.key.method for result in read_results(tmp_path)} == METHODS.keys()
    assert [list(case.methods) for case in cases(benchmark, options)] == [["Broken"]]


def test_missing_data_fails_a_case_with_the_reason(tmp_path: Path) -> None:
    _, (failure,) = done(BENCHMARKS["mnist"], Options(tmp_path / "nowhere", tmp_path, quick=True))
    assert (failure.method, "nowhere" in failure.error) == ("all methods", True)


class Killed(Single):
    def ensemble(self, runs: Sequence[Any], data: Problem, seed: int) -> Any:
        if seed == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().ensemble(runs, data, seed)


def test_a_killed_process_is_reported_and_other_cases_go_on(tmp_path: Path) -> None:
    benchmark = replace(BLOBS, methods={"Single network": Single(), "Killed": Killed()}, seeds=(0, 1, 2, 3))
    options = Options(tmp_path, tmp_path, splits=(0,), jobs=2)
    ran, failures = done(benchmark, options)
    assert sorted(case.seed for case in ran) == [0, 1, 2, 3]
    assert {failure.error for failure in failures} == {KILLED}
    finished = {(result.key.method, result.key.seed) for result in read_results(tmp_path)}
    everything = {(method, seed) for method in benchmark.methods for seed in benchmark.seeds}
    reported = {(failure.method, int(failure.case[-1])) for failure in failures}
    assert reported == everything - finished
    assert ("Single network", 0) in finished, "what was done before stays"
    assert ("Killed", 0) in reported
    assert len({seed for _, seed in reported}) <= 2, "its own case, and the other that was under way"


@pytest.mark.skipif(os.name == "nt", reason="Windows does not say that a parent has ended")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_started_them(how: signal.Signals) -> None:
    worker = "import os, sys, time; from tradi.bench.engines import end_with; end_with(int(sys.argv[1]))"
    worker += "; print('ready', flush=True); time.sleep(60); print('still there', flush=True)"
    parent = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}, str(os.getpid())])"
    started = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    started.send_signal(how)
    assert started.stdout.read() == ""  # read to its end, which comes when the last process that can write has ended
    started.stdout.close()
    assert started.wait() == -how


def test_a_result_that_cannot_be_written_is_a_plain_message_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = results.Result.write

    def full(result: results.Result, folder: Path) -> None:
        if result.key.method == "Single network":
            raise OSError(28, "No space left on device", str(folder))
        written(result, folder)

    monkeypatch.setattr(results.Result, "write", full)
    _, failures = done(BLOBS, Options(tmp_path, tmp_path, seeds=(0,), splits=(0,)))
    assert [failure.error for failure in failures] == [f"OSError: [Errno 28] No space left on device: '{tmp_path}'"]
    assert {result.key.method for result in read_results(tmp_path)} == METHODS.keys() - {"Single network"}


def test_a_folder_that_cannot_be_written_to_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        show(BLOBS, Options(tmp_path, tmp_path / "file"), Console())


def test_what_failed_for_one_reason_says_it_once(tmp_path: Path) -> None:
    benchmark, console = replace(BLOBS, variants=(replace(BLOBS.variants[0], load=missing),)), Console(record=True)
    failures = show(benchmark, Options(tmp_path, tmp_path), console)
    text = console.export_text()
    assert (len(failures), text.count("FAILED"), text.count("no such data")) == (4, 4, 1)


def missing(root: Path, split: int, seed: int) -> Data:
    raise FileNotFoundError("no such data")


def test_a_result_says_how_much_memory_it_took_and_not_what_ran_before_it() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not forget its peak")
    forget_peak_memory()
    before = peak_memory_mb()
    torch.ones(64 << 20)  # 256 MB, and gone
    assert before + 200 < peak_memory_mb() < before + 400
    forget_peak_memory()
    assert peak_memory_mb() < before + 100


def test_the_commit_is_of_this_package_and_says_whether_any_of_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    package = tmp_path / "tradi"
    (package / "bench").mkdir(parents=True)
    for name in ("__init__.py", "kalman.py", "bench/results.py"):
        (package / name).write_text("")
    monkeypatch.setattr(results, "__file__", str(package / "bench" / "results.py"))
    git("init")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-m", "a repository that the package only lies in")
    assert results._commit() is None
    git("add", ".")
    git("commit", "-m", "its own")
    head = git("rev-parse", "HEAD")
    assert results._commit() == head
    (package / "kalman.py").write_text("x = 1")
    assert results._commit() == f"{head}-changed"


def test_processes_give_the_same_results(tmp_path: Path) -> None:
    done(BLOBS, Options(tmp_path, tmp_path / "one", splits=(0,)))
    done(BLOBS, Options(tmp_path, tmp_path / "two", splits=(0,), jobs=2))
    for one, other in zip(read_results(tmp_path / "one"), read_results(tmp_path / "two"), strict=True):
        assert one.metrics == pytest.approx(other.metrics)


def test_unknown_names_are_errors_that_list_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown method 'magic': choose from Single network"):
        cases(BLOBS, Options(tmp_path, tmp_path, methods=("magic",)))
    with pytest.raises(ValueError, match="unknown variant 'adam'"):
        cases(BLOBS, Options(tmp_path, tmp_path, variants=("adam",)))
    with pytest.raises(ValueError, match="sgd has splits 0 to 1, got 2"):
        cases(BLOBS, Options(tmp_path, tmp_path, splits=(2,)))
    with pytest.raises(ValueError, match="seeds are 0 to 999, got 1000"):
        cases(BLOBS, Options(tmp_path, tmp_path, seeds=(1000,)))


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small images in the layout of data sets that are too large to have here."""
    root = tmp_path_factory.mktemp("data")
    write_bdd(write_streethazards(root), ANOMALIES, old=False)
    return {"streethazards": root, "bdd-anomaly": root}


@pytest.mark.filterwarnings("ignore:.*results are not comparable")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_declared_benchmark_runs_quickly(
    name: str, roots: dict[str, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    benchmark = BENCHMARKS[name]
    root = roots.get(name) or request.getfixturevalue("data_root")
    _, failures = done(benchmark, Options(root, tmp_path, quick=True))
    if find_spec("ivon") is None:  # one row needs it, and says so
        needs_ivon = [failure for failure in failures if "pip install 'tradi[speed]'" in failure.error]
        benchmark = replace(benchmark, methods={n: m for n, m in benchmark.methods.items() if n != "IVON"})
        failures = [failure for failure in failures if failure not in needs_ivon]
        assert {failure.method for failure in needs_ivon} <= {"IVON"}
    assert failures == []
    results = read_results(tmp_path)
    usual = [variant for variant in benchmark.variants if not variant.optional]
    assert len(results) == sum(len(benchmark.methods_of(variant)) for variant in usual)
    assert all(result.settings["quick"] for result in results)
    optional = tuple(set(benchmark.declaration().variants) - {variant.name for variant in usual})
    if optional:  # of which one method is enough: the others were seen above
        _, failures = done(benchmark, Options(root, tmp_path, ("Single network",), optional, quick=True))
        assert failures == []
        assert len(read_results(tmp_path)) == len(results) + len(optional)


def test_optional_variants_run_when_they_are_asked_for_and_with_methods_of_their_own(tmp_path: Path) -> None:
    own: dict[str, Any] = {"Deep Ensemble of 9": Deep(runs=9)}
    large = replace(BLOBS.variants[0], name="large", optional=True, methods=own)
    benchmark = replace(BLOBS, variants=(*BLOBS.variants, large))
    assert {case.variant.name for case in cases(benchmark, Options(tmp_path, tmp_path))} == {"sgd"}
    asked = cases(benchmark, Options(tmp_path, tmp_path, variants=("large",)))
    assert [(case.variant.name, case.methods) for case in asked] == [("large", own)] * 4
    with pytest.raises(ValueError, match="unknown method 'TRADI': choose from Deep Ensemble of 9"):
        cases(benchmark, Options(tmp_path, tmp_path, methods=("TRADI",), variants=("large",)))


def test_methods_of_one_training_are_evaluated_on_the_other_networks_of_a_deep_ensemble(tmp_path: Path) -> None:
    own: dict[str, Any] = {"Single network": Single(), "TRADI": Tradi(members=4), "Deep Ensemble of 3": Deep(runs=3)}
    variant = replace(BLOBS.variants[0], splits=1, heavy=True, methods=own, other_runs=("Single network", "TRADI"))
    benchmark = replace(BLOBS, variants=(variant,), seeds=(0,))
    done(benchmark, Options(tmp_path, tmp_path))
    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / ".runs").rglob("*.pt")}
    assert len(trained) == 3
    _, failures = done(benchmark, Options(tmp_path, tmp_path, variants=("sgd-other-runs",)))
    assert failures == [], "not even a warning that a tracker is missing"
    assert {path: path.stat().st_mtime_ns for path in trained} == trained, "the networks are those of the ensemble"
    found = {(r.key.variant, r.key.method, r.key.split): r.metrics["nll"] for r in read_results(tmp_path)}
    others = {(method, number) for variant, method, number in found if variant == "sgd-other-runs"}
    assert others == {(method, number) for method in ("Single network", "TRADI") for number in (1, 2)}
    assert len({nll for (_, method, _), nll in found.items() if method == "Single network"}) == 3
    assert cases(benchmark, Options(tmp_path, tmp_path, variants=("sgd-other-runs",))) == []
    with pytest.raises(ValueError, match="sgd-other-runs has splits 1 to 2, got 0"):
        cases(benchmark, Options(tmp_path, tmp_path, variants=("sgd-other-runs",), splits=(0,)))
    with pytest.raises(ValueError, match="unknown method 'Deep Ensemble of 3': choose from Single network, TRADI"):
        cases(benchmark, Options(tmp_path, tmp_path, ("Deep Ensemble of 3",), ("sgd-other-runs",)))
    with pytest.raises(ValueError, match=r"names methods that it does not have: \['SWAG'\]"):
        replace(benchmark, variants=(replace(variant, other_runs=("SWAG",)),))
    alone = replace(variant, methods={"Single network": Single()}, other_runs=("Single network",))
    with pytest.raises(ValueError, match="other_runs of sgd needs a method of several trainings"):
        replace(benchmark, variants=(alone,))
    with pytest.raises(ValueError, match="sgd has 2 splits, and other_runs= is for variants with one"):
        replace(variant, splits=2)


def test_a_benchmark_is_declared_beside_its_results_before_anything_runs(tmp_path: Path) -> None:
    next(run(BLOBS, Options(tmp_path, tmp_path, methods=("Single network",))))
    assert read_declaration(tmp_path / "blobs" / "benchmark.json") == BLOBS.declaration()
    assert not list(tmp_path.rglob("*.partial"))


def test_heavy_cases_share_the_cores_and_are_not_trained_again(tmp_path: Path) -> None:
    heavy = replace(BLOBS, variants=(replace(BLOBS.variants[0], heavy=True),))
    options = Options(tmp_path, tmp_path, seeds=(0,), splits=(0,), jobs=2)
    (case,), (light,) = cases(heavy, options), cases(BLOBS, options)
    cores = os.cpu_count() or 1
    assert case.threads(replace(options, jobs=1)) == cores
    assert case.threads(replace(options, jobs=2 * cores)) == 1
    assert light.threads(options) == case.threads(replace(options, quick=True)) == 1
    assert run_case(case, options) == []
    before = read_results(tmp_path)
    for result in before:
        result.key.path(tmp_path).unlink()
    assert run_case(case, options) == []
    for one, again in zip(before, read_results(tmp_path), strict=True):
        assert one.metrics == again.metrics
        assert one.seconds["training"] == again.seconds["training"], "the time is that of the training kept"
    assert len(list((tmp_path / ".runs").rglob("*.pt"))) == 2
    assert light.checkpoint(tmp_path, None, 0) is None


@pytest.mark.parametrize("content", [{"key": {}}, None, "x", 5, []])
def test_a_result_file_that_is_none_is_named(content: Any, tmp_path: Path) -> None:
    (tmp_path / "seed-0-split-0.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"seed-0-split-0\.json is not a result file"):
        read_results(tmp_path)
    with pytest.raises(FileNotFoundError, match="not a folder of results"):
        read_results(tmp_path / "nowhere")


def test_a_damaged_result_is_made_again(tmp_path: Path) -> None:
    options = Options(data=tmp_path, out=tmp_path, methods=("Single network",), seeds=(0,), splits=(0,))
    (case,) = cases(BLOBS, options)
    assert run_case(case, options) == []
    assert cases(BLOBS, options) == []
    path = case.key("Single network").path(tmp_path)
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert cases(BLOBS, options) == [case]


def test_shuffled_batches_cover_the_data_and_leave_out_a_batch_of_one() -> None:
    x = torch.arange(33.0)[:, None]
    loader = Shuffled((x, x), 8)
    seen = [batch for batch, _ in loader]
    assert len(loader) == len(seen) == 4
    assert len(torch.cat(seen).unique()) == 32
    assert len(Shuffled((x[:30], x[:30]), 8)) == 4
    assert not torch.equal(torch.cat([b for b, _ in loader]), torch.cat(seen))


def test_disagreement_is_counted_for_several_members_only() -> None:
    data = load(Path(), 0, 0)
    torch.manual_seed(0)
    weights = [torch.randn(3, 2) for _ in range(4)]
    model = torch.nn.Linear(2, 3)
    several, one = (evaluate(Ensemble(model, lambda i: {"weight": weights[i]}, count), data).curves for count in (4, 1))
    counted = several["notMNIST/information_histogram"]
    assert (sum(counted["inside"]), sum(counted["ood"])) == (50, 40)
    assert counted["edges"][-1] == pytest.approx(math.log(3))
    assert "notMNIST/information_histogram" not in one


def test_regression_is_measured_on_validation_data_too() -> None:
    model = GaussianHead(mlp(2, [3]), 3)
    parts = [(torch.randn(9, 2), torch.randn(9, 1)) for _ in range(3)]
    ensemble = SingleNetwork(model).sample(1)
    numbers = evaluate(ensemble, Data(parts[0], parts[1], parts[2], unit=(1.0, 2.0))).metrics
    swapped = evaluate(ensemble, Data(parts[0], parts[2], parts[1], unit=(1.0, 2.0))).metrics
    for name in ("rmse", "nll"):
        assert numbers[f"validation/{name}"] == swapped[name] != numbers[name]


def test_swag_collects_over_the_last_share_of_the_run() -> None:
    (attach,) = Swag(share=0.25, collections=10).attach().values()
    model = mlp(2, [3], 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag: Any = attach(model, optimizer, 100, Recipe("sgd", 0.1, epochs=8))
    assert (swag.start, swag.every) == (600, 20)
    stages = TwoStage(mse_epochs=7, nll_epochs=30, patience=4)
    swag = attach(model, optimizer, 100, Recipe("sgd", 0.1, stages=stages))
    assert (swag.start, swag.every) == (700, 50)  # five epochs of the second stage are certain


@pytest.mark.parametrize("name", ["..", ".", "...", ""])
def test_no_name_leads_out_of_the_folder_of_results(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a folder"):
        Key(name, "variant", "method", 0, 0).path(tmp_path)


def test_slashes_in_names_lead_nowhere_else(tmp_path: Path) -> None:
    path = Key("../../x", "/etc", "a/b", 0, 0).path(tmp_path)
    assert path.resolve().is_relative_to(tmp_path.resolve())
