from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.bench.test_runner import BLOBS, METHODS, done, load
from tradi import metrics
from tradi.bench.cases import Options
from tradi.bench.evaluate import evaluate
from tradi.bench.methods import Method, Single
from tradi.bench.problem import Data
from tradi.bench.results import Result, read_results
from tradi.bench.row import Detector
from tradi.bench.segmentation import SegmentationProblem
from tradi.bench.training import Run
from tradi.bench.yardsticks import YARDSTICKS, Energy, Mahalanobis, Neighbours, Yardstick
from tradi.models import mlp
from tradi.prediction.classes import ClassPrediction
from tradi.report.tables import tables

SCORES = ("auroc", "aupr_out", "fpr95")


@pytest.fixture(scope="module")
def run() -> Run:
    torch.manual_seed(0)
    return Run(mlp(2, [8], 3).eval(), {}, 0.0, {}, 0)


def scores(yardstick: Yardstick, run: Run, data: Data) -> torch.Tensor:
    detector, _ = yardstick.ensemble([run], data, 0)
    return detector.score(data.test[0])


def test_scores_are_those_of_the_networks_logits_and_penultimate_features(run: Run) -> None:
    data = load(Path(), 0, 0)
    (x, y), unseen = data.train, data.test[0]
    assert isinstance(run.model, torch.nn.Sequential)
    with torch.no_grad():
        training, features, logits = run.model[:-1](x), run.model[:-1](unseen), run.model(unseen)
    torch.testing.assert_close(scores(Energy(), run, data), -logits.logsumexp(1))
    torch.testing.assert_close(scores(Mahalanobis(), run, data), metrics.mahalanobis(features, training, y))
    torch.testing.assert_close(scores(Neighbours(k=7), run, data), metrics.knn_distance(features, training, 7))


@pytest.mark.parametrize("yardstick", YARDSTICKS.values(), ids=YARDSTICKS.keys())
def test_nothing_is_made_from_ood_or_validation_data(yardstick: Yardstick, run: Run) -> None:
    data = load(Path(), 0, 0)
    other = replace(data, ood={"other": torch.zeros(5, 2)}, validation=(data.validation[0] + 9, data.validation[1]))
    torch.testing.assert_close(scores(yardstick, run, other), scores(yardstick, run, data))


def test_rows_stand_in_the_columns_of_ood_and_in_no_other(tmp_path: Path) -> None:
    methods: dict[str, Method] = {**METHODS, **YARDSTICKS}
    benchmark = replace(BLOBS, methods=methods)
    _, failures = done(benchmark, Options(tmp_path, tmp_path, seeds=(0,), splits=(0,)))
    assert failures == []
    results = {result.key.method: result for result in read_results(tmp_path)}
    for name, yardstick in YARDSTICKS.items():
        assert results[name].metrics.keys() == {f"notMNIST/confidence/{score}" for score in SCORES}
        assert results[name].settings["method"] == repr(yardstick)
        assert results[name].seconds["training"] == results["Single network"].seconds["training"]
    # Far points are far from all training features.
    assert results["Single network: Mahalanobis"].metrics["notMNIST/confidence/auroc"] > 0.9
    (table,) = tables(list(results.values()), {"blobs": benchmark.declaration()})
    (row,) = (row for row in table.texts if row[0] == "Single network: kNN")
    filled = [head.title for head, cell in zip(table.heads, row, strict=True) if cell]
    assert filled == ["", "AUC", "AUPR", "FPR95", "time, in trainings"]


def test_other_rows_do_not_change(tmp_path: Path) -> None:
    def metrics_with(methods: dict[str, Method], out: Path) -> dict[str, Result]:
        done(replace(BLOBS, methods=methods), Options(tmp_path, out, seeds=(0,), splits=(0,)))
        return {result.key.method: result for result in read_results(out)}

    alone = metrics_with(METHODS, tmp_path / "alone")
    beside = metrics_with({**YARDSTICKS, **METHODS}, tmp_path / "beside")
    assert all(beside[name].metrics == alone[name].metrics for name in METHODS)


def test_a_detector_by_confidence_has_the_numbers_of_the_network(run: Run) -> None:
    data = load(Path(), 0, 0)
    single, _ = Single().ensemble([run], data, 0)
    expected = evaluate(single, data).metrics
    by_confidence = Detector(lambda x: ClassPrediction(run.model(x)[None].detach()).one_minus_confidence)
    found = evaluate(by_confidence, data).metrics
    assert found == pytest.approx({name: expected[name] for name in found})
    assert len(found) == 3


def test_pixels_are_refused_with_the_reason(run: Run) -> None:
    with pytest.raises(TypeError, match="Energy is for images in memory, not for SegmentationProblem"):
        Energy().ensemble([run], object.__new__(SegmentationProblem), 0)
