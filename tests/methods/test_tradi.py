"""What TRADI tracks beside its filter: the average squared gradient of every parameter."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.reference import Gain, Trajectory
from tests.training import network, problem, step, train


def squares_of(model: nn.Module) -> dict[str, float]:
    return {name: p.grad.double().square().mean().item() for name, p in model.named_parameters() if p.grad is not None}


def tracked_squares(tracker: tradi.TRADI) -> dict[str, float]:
    saved = [own["gradient"] for own in tracker.state_dict()["weights"].values()]
    sums = {name: rows.sum().item() for own in saved for name, rows in own.items()}
    return {name: value for name, value in sums.items() if not math.isnan(value)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("joint", [False, True])
def test_squared_gradients_are_averaged_with_the_filters_weights(dtype: torch.dtype, joint: bool) -> None:
    model = network(dtype=dtype)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer, covariance=tradi.FullCovariance() if joint else None)
    seen: list[dict[str, float]] = []
    for x, y in problem(dtype=dtype) * 3:
        step(model, optimizer, x, y)
        seen.append(squares_of(model))
    reference = Trajectory()
    for t in range(1, len(seen) + 1):
        reference.look(t, [0.0])
    found = tracked_squares(tracker)
    assert found.keys() == {"0.weight", "0.bias", "4.weight", "4.bias"}
    for name, value in found.items():
        expected = sum(share * squares[name] for share, squares in zip(reference.shares, seen, strict=True))
        assert value == pytest.approx(expected, rel=1e-5)
    first, last = tracker.posterior()._layers
    assert first.gradient == pytest.approx((32 * found["0.weight"] + 8 * found["0.bias"]) / 40)
    assert last.gradient == pytest.approx((24 * found["4.weight"] + 3 * found["4.bias"]) / 27)


def test_the_papers_filter_averages_them_with_its_own_gain() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman.paper())
    gain = Gain(5e-5)
    expected: dict[str, float] = {}
    for x, y in problem() * 3:
        step(model, optimizer, x, y)
        Q = gain.next()
        for name, square in squares_of(model).items():
            expected[name] = expected.get(name, square) * (1 - Q) + Q * square
    for name, value in tracked_squares(tracker).items():
        assert value == pytest.approx(expected[name], rel=1e-5)


def test_a_resumed_run_goes_on_bit_for_bit() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    whole = tradi.TRADI(model, optimizer)
    train(model, optimizer, 7)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    file.seek(0)
    resumed = tradi.TRADI(model, optimizer)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert tracked_squares(resumed) == tracked_squares(whole)
    train(model, optimizer, 7)
    assert tracked_squares(resumed) == tracked_squares(whole)
    ours, theirs = (tracker.posterior().condition(problem()) for tracker in (resumed, whole))
    assert [layer.reach for layer in ours._layers] == [layer.reach for layer in theirs._layers]


def test_weights_without_gradients_and_sparse_ones_do_not_fail() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head, self.idle = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3), nn.Linear(2, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens).mean(1))

    model = Text()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    tokens, labels = torch.randint(0, 9, (16, 5)), torch.randint(0, 3, (16,))
    for _ in range(5):
        step(model, optimizer, tokens, labels)
    assert tracked_squares(tracker).keys() == {"head.weight", "head.bias"}
    posterior = tracker.posterior().condition([(tokens, labels)])
    assert all(layer.reach == layer.unit for layer in posterior._layers)  # one of them is not known
    assert posterior.sample(2)(tokens).isfinite().all()


def test_a_parameter_that_is_frozen_on_the_way_keeps_what_was_seen_of_it() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 4)
    before = tracked_squares(tracker)
    model[0].requires_grad_(False)
    train(model, optimizer, 4)
    after = tracked_squares(tracker)
    assert after["0.weight"] == before["0.weight"]
    assert after["4.weight"] != before["4.weight"]


def test_half_precision_weights_are_squared_in_float32() -> None:
    model: Any = nn.Linear(4, 3).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    tracker = tradi.TRADI(model, optimizer)
    model.weight.grad = torch.full_like(model.weight, 3e-4)
    model.bias.grad = torch.full_like(model.bias, 2e15)  # whose square bfloat16's sums would round away
    optimizer.step()
    found = tracked_squares(tracker)
    assert found["weight"] == pytest.approx(9e-8, rel=1e-2)
    assert found["bias"] == pytest.approx(4e30, rel=1e-2)
    model = nn.Linear(4, 3).to(torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    tracker = tradi.TRADI(model, optimizer)
    model.weight.grad = torch.full_like(model.weight, 1e-5)  # its square is below float16's range
    model.bias.grad = torch.full_like(model.bias, 6e4)  # and its square above
    optimizer.step()
    found = tracked_squares(tracker)
    assert found["weight"] == pytest.approx(1e-10, rel=1e-2)
    assert found["bias"] == pytest.approx(3.6e9, rel=1e-2)


def test_automatic_mixed_precision_tracks_gradients_without_their_scale() -> None:
    def run(scale: float) -> dict[str, float]:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        tracker = tradi.TRADI(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        torch.manual_seed(0)
        for x, y in problem():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return tracked_squares(tracker)

    assert run(1.0) == pytest.approx(run(1024.0), rel=1e-3)


@pytest.mark.parametrize("joint", [False, True])
def test_a_state_that_was_loaded_is_no_part_of_the_tracker(joint: bool) -> None:
    covariance = tradi.FullCovariance() if joint else None
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer, covariance=covariance)
    train(model, optimizer, 3)
    state = tracker.state_dict()
    kept = copy.deepcopy(state)
    tracker.load_state_dict(state)
    train(model, optimizer, 3)
    for name, saved in state["weights"].items():
        before = kept["weights"][name]
        assert torch.equal(saved["second"], before["second"])
        for part in ("mean", "gradient"):
            assert all(torch.equal(value, before[part][key]) for key, value in saved[part].items())
