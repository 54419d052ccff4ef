from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.test_docs import DOCS, executed
from tradi.methods import SWAG


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def attached(**options: Any) -> tradi.TRADI:
    model = network()
    return tradi.TRADI(model, torch.optim.SGD(model.parameters(), 0.1), **options)


def trained(tracker: tradi.TRADI, steps: int) -> list[dict[str, Tensor]]:
    """Train on inputs whose first column is 0; returns the weights after every step."""
    (optimizer,) = tracker._taken
    trajectory = []
    for _ in range(steps):
        x = torch.randn(8, 4)
        x[:, 0] = 0
        optimizer.zero_grad()
        (tracker.model(x) - x[:, :2]).square().mean().backward()
        optimizer.step()
        trajectory.append({name: p.detach().clone() for name, p in tracker.model.named_parameters()})
    return trajectory


def test_deviation_and_spread_are_those_of_the_trajectory() -> None:
    tracker = attached(kalman=tradi.Kalman(mean_gain=tradi.FadingMemory(1), variance_gain=tradi.FadingMemory(1)))
    trajectory = trained(tracker, 50)
    for layer in tradi.diagnostics(tracker).layers:
        runs = torch.stack(
            [torch.cat([step[f"{layer.name}.{k}"].flatten() for k in ("weight", "bias")]) for step in trajectory]
        )
        assert layer.weights == runs.shape[1]
        assert layer.deviation == pytest.approx(runs.double().var(0, correction=0).mean().sqrt().item(), rel=1e-4)
        assert layer.spread == pytest.approx(runs[-1].double().std(correction=0).item())
        assert layer.relative == layer.deviation / layer.spread
        assert layer.still == (runs == runs[0]).all(0).sum()
    assert [layer.still for layer in tradi.diagnostics(tracker).layers] == [6, 0]


def test_memory_and_stride_are_those_of_the_filter() -> None:
    tracker = attached()
    trained(tracker, 600)
    found = tradi.diagnostics(tracker)
    assert (found.steps, found.stride) == (600, 2)
    assert found.memory == pytest.approx(60, rel=0.02)
    assert found.scalars["tradi/looked_at_share"] == 0.5
    assert found.scalars["tradi/memory_over_run"] == pytest.approx(0.1, rel=0.02)
    assert found.warnings == ()


def test_the_paper_s_filter_looks_at_every_step() -> None:
    model = network()
    tracker = tradi.TRADI.paper(model, torch.optim.SGD(model.parameters(), 0.1))
    trained(tracker, 120)
    found = tradi.diagnostics(tracker)
    assert found.stride == 1
    assert any("remembers" in warning for warning in found.warnings)  # some 316 steps
    assert [layer.still for layer in found.layers] == [0, 0]  # its variance starts above 0


def test_a_full_covariance_has_its_diagonal_shown() -> None:
    alone, together = attached(), attached(covariance=tradi.FullCovariance())
    for tracker in (alone, together):
        torch.manual_seed(1)
        trained(tracker, 30)
    for a, b in zip(tradi.diagnostics(alone).layers, tradi.diagnostics(together).layers, strict=True):
        assert a.deviation == pytest.approx(b.deviation, rel=1e-4)


def test_a_run_that_is_not_seen_is_the_only_news() -> None:
    (warning,) = tradi.diagnostics(attached()).warnings
    assert "no optimizer step was seen" in warning


def test_what_is_wrong_is_said() -> None:
    tracker = attached()
    for parameter in tracker.model[2].parameters():  # type: ignore[index]
        parameter.register_hook(lambda gradient: torch.zeros_like(gradient))
    trained(tracker, 20)
    few, still = tradi.diagnostics(tracker).warnings
    assert "only 20 steps" in few
    assert "no weight moved in 2:" in still
    found = tradi.diagnostics(tracker)
    wild = [replace(layer, deviation=3 * layer.spread, still=0) for layer in found.layers]
    assert "moved by more than their spread in 0, 2:" in replace(found, layers=tuple(wild), steps=200).warnings[0]
    nan = [replace(layer, deviation=float("nan"), still=0) for layer in found.layers]
    assert "not finite in 0, 2:" in replace(found, layers=tuple(nan), steps=200).warnings[0]


def test_steps_that_were_left_out_are_counted() -> None:
    tracker = attached()
    trained(tracker, 20)
    (optimizer,) = tracker._taken
    for parameter in tracker.model.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    with pytest.warns(UserWarning, match="left out"):
        optimizer.step()
    found = tradi.diagnostics(tracker)
    assert found.skipped == found.scalars["tradi/skipped_steps"] == 1
    assert "21 steps seen, 1 of them left out;" in str(found)
    assert any("1 of 21 steps were left out" in warning for warning in found.warnings)


def test_it_is_a_table() -> None:
    tracker = attached()
    trained(tracker, 20)
    first, head, *rows = str(tradi.diagnostics(tracker)).splitlines()
    assert first == "20 steps seen; memory 2 steps (12% of the run); looks at every step now"
    assert head.split("  ")[0] == "layer"
    assert [row.split()[0] for row in rows] == ["0", "2", "!"]
    assert rows[0].split()[-1] == "20.0%"


def test_it_changes_nothing() -> None:
    plain, watched = attached(), attached()
    for tracker in (plain, watched):
        torch.manual_seed(1)
        trained(tracker, 10)
        if tracker is watched:
            tradi.diagnostics(tracker)
        trained(tracker, 10)
    for a, b in zip(plain.state_dict()["weights"].values(), watched.state_dict()["weights"].values(), strict=True):
        assert torch.equal(a["second"], b["second"])


def test_a_function_of_numbers_and_step_is_a_logger() -> None:
    tracker = attached()
    trained(tracker, 20)
    seen: list[tuple[dict[str, float], int]] = []
    tradi.diagnostics(tracker).log(lambda numbers, step: seen.append((numbers, step)), 20)
    assert seen == [(tradi.diagnostics(tracker).scalars, 20)]
    with pytest.raises(TypeError, match="SummaryWriter"):
        tradi.diagnostics(tracker).log("tensorboard", 20)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # tensorboard's own
def test_tensorboard_gets_every_number(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    tracker = attached()
    with SummaryWriter(str(tmp_path)) as writer:
        for step in (10, 20):
            trained(tracker, 10)
            tradi.diagnostics(tracker).log(writer, step)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    last = tradi.diagnostics(tracker).scalars
    assert set(events.Tags()["scalars"]) == set(last)
    for name, value in last.items():
        found = events.Scalars(name)
        assert [event.step for event in found] == [10, 20]
        assert found[-1].value == pytest.approx(value)


def test_the_figure_has_a_bar_per_layer() -> None:
    tracker = attached()
    trained(tracker, 20)
    left, right = tradi.diagnostics(tracker).figure().axes
    assert len(left.patches) == len(right.patches) == 2
    assert [label.get_text() for label in left.get_yticklabels()] == ["0", "2"]


def test_other_trackers_are_refused() -> None:
    model = network()
    with pytest.raises(TypeError, match="got SWAG"):
        tradi.diagnostics(SWAG(model, torch.optim.SGD(model.parameters(), 0.1), every=1))  # type: ignore[arg-type]


def test_the_page_shows_what_is_printed_and_lists_what_is_logged() -> None:
    page = DOCS / "diagnostics.md"
    found = executed(page)
    assert str(found["found"]).splitlines()[0] in page.read_text()
    assert found["history"] == [(600, found["found"].scalars)]
    names = {name.rpartition("/")[0] if name.count("/") > 1 else name for name in found["found"].scalars}
    assert all(f"`{name}" in page.read_text() for name in names)
