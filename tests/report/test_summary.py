from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.report.made import full, result
from tradi.bench import BENCHMARKS
from tradi.bench.results import Result
from tradi.report.charts import Methods
from tradi.report.compare import in_trainings
from tradi.report.problems import DETECTION, LIKELIHOOD, problems
from tradi.report.summary import costs, rivals, score, summary

DECLARED = {name: one.declaration() for name, one in BENCHMARKS.items()}


def results(tradi: float, **others: float) -> list[Result]:
    """Three seeds of TRADI and of others, all shifted by as much as is said."""
    found = {"TRADI": tradi, **{name.replace("_", " "): shift for name, shift in others.items()}}
    return [full(name, seed, better=shift) for name, shift in found.items() for seed in (0, 1, 2)]


def test_problems_are_every_ood_set_and_every_likelihood_that_tables_show() -> None:
    numbers: dict[str, Any] = {"inside/nll_mixture": 1.0, "outside/nll_mixture": 2.0, "nll": 9.0, "nll_mixture": 8.0}
    toy = [result(name, seed, "gp", "toy", **numbers) for name in ("TRADI", "SWAG") for seed in (0, 1)]
    uci = [result("TRADI", 0, "yacht", "uci", nll=0.5, nll_mixture=0.4, rmse=1.0)]
    auc: dict[str, Any] = {"notMNIST/confidence/auroc": 0.9}
    ablation = [result("TRADI", 0, "adam", "ablation", **auc)]
    found = problems([*toy, *uci, *results(0.1, SWAG=0.0), *ablation], DECLARED)
    assert [(one.question, one.benchmark, one.name, one.column.metric) for one in found] == [
        (LIKELIHOOD, "toy", "GP, among the points", "inside/nll_mixture"),
        (LIKELIHOOD, "toy", "GP, beyond", "outside/nll_mixture"),
        (LIKELIHOOD, "uci", "yacht", "nll"),
        (DETECTION, "mnist-ood", "Adam, notMNIST", "notMNIST/confidence/auroc"),
        (LIKELIHOOD, "mnist-ood", "Adam", "nll"),
    ]
    assert found[3].title == "MNIST against notMNIST"
    assert found[0].title == "Toy regression"


def test_detection_is_by_mutual_information_where_there_is_any() -> None:
    made = [
        replace(one, metrics=one.metrics | {"notMNIST/confidence/auroc": 0.5}) for one in results(0.1, Single_network=0)
    ]
    detection = problems(made, DECLARED)[0]
    assert detection.numbers["TRADI"][(0, 0)] == pytest.approx(97)
    assert detection.numbers["Single network"][(0, 0)] == pytest.approx(50)


@pytest.mark.parametrize(
    ("others", "kind", "short"),
    [
        ({"SWAG": 0.0, "MC_Dropout": 0.05}, "ahead", "ahead of all 2"),
        ({"SWAG": 0.0, "MC_Dropout": 0.2}, "behind", "behind MC Dropout"),
        ({"SWAG": 0.3, "MC_Dropout": 0.2}, "behind", "behind all 2"),
        ({"SWAG": 0.1, "MC_Dropout": 0.0}, "level", "level with SWAG"),
        ({"Laplace, last layer": 0.9, "SWAG": 0.0}, "ahead", "ahead of SWAG"),
    ],
)
def test_a_verdict_is_against_the_well_known_methods(others: dict[str, float], kind: str, short: str) -> None:
    for one in problems(results(0.1, **others), DECLARED):
        assert one.verdict is not None
        assert (one.verdict.kind, one.verdict.short) == (kind, short)
    assert all(one.verdict is None for one in problems(results(0.1), DECLARED))
    single = [one for one in results(0.1, SWAG=0.0) if one.key.seed == 0]
    assert {one.verdict.kind for one in problems(single, DECLARED) if one.verdict} == {"level"}, (
        "one run proves nothing"
    )


def test_scores_count_what_was_found_for_all_sizes_of_an_ensemble_together() -> None:
    first = [
        full(name, seed, "adam", better)
        for name, better in (("TRADI", 0.1), ("Deep Ensemble of 5", 0.2))
        for seed in (0, 1)
    ]
    second = [
        full(name, seed, "sgd", better)
        for name, better in (("TRADI", 0.1), ("Deep Ensemble of 3", 0.0))
        for seed in (0, 1)
    ]
    met = rivals(problems([*first, *second], DECLARED))
    assert list(met) == ["Deep Ensemble"]
    assert score(met["Deep Ensemble"], DETECTION) == (1, 0, 1)
    assert score(met["Deep Ensemble"], LIKELIHOOD) == (1, 0, 1)


def test_the_summary_says_where_tradi_wins_and_loses_and_draws_all_methods() -> None:
    methods = Methods(["TRADI", "SWAG", "Deep Ensemble of 5"])
    written = summary(results(0.1, **{"SWAG": 0.0, "Deep Ensemble of 5": 0.3}), DECLARED, methods)
    (ahead, level, behind) = re.findall(r"<li class=\w+><strong>.*?</li>", written)
    assert "0 of 2 problems" in ahead
    assert "0 of 2 problems" in level
    assert "2 of 2 problems" in behind
    assert "<b>MNIST against notMNIST</b> (Adam, notMNIST)" in behind
    assert written.count("class='verdict behind'") == 2
    for index in range(3):
        assert written.count(f"<g class='s c{methods.styles[list(methods.index)[index]].slot}' data-m={index}>") == 2
    turned = summary(results(0.4, **{"SWAG": 0.0, "Deep Ensemble of 5": 0.3}), DECLARED, methods)
    assert turned.count("class='verdict ahead'") == 2


