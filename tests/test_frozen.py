"""On a large frozen base, memory, time and files grow with what is tracked: 8,000 weights beside 30 MB."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import tradi
from tests.memory import live_bytes
from tests.training import Batches, problem, same, snapshot
from tradi.methods import SWAG, DeepEnsemble, LastLayerLaplace, MCDropout, SingleNetwork
from tradi.posterior import distribution
from tradi.posterior import posterior as posterior_module

WIDTH = 1930
TRACKED_BYTES = 4 * 8000
BASE_BYTES = 30e6


class Lora(nn.Module):
    """A frozen layer and a trainable change of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, rank, False), nn.Linear(rank, base.out_features, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Adapted(nn.Module):
    """Three frozen layers, one of them with an adapter, and a head that is trained."""

    def __init__(self, outputs: int = 3, seed: int = 0, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Linear(4, width).requires_grad_(False)
        self.first = nn.Linear(width, width).requires_grad_(False)
        self.second = Lora(nn.Linear(width, width))
        self.third = nn.Linear(width, 32).requires_grad_(False)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.stem, self.first, self.second, self.third):
            x = torch.tanh(layer(x))
        found: Tensor = self.head(self.dropout(x))
        return found


def attached(model: Any, data: Batches, steps: int = 3, **options: Any) -> tuple[tradi.TRADI, Any]:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.01)
    tracker = tradi.TRADI(model, optimizer, **options)
    trained(model, optimizer, data, steps)
    return tracker, optimizer


def trained(model: Any, optimizer: Any, data: Batches, steps: int) -> None:
    for x, y in data[:steps]:
        optimizer.zero_grad()
        output = model(x)
        (F.cross_entropy(output, y) if y.ndim == 1 else F.mse_loss(output, y)).backward()
        optimizer.step()
        optimizer.zero_grad()


@contextmanager
def counted(name: str, width: int = WIDTH) -> Iterator[list[Tensor]]:
    """Every tensor as large as a frozen one that an operation of this name is given meanwhile."""
    found: list[Tensor] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if name in str(function):
                found.extend(a for a in args if isinstance(a, Tensor) and a.numel() >= width * width)
            return function(*args, **(kwargs or {}))

    with Mode():
        yield found


def test_a_posterior_its_ensemble_and_its_file_are_as_large_as_what_is_tracked(tmp_path: Path) -> None:
    model = Adapted()
    tracker, _ = attached(model, problem())
    assert sum(p.nbytes for p in model.parameters()) > BASE_BYTES
    tracked = sum(weight.parameter.nbytes for weight in tracker.tracked)
    assert abs(tracked - TRACKED_BYTES) < 0.03 * TRACKED_BYTES
    before, x = live_bytes(), problem()[0][0][:2]
    with counted("clone") as cloned:
        posterior = tracker.posterior()
        ensemble = posterior.sample(20)
        expected = ensemble(x)
    assert not cloned
    assert live_bytes() - before < 1.1 * 26 * tracked  # weights, mean and variance, and 20 members
    path = tmp_path / "posterior"
    posterior.save(path)
    assert path.stat().st_size < 3 * tracked + 10_000
    again = Adapted()
    loaded = tradi.load_posterior(path, again)
    assert torch.equal(loaded.sample(20)(x), expected)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    ensemble.save(tmp_path / "ensemble")
    assert (tmp_path / "ensemble").stat().st_size < 20 * tracked + 50_000
    assert torch.equal(tradi.load_ensemble(tmp_path / "ensemble", again)(x), expected)


def test_members_are_kept_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, _ = attached(Adapted(), problem())
    posterior = tracker.posterior()
    drawn: list[int] = []
    draw = posterior.draw
    monkeypatch.setattr(posterior, "draw", lambda i, seed: drawn.append(i) or draw(i, seed))  # type: ignore[func-returns-value]
    ensemble, x = posterior.sample(20), problem()[0][0]
    ensemble.keep_bytes = int(BASE_BYTES / 30)  # less than one network
    assert torch.equal(ensemble(x), ensemble(x))
    assert drawn == list(range(20))
    again = copy.deepcopy(ensemble)  # whose shared weights are elsewhere
    again(x)
    assert drawn == list(range(20))
    twins = DeepEnsemble([posterior, posterior]).sample(20)  # what they have in common does not count
    twins.keep_bytes = ensemble.keep_bytes
    twins(x)
    assert len(twins._kept) == 20


