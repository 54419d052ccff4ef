from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.test_runner import BLOBS
from tradi.bench.results import Key, Result, read_results
from tradi.bench.runner import Options, run
from tradi.bench.toy import TOY
from tradi.cli.main import main
from tradi.report import paper
from tradi.report.columns import Column
from tradi.report.page import draw, write_report
from tradi.report.tables import by_method, by_variant, overview, tables


def result(method: str, seed: int = 0, variant: str = "adam", benchmark: str = "mnist-ood", **metrics: float) -> Result:
    made_by = {"tradi": "0", "commit": "c", "torch": "2", "command": "tradi bench"}
    key = Key(benchmark, variant, method, seed, 0)
    return Result(key, metrics, {}, {"quick": False}, {}, {"training": 2.0 + seed}, 1.0, made_by)


NLL = Column("NLL", "nll", digits=2)
ACCURACY = Column("accuracy %", "accuracy", 100, 1, higher=True)


def test_cells_are_mean_and_deviation_and_the_best_stand_out() -> None:
    results = [result("A", 0, nll=1.0, accuracy=0.9), result("A", 1, nll=2.0, accuracy=0.7)]
    results += [result("B", 0, nll=1.2), result("B", 1, nll=1.2)]
    table = by_method("t", results, [NLL, ACCURACY], {"theirs": {"nll": 0.5}})
    assert table.rows == [
        ["A", "1.50 ± 0.71", "80.0 ± 14.1", "2.5"],
        ["B", "1.20 ± 0.00", "", "2.5"],
        ["paper: theirs", "0.50", "", ""],
    ]
    assert table.best == {(1, 1), (0, 2)}
    assert "| **1.20 ± 0.00** |" in table.markdown()
    assert "<td class=best>1.20 ± 0.00</td>" in table.html()


def test_a_method_with_fewer_runs_says_so_and_is_not_compared() -> None:
    table = by_method("t", [result("A", 0, nll=1.0), result("A", 1, nll=2.0), result("B", 0, nll=0.5)], [NLL], {})
    assert [row[1] for row in table.rows] == ["1.50 ± 0.71", "0.50 (1 of 2)"]
    assert table.best == {(0, 1)}


def test_the_note_says_on_how_many_cores_results_were_made() -> None:
    one = result("A", nll=1.0)
    two = replace(result("A", 1, nll=1.0), made_by=one.made_by | {"threads": 2})
    assert by_method("t", [one], [NLL], {}).note.endswith("of training. Evaluated on 1 core.")
    assert by_method("t", [one, two], [NLL], {}).note.endswith("of training. Evaluated on 1 or 2 cores.")


def test_a_figure_of_the_papers_that_is_missed_is_named() -> None:
    theirs = {"TRADI": {"nll": 1.0, "accuracy": 0.9}}
    missed = by_method("t", [result("TRADI", nll=1.01, accuracy=0.9004)], [NLL, ACCURACY], theirs)
    assert missed.note.endswith("TRADI is behind the paper's TRADI: NLL.")
    reached = by_method("t", [result("TRADI", nll=1.004, accuracy=0.9)], [NLL, ACCURACY], theirs)
    assert "behind" not in reached.note


@pytest.mark.parametrize("benchmark", ["camvid-ood", "streethazards", "bdd-anomaly"])
def test_the_papers_figures_of_pixels_stand_beside_both_ways_of_averaging(benchmark: str) -> None:
    scores: dict[str, Any] = {
        f"OOD/{way}confidence/{name}": 0.5 for way in ("", "by image/") for name in ("auroc", "aupr_out", "fpr95")
    }
    made = tables([result("TRADI", benchmark=benchmark, miou=0.5, **scores)])
    beside = [row[1:4] for table in made for row in table.rows if row[0] == "paper: TRADI" and row[3]]
    assert len(beside) == 2
    assert beside[0] == beside[1]


def test_means_that_print_alike_are_both_best() -> None:
    table = by_method("t", [result("A", nll=1.001), result("B", nll=1.002)], [NLL], {})
    assert table.best == {(0, 1), (1, 1)}


def test_data_sets_stand_beside_the_papers_figures() -> None:
    results = [
        result(m, variant="yacht", benchmark="uci", rmse=v) for m, v in (("TRADI", 1.0), ("Single network", 2.0))
    ]
    table = by_variant(results, Column("RMSE", "rmse", digits=2), "rmse")
    assert table.rows == [["yacht", "1.00", "2.00", "1.11", "1.58", "1.05"]]
    assert "behind" not in table.note
    worse = [result("TRADI", variant="yacht", benchmark="uci", rmse=1.06)]
    assert "behind the paper's TRADI: yacht." in by_variant(worse, Column("RMSE", "rmse", digits=3), "rmse").note


