from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.report.made import result
from tradi.bench import BENCHMARKS
from tradi.bench.tables import ByMethod, ByVariant, Column, Overview, Paired
from tradi.bench.uci import PUBLISHED
from tradi.report.tables import by_method, by_variant, overview, paired, tables

NLL = Column("NLL", "nll", digits=2)
ACCURACY = Column("accuracy %", "accuracy", 100, 1, higher=True)


def test_cells_are_mean_and_deviation_and_the_papers_stand_beside() -> None:
    results = [result("A", 0, nll=1.0, accuracy=0.9), result("A", 1, nll=2.0, accuracy=0.7)]
    results += [result("B", 0, nll=0.2), result("B", 1, nll=1.1)]
    table = by_method("t", results, [NLL, ACCURACY], {"B": {"nll": 0.4}, "theirs": {"nll": 0.5}})
    assert [head.title for head in table.heads] == ["", "NLL", "paper: NLL", "accuracy %", "time, in trainings"]
    assert table.texts == [
        ["A", "1.50 ± 0.71", "", "80.0 ± 14.1", "1.00"],
        ["B", "0.65 ± 0.64", "0.40", "", "1.00"],
        ["paper: theirs", "", "0.50", "", ""],
    ]
    assert "| **0.65 ± 0.64** |" in table.markdown()
    assert "| 80.0 ± 14.1 |" in table.markdown(), "nothing to be ahead of"


@pytest.mark.parametrize(
    ("values", "stands_out"),
    [
        (((1.0, 2.0), (1.2, 2.3)), True),  # ahead by 0.25, give or take 0.07, though each varies by 0.7
        (((1.0, 2.0), (1.6, 2.0)), False),  # ahead by 0.3, give or take 0.42
        (((1.0,), (2.0,)), False),  # one run has no deviation
        (((1.001, 1.001), (1.002, 1.002)), False),  # alike in print
    ],
)
def test_the_best_stands_out_where_it_is_ahead_by_more_than_the_deviation(values: Any, stands_out: bool) -> None:
    runs = [result(name, seed, nll=v) for name, own in zip("AB", values, strict=True) for seed, v in enumerate(own)]
    (first, *_), (second, *_) = (cells for _, cells in by_method("t", runs, [NLL], {}).rows)
    assert (first.best, second.best) == (stands_out, False)


def test_numbers_that_would_be_left_with_one_digit_get_more() -> None:
    small = by_method("t", [result("A", nll=0.00035), result("B", nll=0.0021)], [NLL], {})
    assert [row[1] for row in small.texts] == ["0.0003", "0.0021"]
    usual = by_method("t", [result("A", nll=0.0), result("B", nll=0.35)], [NLL], {})
    assert [row[1] for row in usual.texts] == ["0.00", "0.35"]


def test_a_method_with_fewer_runs_says_so_and_is_not_compared() -> None:
    table = by_method("t", [result("A", 0, nll=1.0), result("A", 1, nll=2.0), result("B", 0, nll=0.5)], [NLL], {})
    assert [row[1] for row in table.texts] == ["1.50 ± 0.71", "0.50 (1 of 2)"]
    assert not any(cell.best for _, cells in table.rows for cell in cells)


def test_the_note_says_on_how_many_cores_results_were_made() -> None:
    one = result("A", nll=1.0)
    two = replace(result("A", 1, nll=1.0), made_by=one.made_by | {"threads": 2})
    assert by_method("t", [one], [NLL], {}).note.endswith("without tracking, on 1 core.")
    assert by_method("t", [one, two], [NLL], {}).note.endswith("without tracking, on 1 or 2 cores.")
    assert by_method("t", [one, two], [NLL], {}).made == "Made at commit c."


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
    beside = [
        [row[table.heads.index(head)] for head in table.heads if head.of_paper][:3]
        for table in made
        for row in table.texts
        if row[0] == "TRADI" and "OOD" in table.title
    ]
    assert len(beside) == 2
    assert beside[0] == beside[1]
    assert all(beside[0])


def test_data_sets_stand_beside_the_papers_figures() -> None:
    results = [
        result(m, variant="yacht", benchmark="uci", rmse=v) for m, v in (("TRADI", 1.0), ("Single network", 2.0))
    ]
    rmse = Column("RMSE", "rmse", digits=2)
    declared = ByVariant((rmse,), "UCI", "A note.", PUBLISHED)
    table = by_variant(results, rmse, declared)
    assert (table.title, table.note) == ("UCI: RMSE", "A note.")
    assert [head.title for head in table.heads[1:]] == [
        *("TRADI", "paper: TRADI", "Single network", "paper: MC Dropout", "paper: Deep Ensemble")
    ]
    assert table.texts == [["yacht", "1.00", "1.05", "2.00", "1.11", "1.58"]]
    worse = [result("TRADI", variant="yacht", benchmark="uci", rmse=1.06)]
    assert "behind the paper's TRADI: yacht." in by_variant(worse, replace(rmse, digits=3), declared).note


def test_differences_are_taken_run_by_run_with_their_standard_error() -> None:
    ours, theirs, few = (1.0, 2.0, 4.0, 5.0), (2.0, 2.5, 4.5, 8.0), (1.5, 2.0)
    results = [result("TRADI", split=split, benchmark="uci", nll=value) for split, value in enumerate(ours)]
    results += [result("A", split=split, benchmark="uci", nll=value) for split, value in enumerate(theirs)]
    results += [result("B", split=split, benchmark="uci", nll=value) for split, value in enumerate(few)]
    results += [result("TRADI", variant="other", benchmark="uci", nll=1.0)]
    results += [result("A", variant="other", benchmark="uci", nll=0.5)]
    table = paired(results, NLL, Paired((NLL,), "UCI", "TRADI", ("A", "B")))
    assert [head.title for head in table.heads] == ["", "minus A", "minus B"]
    # The differences are -1, -0.5, -0.5 and -3: their deviation is 1.19, and the mean's a half of it.
    assert table.texts == [["adam", "-1.25 ± 0.60", "-0.25 ± 0.25 (2 of 4)"], ["other", "0.50", ""]]
    assert "Negative: TRADI is ahead." in table.note
    assert "Positive: TRADI is ahead." in paired(results, ACCURACY, Paired((ACCURACY,), "t", "TRADI", ())).note


def test_uci_declares_the_comparisons_that_its_pages_quote() -> None:
    results = [
        result(name, split=split, benchmark="uci", variant="yacht", nll=value + split, rmse=value)
        for name, value in (("TRADI", 0.5), ("Deep Ensemble of 5", 1.0), ("TRADI, nothing tracked", 0.25))
        for split in (0, 1)
    ]
    made = {table.title: table for table in tables(results, {"uci": BENCHMARKS["uci"].declaration()})}
    assert made["UCI: NLL of TRADI, minus others"].texts == [["yacht", "-0.5000 ± 0.0000", "", "0.2500 ± 0.0000"]]
    assert "UCI: RMSE of TRADI, minus others" in made


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
    assert [head.title for head in table.heads] == [
        "",
        "adam: validation NLL",
        "adam: AUC",
        "adam: test NLL",
        "concrete: test NLL",
        "concrete: RMSE",
    ]
    assert table.texts == [
        ["TRADI", "0.2000", "90.0", "0.1000", "3.5000", "5.500"],
        ["members: 5", "", "", "0.3000", "", ""],
    ]
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
    results = [result(name, seed, coverage95=value) for name, value in (("A", 0.95), ("B", 1.0)) for seed in (0, 1)]
    table = by_method("t", results, [coverage], {})
    assert not any(cell.best for _, cells in table.rows for cell in cells)
