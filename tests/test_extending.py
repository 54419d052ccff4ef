"""The recipes of CONTRIBUTING, followed outside the package: a tracker, a measure and a benchmark, up to the report."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.methods import test_conformance as conformance
from tradi.bench.measures import CLASSIFICATION, Measure, OfClasses, against_ood, columns
from tradi.bench.methods import Method, Tracked, usual_methods
from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe
from tradi.bench.results import read_results
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.tables import ByMethod
from tradi.cli.main import main
from tradi.ensemble.copying import copied
from tradi.models import mlp
from tradi.posterior.covariance import Independent
from tradi.posterior.layers import by_layer
from tradi.posterior.posterior import Posterior
from tradi.prediction.classes import ClassPrediction
from tradi.tracking.selection import Select, Weight
from tradi.tracking.tracker import Rates, Tracker

# A tracker, as `src/tradi/methods/average.py` would have it: options, state, update, sample.


class Average(Tracker):
    """The plain average of the weights after every step, and their variance around it."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, every: int = 1, select: Select = "*") -> None:
        self.every = every
        self._moments: dict[Weight, tuple[int, Tensor, Tensor]] = {}  # count, mean, sum of squared deviations
        super().__init__(model, optimizer, select)

    @property
    def options(self) -> dict[str, Any]:
        return {"every": self.every}

    @torch.no_grad()
    def observe(self, moved: Rates) -> None:
        if self.rounds % self.every:
            return
        for weight in moved:
            value = weight.parameter.detach().float()
            count, mean, square = self._moments.get(weight, (0, torch.zeros_like(value), torch.zeros_like(value)))
            after = mean + (value - mean) / (count + 1)
            self._moments[weight] = count + 1, after, square + (value - mean) * (value - after)

    def _current(self) -> dict[str, tuple[int, Tensor, Tensor]]:
        return {name: self._moments[w] for name, w in self.selected.items() if w in self._moments}

    def snapshot(self) -> Posterior:
        model = copied(self.model)
        final = {name: parameter.detach() for name, parameter in model.named_parameters()}
        mean = {name: mean.clone() for name, (_, mean, _) in self._current().items()}
        variance = {name: square / count for name, (count, _, square) in self._current().items()}
        return Posterior(model, by_layer(final, mean, variance), Independent())

    def tracked_state(self) -> dict[str, Any]:
        return {"weights": dict(self._current())}

    def load_tracked_state(self, state: dict[str, Any]) -> None:
        own = self.selected
        self._moments = {own[name]: moments for name, moments in state["weights"].items()}


# A measure.


def margin(prediction: ClassPrediction, labels: Tensor) -> float:
    """How far the most probable class is ahead of the next, on average."""
    del labels
    first, second = prediction.probs.topk(2, dim=1).values.unbind(1)
    return float((first - second).mean())


MEASURES: tuple[OfClasses, ...] = (*CLASSIFICATION, Measure("margin", margin, "margin %", 100, 1, higher=True))


# A benchmark, with an OOD set that has a name of its own.

STRANGE = "far (very far) away"


def load(root: Path, split: int, seed: int) -> Data:
    del root, split
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (300,), generator=generator)
    x = torch.randn(300, 2, generator=generator) + 4 * nn.functional.one_hot(y, 3)[:, :2]
    train, validation, test = ((x[part], y[part]) for part in (slice(200), slice(200, 250), slice(250, 300)))
    ood = {STRANGE: 30 * torch.randn(40, 2, generator=generator)}
    return Data(train, validation, test, ood, measures=MEASURES)


def network(data: Data, dropout: float | None) -> nn.Module:
    return mlp(data.inputs, [8], 3, dropout=0.1 if dropout is None else dropout)


METHODS: dict[str, Method] = {
    **usual_methods(members=3, searched=2, deep=2),
    "Average": Tracked(tracker=Average, options={"every": 2}, members=3),
    "Average, scaled": Tracked(tracker=Average, options={"every": 2}, members=3, tolerance=0.01, searched=2),
}
RECIPE = Recipe("sgd", 0.1, epochs=8, batch=32)
BLOBS = Benchmark(
    "extended",
    "Three blobs",
    (Variant("plain", load, network, RECIPE, heavy=True),),  # heavy: so that trainings are kept and resumed from
    METHODS,
    (ByMethod(columns(MEASURES), ", test data"), against_ood(MEASURES)),
    seeds=(0, 1),
    published={"Average": {"margin": 0.5}},
)


CHECKS = {
    name: check
    for name, check in vars(conformance).items()
    if name.startswith("test_") and {"name", "attach"} & inspect.signature(check).parameters.keys()
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_one_entry_lets_a_tracker_prove_itself(
    check: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = (lambda: conformance.tracked(Average), conformance.load, True)
    monkeypatch.setitem(conformance.METHODS, "Average", entry)
    given = {"name": "Average", "attach": Average, "tmp_path": tmp_path}
    check(**{name: given[name] for name in inspect.signature(check).parameters})


def test_a_tracker_that_lacks_a_part_cannot_be_attached() -> None:
    class Half(Tracker):
        def observe(self, moved: Rates) -> None:
            del moved

    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"abstract.*load_tracked_state.*options.*snapshot.*tracked_state"):
        Half(model, torch.optim.SGD(model.parameters(), 0.1), "*")  # type: ignore[abstract]


def test_tracker_measure_and_ood_set_reach_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tradi.bench.BENCHMARKS", {"extended": BLOBS})
        main(["bench", "extended", "--out", str(tmp_path), "--data", str(tmp_path)])
    main(["report", str(tmp_path)])  # which knows the benchmark by its files alone
    main(["report", str(tmp_path), "--tables", str(tmp_path / "report.md")])
    capsys.readouterr()
    text, page = ((tmp_path / name).read_text() for name in ("report.md", "report.html"))

    _, inside, outside = text.split("### ")
    assert inside.startswith("extended: plain, test data\n")
    assert outside.startswith(f"extended: plain, against {STRANGE}\n")
    assert f"<h3>plain, against {STRANGE}</h3>" in page
    assert f"Confidence: grey test data, coloured OOD data, with {STRANGE}" in page
    results = read_results(tmp_path)
    for table in (inside, outside):
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line[:1] == "|"]
        column, rows = lines[0].index("margin %"), {line[0]: line for line in lines[2:]}
        assert list(rows) == [*METHODS]
        assert (lines[0][column + 1], rows["Average"][column + 1]) == ("paper: margin %", "50.0")
        values = [100 * result.metrics["margin"] for result in results if result.key.method == "Average"]
        assert rows["Average"][column].strip("*").startswith(f"{statistics.fmean(values):.1f} ±")
    for column_title in ("AUC", "FPR95", "AUC, mutual information", "joint ECE"):
        assert f"| {column_title} |" in outside

    charged = {result.key.method: result.seconds["tracking"] for result in results}
    assert charged["Average"] == charged["Average, scaled"] > 0, "one tracker serves both rows"
    for result in results:  # made again from the trainings that were kept: the state of the tracker is among them
        result.key.path(tmp_path).unlink()
    with monkeypatch.context() as patch:
        patch.setattr("tradi.bench.BENCHMARKS", {"extended": replace(BLOBS, seeds=(0,))})
        main(["bench", "extended", "--out", str(tmp_path), "--data", str(tmp_path)])
    again = {result.key: result.metrics for result in read_results(tmp_path)}
    assert len(again) == len(METHODS)
    assert all(result.metrics == again[result.key] for result in results if result.key in again)