def test_the_ablation_is_one_table_of_all_problems() -> None:
    on_validation: dict[str, Any] = {"validation/nll": 0.2, "notMNIST/confidence/auroc": 0.9}
    results = [
        result("TRADI", benchmark="ablation", nll=0.1, **on_validation),
        result("members: 5", benchmark="ablation", nll=0.3),
        result("TRADI", 1, "concrete", "ablation", nll=3.0, rmse=5.0),
        result("TRADI", 2, "concrete", "ablation", nll=4.0, rmse=6.0),
    ]
    table = overview(results)
    assert table.header == [
        "",
        "adam: validation NLL",
        "adam: AUC",
        "adam: test NLL",
        "concrete: test NLL",
        "concrete: RMSE",
    ]
    assert table.rows == [
        ["TRADI", "0.2000", "90.0", "0.1000", "3.5000", "5.500"],
        ["members: 5", "", "", "0.3000", "", ""],
    ]
    assert {(0, 1), (0, 2), (0, 3)} <= table.best
    assert "3 seeds" in table.note


def test_methods_come_in_the_benchmarks_order() -> None:
    (table,) = tables([result(name, nll=1.0, accuracy=1.0, ece=0.0) for name in ("TRADI", "other", "Single network")])
    assert [row[0] for row in table.rows[:3]] == ["Single network", "TRADI", "other"]


def test_the_papers_figures_are_those_of_the_paper() -> None:
    assert paper.UCI["bostonHousing"]["rmse"]["TRADI"] == 2.84
    assert paper.UCI["naval-propulsion-plant"]["nll"]["Deep Ensemble"] == -5.63
    assert paper.MNIST_OOD["TRADI"]["notMNIST/confidence/fpr95"] == pytest.approx(0.11)
    assert len(paper.UCI) == 9


def test_figures_have_names_that_a_markdown_link_can_hold() -> None:
    curves = {"two classes/confidence_histogram": {"edges": [0.0, 0.5, 1.0], "inside": [3, 5], "ood": [5, 3]}}
    assert list(draw([replace(result("A"), curves=curves)])) == ["mnist-ood-adam-two-classes-confidence-histogram"]


def test_markup_in_names_is_escaped() -> None:
    assert "<b>" not in by_method("<b>", [result("<b>", nll=1.0)], [NLL], {}).html()


def test_a_report_of_real_results(tmp_path: Path) -> None:
    for benchmark in (BLOBS, TOY):
        list(run(benchmark, Options(tmp_path, tmp_path / "results", seeds=(0,), splits=(0,), quick=benchmark is TOY)))
    written = write_report(tmp_path / "results", tmp_path / "report")
    names = {path.name for path in written}
    assert {"report.md", "report.html", "toy-gp-regression-band.png"} <= names
    assert {"blobs-sgd-notMNIST-accuracy-confidence.png", "blobs-sgd-notMNIST-confidence-histogram.png"} <= names
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count("<img") == len(names) - 2
    assert "QUICK RUNS" in page
    text = (tmp_path / "report" / "report.md").read_text()
    for found in read_results(tmp_path / "results"):
        assert f"| {found.key.method} |" in text


def test_the_command_line_runs_lists_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tradi.bench.BENCHMARKS", {"blobs": BLOBS})
    main(["bench", "--list"])
    assert "blobs" in capsys.readouterr().out
    main(["bench", "blobs", "--out", str(tmp_path), "--seeds", "0", "--splits", "1", "--methods", "TRADI"])
    (only,) = read_results(tmp_path)
    assert (only.key.method, only.key.split) == ("TRADI", 1)
    assert only.made_by["command"].startswith("tradi bench blobs --out")
    main(["bench", "blobs", "--out", str(tmp_path), "--quick", "--methods", "TRADI"])
    assert len(read_results(tmp_path)) == 1  # what is quick is no result
    assert len(read_results(tmp_path / "quick")) == 1
    main(["report", str(tmp_path)])
    assert "report.html" in capsys.readouterr().out


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="1"):
        main(arguments)
    return capsys.readouterr().err


def test_wrong_names_and_empty_folders_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown benchmark 'magic'" in fails(["bench", "magic"], capsys)
    assert "unknown method 'magic'" in fails(["bench", "toy", "--methods", "magic", "--out", str(tmp_path)], capsys)
    assert "no results under" in fails(["report", str(tmp_path)], capsys)
    assert "leave out --seeds" in fails(["bench", "toy", "--quick", "--seeds", "1"], capsys)
    assert "--jobs must be at least 1, got 0" in fails(["bench", "toy", "--jobs", "0"], capsys)
    assert "not a folder of results" in fails(["report", str(tmp_path / "nowhere")], capsys)
    assert "nowhere is not a folder of data" in fails(["report", str(tmp_path), "--data", "nowhere"], capsys)


def test_a_failure_is_printed_and_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(root: Path, split: int, seed: int) -> Any:
        raise FileNotFoundError(f"{root} has no blobs")

    broken = replace(BLOBS, variants=(replace(BLOBS.variants[0], load=missing),))
    monkeypatch.setattr("tradi.bench.BENCHMARKS", {"blobs": broken})
    error = fails(["bench", "blobs", "--quick", "--out", str(tmp_path), "--data", "here"], capsys)
    assert "1 failed, see above" in error
    assert not list(tmp_path.rglob("*.json"))


def test_the_tables_in_the_docs_are_those_of_the_result_files(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    main(["report", str(root / "results"), "--tables", str(tmp_path / "results.md")])
    assert (tmp_path / "results.md").read_text() == (root / "docs" / "results.md").read_text()
