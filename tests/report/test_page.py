from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.test_runner import BLOBS
from tradi.bench import BENCHMARKS
from tradi.bench.cases import Options
from tradi.bench.declaration import read_declaration
from tradi.bench.results import Key, Result, read_results
from tradi.bench.runner import run
from tradi.bench.tables import ByMethod, ByVariant, Column, Overview
from tradi.bench.toy import TOY
from tradi.bench.uci import PUBLISHED
from tradi.cli.main import main
from tradi.report.page import draw, write_report
from tradi.report.tables import by_method, by_variant, overview, tables


def result(method: str, seed: int = 0, variant: str = "adam", benchmark: str = "mnist-ood", **metrics: float) -> Result:
    made_by = {"tradi": "0", "commit": "c", "torch": "2", "command": "tradi bench"}
    key = Key(benchmark, variant, method, seed, 0)
    return Result(key, metrics, {}, {"quick": False}, {}, {"training": 2.0 + seed}, 1.0, made_by)


COMMITTED = Path(__file__).parents[2] / "results"
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
    assert by_method("t", [one], [NLL], {}).note.endswith("of training. Evaluated on 1 core, at commit c.")
    assert by_method("t", [one, two], [NLL], {}).note.endswith("of training. Evaluated on 1 or 2 cores, at commit c.")


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
    declared = {benchmark: BENCHMARKS[benchmark].declaration()}
    made = tables([result("TRADI", benchmark=benchmark, miou=0.5, **scores)], declared)
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
    rmse = Column("RMSE", "rmse", digits=2)
    declared = ByVariant((rmse,), "UCI", "A note.", PUBLISHED)
    table = by_variant(results, rmse, declared)
    assert (table.title, table.note) == ("UCI: RMSE", "A note.")
    assert table.rows == [["yacht", "1.00", "2.00", "1.11", "1.58", "1.05"]]
    worse = [result("TRADI", variant="yacht", benchmark="uci", rmse=1.06)]
    assert "behind the paper's TRADI: yacht." in by_variant(worse, replace(rmse, digits=3), declared).note


def test_the_ablation_is_one_table_of_all_problems() -> None:
    on_validation: dict[str, Any] = {"validation/nll": 0.2, "notMNIST/confidence/auroc": 0.9}
    results = [
        result("TRADI", benchmark="ablation", nll=0.1, **on_validation),
        result("members: 5", benchmark="ablation", nll=0.3),
        result("TRADI", 1, "concrete", "ablation", nll=3.0, rmse=5.0),
        result("TRADI", 2, "concrete", "ablation", nll=4.0, rmse=6.0),
    ]
    (declared,) = (table for table in BENCHMARKS["ablation"].tables if isinstance(table, Overview))
    table = overview(results, declared)
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
    results = [result(name, benchmark="mnist", nll=1.0, accuracy=1.0) for name in ("TRADI", "other", "Single network")]
    (table,) = tables(results, {"mnist": BENCHMARKS["mnist"].declaration()})
    assert [row[0] for row in table.rows[:3]] == ["Single network", "TRADI", "other"]


def test_the_papers_figures_are_those_of_the_paper() -> None:
    assert PUBLISHED["bostonHousing"]["TRADI"]["rmse"] == 2.84
    assert PUBLISHED["naval-propulsion-plant"]["Deep Ensemble"]["nll"] == -5.63
    assert len(PUBLISHED) == 9
    published = {name: benchmark.published for name, benchmark in BENCHMARKS.items()}
    assert published["mnist-ood"]["TRADI"]["notMNIST/confidence/fpr95"] == pytest.approx(0.11)
    assert published["cifar10"]["SWAG"] == {"nll": 0.110, "accuracy": 0.9641}
    assert published["streethazards"]["TRADI"]["OOD/confidence/fpr95"] == pytest.approx(0.253)
    assert published["bdd-anomaly"]["Deep Ensemble"]["OOD/confidence/auroc"] == pytest.approx(0.87)
    assert published["camvid-ood"]["TRADI"]["miou"] == 0.5298
    assert "miou" not in published["camvid-ood"]["MCP"]


def test_a_table_for_every_ood_set_and_none_without_the_metric_of_its_first_column() -> None:
    table = ByMethod((NLL, Column("AUC", "{}/auroc")), ", against {}", each="{}/joint")
    made = table.made_for(["nll", "far away/auroc", "far away/joint", "near/auroc", "near/joint", "validation/auroc"])
    assert [(one.title, one.columns[1].metric) for one in made] == [
        (", against far away", "far away/auroc"),
        (", against near", "near/auroc"),
    ]
    assert ByMethod((NLL,)).made_for(["accuracy"]) == []


def test_results_that_no_table_shows_are_spoken_of() -> None:
    with pytest.warns(UserWarning, match="no table that is declared shows mnist: adam, whose results have rmse"):
        assert (
            tables([result("TRADI", benchmark="mnist", rmse=1.0)], {"mnist": BENCHMARKS["mnist"].declaration()}) == []
        )


def test_where_no_measure_is_better_none_stands_out() -> None:
    coverage = Column("95% covers %", "coverage95", 100, 1, higher=None)
    table = by_method("t", [result("A", coverage95=0.95), result("B", coverage95=1.0)], [coverage], {})
    assert table.best == frozenset()


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*/benchmark.json")), ids=lambda path: path.parent.name)
def test_the_declarations_beside_the_results_are_those_of_the_code(path: Path) -> None:
    assert read_declaration(path) == BENCHMARKS[path.parent.name].declaration()


def test_a_declaration_that_is_missing_or_none_is_named(tmp_path: Path) -> None:
    result("TRADI", benchmark="mnist", nll=1.0).write(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"benchmark\.json is missing.*`tradi bench mnist --out .*` writes it"):
        write_report(tmp_path, tmp_path)
    for content in ("{}", "[]", "{", '{"tables": [{"kind": "Magic", "columns": []}]}'):
        (tmp_path / "mnist" / "benchmark.json").write_text(content)
        with pytest.raises(ValueError, match=r"benchmark\.json does not declare a benchmark"):
            write_report(tmp_path, tmp_path)


def test_figures_have_names_that_a_markdown_link_can_hold() -> None:
    curves = {"two (of 10) classes/confidence_histogram": {"edges": [0.0, 0.5, 1.0], "inside": [3, 5], "ood": [5, 3]}}
    drawn = draw([replace(result("A"), curves=curves)], {"mnist-ood": BENCHMARKS["mnist-ood"].declaration()})
    assert list(drawn) == ["mnist-ood-adam-two-of-10-classes-confidence-histogram"]


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
    assert not list(tmp_path.rglob("seed-*.json"))


def test_the_tables_in_the_docs_are_those_of_the_result_files(tmp_path: Path) -> None:
    main(["report", str(COMMITTED), "--tables", str(tmp_path / "results.md")])
    assert (tmp_path / "results.md").read_text() == (COMMITTED.parent / "docs" / "results.md").read_text()