def test_the_summary_answers_a_manager_in_three_cards_and_folds_the_benchmarks() -> None:
    made = results(0.1, **{"Single network": 0.0, "SWAG": 0.0})
    several = [
        replace(full("Deep Ensemble of 5", seed, better=0.3), notes={"steps": [9] * 5}, seconds={"training": 10.0})
        for seed in (0, 1, 2)
    ]
    written = summary([*made, *several], DECLARED, Methods(["TRADI", "Single network", "SWAG", "Deep Ensemble of 5"]))
    cards = re.findall(r"<li>(<strong>.*?)</li>", re.search(r"<ul class=answers>.*?</ul>", written)[0])  # type: ignore[index]
    unknown, probabilities, cost = cards
    for card in (unknown, probabilities):
        assert "Against the single network: better on <b class=ahead>1</b> of 1 problems" in card
        assert "Against a Deep Ensemble: better on <b class=ahead>0</b> of 1 problems" in card
        assert card.endswith("worse on <b class=behind>1</b></p>")
    assert "TRADI: <b>1</b> training<" in cost
    assert "a Deep Ensemble: <b>5</b> trainings<" in cost
    (table,) = re.findall(r"<table class=scores>.*?</table>", written)
    widths = [int(width) for width in re.findall(r"class=cost><span style='width:(\d+)%'", table)]
    assert widths == [16, 16, 16, 80], "TRADI, the single network, SWAG, five networks"
    whole, _, folded = written.rpartition(">What does it cost?")[2].partition("<details>")
    assert "in trainings" in whole
    assert "mnist-ood" not in whole
    assert "mnist-ood" in folded


def test_every_row_has_a_scale_of_its_own_and_no_auc_is_above_a_hundred() -> None:
    near = results(0.1, SWAG=0.12)
    written = summary(near, DECLARED, Methods(["TRADI", "SWAG"]))
    low, high = (float(end) for end in re.findall(r"text-anchor=(?:start|end)>([\d.]+)</text>", written)[:2])
    assert 96 < low < high < 100
    perfect = [replace(one, metrics=one.metrics | {"notMNIST/information/auroc": 1.0}) for one in near if one.key.seed]
    far = [replace(one, metrics=one.metrics | {"notMNIST/information/auroc": 0.8}) for one in results(0, SWAG=0)[3:5]]
    ends = re.findall(r">([\d.]+)</text>", summary([*perfect[:2], *far], DECLARED, Methods(["TRADI", "SWAG"])))
    assert float(ends[1]) == 100


def test_without_rivals_there_is_no_verdict_and_without_problems_no_figure() -> None:
    written = summary(results(0.1), DECLARED, Methods(["TRADI"]))
    assert "verdicts" not in written
    assert "class=strips" in written
    nothing = summary([result("TRADI", benchmark="ablation", nll=1.0)], DECLARED, Methods(["TRADI"]))
    assert "class=strips" not in nothing


def test_costs_are_in_units_of_one_plain_training() -> None:
    alone = replace(result("TRADI"), seconds={"training": 12.0, "tracking": 2.0, "preparing": 3.0})
    assert in_trainings(alone) == pytest.approx(1.5)
    several = replace(result("Deep Ensemble of 2"), seconds={"training": 20.0}, notes={"steps": [9, 9]})
    assert in_trainings(several) == pytest.approx(2)
    assert in_trainings(replace(alone, notes={})) is None
    table = costs([alone, several], ["TRADI", "Deep Ensemble of 2"])
    assert table.texts == [["TRADI", "1", "1.50", "1.50"], ["Deep Ensemble of 2", "2", "2.00", "2.00"]]


def test_a_time_is_the_median_of_a_benchmark_and_then_over_benchmarks() -> None:
    def took(benchmark: str, *shares: float) -> list[Result]:
        made = [result("TRADI", seed, benchmark=benchmark) for seed in range(len(shares))]
        seconds = [{"training": 2.0, "preparing": 2.0 * share - 2.0} for share in shares]
        return [replace(one, seconds=own) for one, own in zip(made, seconds, strict=True)]

    table = costs([*took("toy", 4, 5, 9), *took("uci", *[1.5] * 9), *took("mnist", 1.1, 1.1)], ["TRADI"])
    assert table.texts == [["TRADI", "1", "1.50", "5.00", "1.50", "1.10"]]


def test_a_method_far_behind_the_others_does_not_squeeze_them() -> None:
    made = results(0.1, SWAG=0.09, MC_Dropout=0.08, Single_network=-40)
    (likelihood,) = (one for one in problems(made, DECLARED) if one.question == LIKELIHOOD)
    written = summary(made, DECLARED, Methods(list(likelihood.numbers)))
    strips = re.findall(r"<span class=what>Adam</span>(<svg.*?</svg>)", written)
    (strip,) = strips
    places = [float(x) for x in re.findall(r"<path class=(?:dot|mark|cross) d='M(\d*\.?\d*) ", strip)]
    shown = sorted(places)
    assert shown[0] == 8, "at the left end"
    assert shown[-1] - shown[1] > 100, "the others are spread over the strip"
