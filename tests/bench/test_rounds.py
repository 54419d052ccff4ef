"""Active learning in benchmarks: rounds on a small problem, and the labels that methods need in the report."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.bench.test_runner import BLOBS, METHODS, done, load
from tests.report.made import result
from tradi import metrics
from tradi.acquisition import BatchBALD, bald, random
from tradi.bench.active import ACTIVE, POOL, TESTED, load_images, load_table
from tradi.bench.cases import Options
from tradi.bench.declaration import Declaration, read_declaration
from tradi.bench.methods import Deep, Single, Tradi
from tradi.bench.recipe import Recipe
from tradi.bench.results import read_results
from tradi.bench.rounds import Asking, Course, Rounds, learn
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.tables import ByMethod, Column, Needed
from tradi.models import mlp
from tradi.report.needed import labels_needed
from tradi.report.page import page
from tradi.report.tables import tables

ACCURACY = Column("accuracy %", "accuracy", 100, 1, higher=True)
NEEDED = Needed((ACCURACY, Column("RMSE", "rmse")), ", labels needed", "random")
SIZES = (10, 20, 40)
ASKING: dict[str, Any] = {
    "random": Asking(Single(), random),
    "TRADI": Asking(Tradi(members=4), bald),
    "Deep Ensemble of 2": Asking(Deep(runs=2), metrics.predictive_entropy),
}
ASKED = Benchmark(
    "asked",
    "Blobs, label by label",
    (
        Variant(
            "sgd",
            load,
            lambda data, dropout: mlp(2, [8], 3),
            Recipe("sgd", 0.1, epochs=5, batch=8),
            rounds=Rounds(SIZES),
        ),
    ),
    ASKING,
    (NEEDED, ByMethod((ACCURACY,))),
    seeds=(0, 1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("asked")
    ran, failures = done(ASKED, Options(out, out))
    assert (len(ran), failures) == (2, [])
    return out


def test_every_round_is_measured_and_the_first_is_the_same_for_one_network(folder: Path) -> None:
    results = {(one.key.method, one.key.seed): one for one in read_results(folder)}
    assert len(results) == 2 * len(ASKING)
    for one in results.values():
        curve = one.curves["accuracy/learning_curve"]
        assert curve["labels"] == list(SIZES)
        assert curve["value"][-1] == one.metrics["accuracy"]
        first, middle, last = curve["value"]
        assert one.metrics["average/accuracy"] == pytest.approx(((first + middle) / 2 + (middle + last)) / 3)
        assert one.metrics["round/seconds"] > 0
        assert one.metrics["round/beside"] > 0
    nll = [results["random", seed].curves["nll/learning_curve"]["value"][0] for seed in (0, 1)]
    assert nll[0] != nll[1]


def test_rounds_go_on_from_earlier_weights_and_labels_are_never_asked_for_twice(monkeypatch: Any) -> None:
    pool = load(Path(), 0, 0)
    rows = pool.train[0]
    fed, started, ended = [], [], []

    def watched(model: Any, data: Any, *rest: Any) -> Any:
        fed.append((data.train[0], data.validation[0]))
        started.append(model[0].weight.detach().clone())
        run = train(model, data, *rest)
        ended.append(run.model[0].weight.detach().clone())  # type: ignore[index]
        return run

    from tradi.bench.training import train

    monkeypatch.setattr("tradi.bench.rounds.train", watched)
    variant = ASKED.variants[0]
    learn(ASKING["TRADI"], Course(Rounds(SIZES), variant.model, variant.recipe), pool, 3)
    for size, (learnt, held) in zip(SIZES, fed, strict=True):
        assert (len(learnt), len(held)) == (size - size // 5, size // 5)
        places = [(rows == row).all(1).nonzero().item() for row in torch.cat([learnt, held])]
        assert len(set(places)) == size
    for (learnt, held), (later, also) in pairwise(fed):
        assert torch.equal(later[: len(learnt)], learnt)
        assert torch.equal(also[: len(held)], held)
    assert all(torch.equal(after, before) for after, before in zip(ended, started[1:], strict=False))


def test_a_run_is_a_function_of_its_seed() -> None:
    variant, pool = ASKED.variants[0], load(Path(), 0, 0)
    course = Course(Rounds((10, 20)), variant.model, variant.recipe)
    for score in (bald, BatchBALD(candidates=30)):
        one, again = (learn(Asking(Deep(runs=2), score), course, pool, 5)["curves"] for _ in range(2))
        assert one == again


def test_rows_ask_where_there_are_rounds_and_only_there() -> None:
    for variants, methods in ((ASKED.variants, METHODS), (BLOBS.variants, ASKING)):
        with pytest.raises(ValueError, match="must be Asking where it has rounds, and only there"):
            replace(ASKED, variants=variants, methods=methods)


@pytest.mark.parametrize(
    ("values", "goal", "higher", "expected"),
    [
        ([0.5, 0.7, 0.9], 0.8, True, 30.0),
        ([0.5, 0.9, 0.8], 0.9, True, 20.0),
        ([0.5, 0.6, 0.7], 0.8, True, None),
        ([0.9, 0.6, 0.7], 0.8, True, 10.0),
        ([3.0, 2.0, 1.0], 1.5, False, 30.0),
        ([3.0, 2.0, 1.0], 0.5, False, None),
    ],
)
def test_labels_are_counted_up_to_the_first_time_that_the_goal_is_reached(
    values: list[float], goal: float, higher: bool, expected: float | None
) -> None:
    found = labels_needed({"labels": list(SIZES), "value": values}, goal, higher)
    assert found == (expected if expected is None else pytest.approx(expected))


def test_the_table_has_means_and_standard_errors_and_says_who_got_there() -> None:
    curves = {("random", 0): [0.5, 0.6, 0.8], ("random", 1): [0.5, 0.8, 0.6]}
    curves |= {("TRADI", 0): [0.5, 0.8, 0.9], ("TRADI", 1): [0.5, 0.55, 0.58]}
    results = [
        replace(
            result(name, seed, benchmark="asked", variant="sgd", accuracy=values[-1]),
            curves={"accuracy/learning_curve": {"labels": list(SIZES), "value": values}},
        )
        for (name, seed), values in curves.items()
    ]
    declared = Declaration("asked", "Asked", ("sgd",), ("random", "TRADI"), (NEEDED, ByMethod((ACCURACY,))))
    first, second = tables(results, {"asked": declared})
    assert first.title == "asked: sgd, labels needed"
    # Goals are 0.8 and 0.6: random needs 40 and 13.3, TRADI 20 and all 40, without getting there.
    assert first.texts == [["random", "27 ± 13"], ["TRADI", "30 ± 10 (1 of 2)"]]
    assert second.title == "asked: sgd"
    assert len(tables([one for one in results if one.key.method == "TRADI"], {"asked": declared})) == 1  # no goal


def test_the_report_draws_learning_curves_and_its_declaration_is_read_again(folder: Path) -> None:
    declared = read_declaration(folder / "asked" / "benchmark.json")
    assert declared == ASKED.declaration()
    written = page(read_results(folder), {"asked": declared}, folder)
    assert "Accuracy by number of labels" in written
    assert "Learning curves of random, TRADI, Deep Ensemble of 2" in written
    assert "labels until accuracy" in written


def test_pools_of_the_benchmark_are_training_data_alone(data_root: Path) -> None:
    one, other = (load_images(data_root, 0, seed) for seed in (0, 1))
    assert (len(one.train[0]), len(one.test[0])) == (POOL, TESTED)
    assert not torch.equal(one.train[0], other.train[0])
    table = load_table("concrete", data_root, 0, 3)
    assert len(table.train[0]) + len(table.test[0]) == 1030
    assert len(table.train[0]) >= ACTIVE.variants[1].rounds.labels[-1]  # type: ignore[union-attr]