@pytest.fixture
def small() -> Any:
    return Adapted(width=16)


def test_finiteness_is_checked_once_and_of_trained_weights_alone(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[Any] = []
    check = distribution.check_finite

    def noted(trained: Any, layers: Any) -> None:
        checks.append(trained)
        check(trained, layers)

    monkeypatch.setattr(posterior_module, "check_finite", noted)
    tracker, _ = attached(small, problem())
    posterior = tracker.posterior().fit(problem(), problem(32, 16, seed=1))
    posterior.rescaled(2).sample(2)(problem()[0][0])
    assert len(checks) == 1
    tracker, _ = attached(Adapted(), problem())
    with counted("abs") as touched:  # which isfinite is made of
        tracker.posterior()
    assert not touched
    with torch.no_grad():
        small.second.up.weight[0] = torch.nan
    with pytest.raises(ValueError, match=r"weights of second\.up\.weight are NaN"):
        SingleNetwork(small)


@pytest.mark.parametrize("method", ["TRADI", "SWAG"])
def test_training_goes_on_and_changes_nothing_in_a_snapshot(small: Any, method: str) -> None:
    optimizer = torch.optim.SGD(small.parameters(), 0.1)
    tracker: Any = tradi.TRADI(small, optimizer) if method == "TRADI" else SWAG(small, optimizer, every=1, rank=2)
    data, x = problem(), problem()[0][0]
    trained(small, optimizer, data, 4)
    small.second.up.requires_grad_(False)  # was tracked, and is copied: it may be trained again
    posterior = tracker.posterior()
    ensemble = posterior.sample(3)
    expected, before = ensemble(x), snapshot(small)
    assert same(before, snapshot(small))
    small.second.up.requires_grad_(True)
    trained(small, optimizer, data, 4)
    assert torch.equal(ensemble(x), expected)
    assert torch.equal(posterior.sample(3)(x), expected)
    shared = {p.data_ptr() for p in small.parameters()} & {p.data_ptr() for p in posterior.model.parameters()}
    frozen = ("stem", "first", "second.base", "third")
    assert shared == {p.data_ptr() for name, p in small.named_parameters() if name.startswith(frozen)}
    member: Any = ensemble[0]
    assert member.first.weight.data_ptr() == small.first.weight.data_ptr()
    assert member.first.weight is not small.first.weight
    assert member.second.up.weight.data_ptr() != small.second.up.weight.data_ptr()


def unfrozen(model: Any) -> None:
    model.first.requires_grad_(True)
    trained(model, torch.optim.SGD(model.first.parameters(), 0.1), problem(), 1)


CHANGES = {
    "unfrozen and trained": unfrozen,
    "loaded": lambda model: model.load_state_dict(Adapted(width=16, seed=1).state_dict()),
    "by hand": lambda model: model.third.bias.data.detach() is None or model.third.bias.add_(1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_frozen_weight_that_changes_after_all_is_noticed_and_a_deep_copy_has_its_own(small: Any, change: Any) -> None:
    tracker, _ = attached(small, problem())
    posterior, x = tracker.posterior(), problem()[0][0]
    ensemble, masks, alone = posterior.sample(2), MCDropout(small), copy.deepcopy(posterior)
    expected = ensemble(x)
    change(small)
    calls: list[Any] = [
        lambda: ensemble(x),
        lambda: ensemble.predict(x, likelihood=tradi.likelihoods.Classification()),
        lambda: ensemble[0],
        lambda: posterior.sample(2),
        lambda: posterior.rescaled(2),
        lambda: posterior.fit(problem(), problem()),
        lambda: posterior.save("nowhere"),
        lambda: copy.deepcopy(posterior),
        lambda: masks.sample(2),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"was changed in place .* shares frozen weights with the live model"):
            call()
    assert torch.equal(alone.sample(2)(x), expected)
    assert torch.equal(copy.deepcopy(alone).sample(2)(x), expected)


def test_a_model_that_moves_or_gets_new_tensors_leaves_a_snapshot_alone(small: Any) -> None:
    tracker, _ = attached(small, problem())
    posterior, x = tracker.posterior(), problem()[0][0]
    expected = posterior.sample(2)(x)
    small.double()
    small.first.weight.data = torch.zeros(3)
    assert torch.equal(posterior.sample(2)(x), expected)
    inner: Any = posterior.model
    assert inner.first.weight.dtype == torch.float32


def test_files_without_the_frozen_base_are_for_models_that_have_it(small: Any, tmp_path: Path) -> None:
    posterior, x = attached(small, problem())[0].posterior(), problem()[0][0]
    ensemble = posterior.sample(2)
    expected = ensemble(x)
    posterior.save(tmp_path / "p")
    ensemble.save(tmp_path / "e")
    for other in (Adapted(width=16, seed=1), Adapted(width=16)):
        if torch.equal(other.stem.weight, small.stem.weight):
            with torch.no_grad():
                other.third.weight[3, 2] += 1e-6  # one number is enough
        before = snapshot(other)
        with pytest.raises(ValueError, match=r"p cannot be loaded: it leaves out 8 weights .* or save with whole=True"):
            tradi.load_posterior(tmp_path / "p", other)
        with pytest.raises(ValueError, match=r"e cannot be loaded: it leaves out 8 weights .* or save with whole=True"):
            tradi.load_ensemble(tmp_path / "e", other)
        posterior.save(tmp_path / "whole p", whole=True)
        ensemble.save(tmp_path / "whole e", whole=True)
        other.requires_grad_(False)  # as a server would
        assert torch.equal(tradi.load_posterior(tmp_path / "whole p", other).sample(2)(x), expected)
        assert torch.equal(tradi.load_ensemble(tmp_path / "whole e", other)(x), expected)
        assert same(snapshot(other), before)


def test_a_file_is_loaded_whatever_is_frozen_in_the_model_and_says_what_was(small: Any, tmp_path: Path) -> None:
    posterior, x = attached(small, problem())[0].posterior(), problem()[0][0]
    expected, server = posterior.sample(2)(x), Adapted(width=16)
    posterior.save(tmp_path / "p")
    for frozen in (True, False):
        server.requires_grad_(not frozen)
        before = snapshot(server)
        loaded = tradi.load_posterior(tmp_path / "p", server)
        assert torch.equal(loaded.sample(2)(x), expected)
        flags = {name: p.requires_grad for name, p in loaded.model.named_parameters()}
        assert flags == {name: p.requires_grad for name, p in small.named_parameters()}
        assert same(snapshot(server), before)
        loaded.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "p").read_bytes()


def numbers() -> Batches:
    return [(x, x[:, :1].sin()) for x, _ in problem()]


@pytest.mark.filterwarnings("ignore:all members are the trained network")
@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize("task", ["labels", "numbers"])
def test_conditioning_on_a_frozen_base_holds_no_copy_of_it(task: str, adapter: bool) -> None:
    width, data = 600, problem() if task == "labels" else numbers()
    model = Adapted(3 if task == "labels" else 1, width=width)
    model.second.requires_grad_(adapter)
    model.second.base.requires_grad_(False)
    posterior = attached(model, data)[0].posterior()
    runs: list[int] = []
    inner: Any = posterior.model
    inner.first.register_forward_pre_hook(lambda *_: runs.append(1))  # which copies have too
    before = live_bytes()
    with counted("clone", width) as cloned:
        conditioned = posterior.condition(data)
        once = len(runs)
        fitted = conditioned.choose_scale(data)
        assert fitted.sample(3)(data[0][0]).isfinite().all()
    assert not cloned
    assert live_bytes() - before < 4 * width * width
    assert once <= 6 * len(data)
    if not adapter:  # members differ behind the base: it runs once over the training data, whatever scale is tried
        passes = 0 if fitted.scale_search is None else fitted.scale_search.passes
        assert len(runs) - once < (passes + 14) * len(data)


@pytest.mark.filterwarnings("ignore:all members are the trained network")
def test_a_last_layer_on_a_frozen_network_needs_no_copy_of_it() -> None:
    model = Adapted().requires_grad_(False)
    before = live_bytes()
    fitted = LastLayerLaplace(model).fit(problem(), problem())
    assert fitted.sample(2)(problem()[0][0]).isfinite().all()
    assert live_bytes() - before < 1_000_000
