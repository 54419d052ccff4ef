"""The fast update is the reference, after every step: through the public interface, with every optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.utils._python_dispatch import TorchDispatchMode

import tradi
from tests import reference
from tests.runs import FAN_IN, OPTIMIZERS, PRESETS, SELECTED, lead, mlp, normal, optimizer_of, steps
from tradi._torch import tree_leaves
from tradi.filter.equations import Accumulate, Gains, Step
from tradi.filter.kalman import Observation, observe

# float64: some 25 steps of a dozen rounded operations (1e-16 each) on numbers of order 1.
EXACT = (1e-11, 1e-13)  # rtol, atol
# float32: the same operations at 6e-8 each. A variance is made of squares of w - mu, which cancels to about
# 1e-2 of w: rtol 1e-4, and 1e-8 where it all but vanishes.
MEAN_FLOAT32 = (1e-5, 1e-6)
VARIANCE_FLOAT32 = (1e-4, 1e-8)

Tolerance = tuple[float, float]


@dataclass
class Follower:
    """The reference filters of a model's parameters, each fed what one reads off after an optimizer step."""

    preset: str
    model: nn.Module

    def __post_init__(self) -> None:
        self.filters = {
            name: reference.filter_of(self.preset, [tuple(p.shape)], FAN_IN[name])
            for name, p in self.model.named_parameters()
            if self.preset == "paper" or not name.startswith("1.")  # the others leave BatchNorm alone
        }

    def follow(self, optimizer: Optimizer) -> None:
        lr = {p: float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}
        for name, p in self.model.named_parameters():
            if name in self.filters:
                weights, gradients = row([p])
                self.filters[name].step(weights, gradients, [lr[p]] * len(weights))

    def check(self, posterior: tradi.Posterior, mean: Tolerance, variance: Tolerance) -> None:
        assert posterior.mean.keys() == posterior.variance.keys() == self.filters.keys()
        for name, filter_ in self.filters.items():
            same(posterior.mean[name], filter_.mean, mean)
            same(posterior.variance[name], filter_.variance, variance)


def same(found: Tensor, expected: list[float] | list[list[float]], tolerance: Tolerance) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64).view(found.shape)
    close(found.double(), wanted, tolerance)


def close(found: Tensor, expected: Tensor, tolerance: Tolerance) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance[0], atol=tolerance[1])


def row(parameters: Iterable[nn.Parameter]) -> tuple[list[float], list[float]]:
    """The weights and gradients of several parameters, one after another."""
    weights: list[float] = []
    gradients: list[float] = []
    for p in parameters:
        assert p.grad is not None
        weights += p.detach().flatten().tolist()
        gradients += p.grad.flatten().tolist()
    return weights, gradients


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_step_equals_the_reference(preset: str, kind: str, dtype: torch.dtype) -> None:
    model = mlp(dtype)
    optimizer = optimizer_of(kind, model)
    tracker = tradi.TRADI(model, optimizer, kalman=PRESETS[preset], **SELECTED[preset])
    follower = Follower(preset, model)
    tight = dtype == torch.float64
    for _ in steps(model, optimizer, 25):
        follower.follow(optimizer)
        follower.check(tracker.posterior(), EXACT if tight else MEAN_FLOAT32, EXACT if tight else VARIANCE_FLOAT32)
    assert tracker.posterior().mean["0.weight"].dtype == dtype


@pytest.mark.parametrize("preset", PRESETS)
def test_each_param_group_brings_its_own_learning_rate_as_scheduled(preset: str) -> None:
    model = mlp()
    groups = [
        {"params": [model[0].weight, model[3].bias], "lr": 0.2},
        {"params": [model[0].bias], "lr": 0.01},
        {"params": [*model[1].parameters(), model[3].weight], "lr": 0.05},
    ]
    optimizer = SGD(groups, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=5, gamma=0.3)
    tracker = tradi.TRADI(model, optimizer, kalman=PRESETS[preset], **SELECTED[preset])
    follower = Follower(preset, model)
    for _ in steps(model, optimizer, 15):
        follower.follow(optimizer)
        follower.check(tracker.posterior(), EXACT, EXACT)
        scheduler.step()


@pytest.mark.parametrize("covariance", [tradi.FourierFeatures(), tradi.FullCovariance()], ids=["each", "joint"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_learning_rate_may_be_a_tensor(preset: str, covariance: tradi.Covariance) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), torch.tensor(0.125, dtype=torch.float64))
    tracker = tradi.TRADI(model, optimizer, kalman=PRESETS[preset], **SELECTED[preset], covariance=covariance)
    follower = Follower(preset, model)
    for t in steps(model, optimizer, 8):
        follower.follow(optimizer)
        optimizer.param_groups[0]["lr"].fill_(0.125 / t)
    follower.check(tracker.posterior(), EXACT, EXACT)


@pytest.mark.parametrize("chunk", [1, 5, 12, 1000])
@pytest.mark.parametrize("preset", PRESETS)
def test_chunk_boundaries_change_nothing(preset: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tradi.filter.kalman, "CHUNK", chunk)
    monkeypatch.setattr(tradi.filter.kalman, "VECTOR", 1)
    model = mlp()
    optimizer = optimizer_of("momentum", model)
    tracker = tradi.TRADI(model, optimizer, kalman=PRESETS[preset], **SELECTED[preset])
    follower = Follower(preset, model)
    for _ in steps(model, optimizer, 8):
        follower.follow(optimizer)
    follower.check(tracker.posterior(), EXACT, EXACT)


class Counting(tradi.Trajectory):
    """The default equations, and how many weights of how many pieces they were given at a time."""

    def __init__(self) -> None:
        self.passes: list[list[int]] = []

    def step(self, at: Step, add: Accumulate) -> None:
        self.passes.append([len(mean) for mean in at.mean])
        super().step(at, add)


def test_small_weights_share_a_pass_and_large_ones_take_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tradi.filter.kalman, "CHUNK", 10)
    monkeypatch.setattr(tradi.filter.kalman, "VECTOR", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # what fits in the caches of both
    equations = Counting()
    sizes = [3, 4, 13, 1, 45, 2, 20]
    seen = [Observation(torch.randn(n), torch.rand(n), torch.randn(n), None, 0.0) for n in sizes]
    expected = [(s.mean.lerp(s.weight, 0.25), s.second * 0.5) for s in seen]
    innovations = [s.weight - s.mean for s in seen]
    observe(equations, seen, Gains(0.25, 0.5))
    assert equations.passes == [[3, 4, 13], [1], [23], [22], [2], [20]]
    for s, (mean, second), d in zip(seen, expected, innovations, strict=True):
        torch.testing.assert_close(s.mean, mean)
        torch.testing.assert_close(s.second, second + 0.5 * 0.75 * d * d)


def test_results_do_not_depend_on_threads_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    path = normal(4, 100_003, dtype=torch.float32)
    found = []
    for chunk, threads in ((1 << 18, 1), (1001, 1), (1001, 2), (30_000, 2)):
        monkeypatch.setattr(tradi.filter.kalman, "CHUNK", chunk)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        posterior = lead({"layer.w": path}).posterior()
        found.append(torch.stack([posterior.mean["layer.w"], posterior.variance["layer.w"]]))
    assert all(torch.equal(one, found[0]) for one in found)


def test_weights_of_several_precisions() -> None:
    kinds = [torch.float64, torch.float32, torch.float64, torch.bfloat16, torch.float16]
    paths = {f"layer.w{i}": normal(6, 3, seed=i).to(dtype) for i, dtype in enumerate(kinds)}
    posterior = lead(paths).posterior()
    for name, path in paths.items():
        filter_ = reference.Trajectory()
        for weights in path:
            filter_.step(weights.tolist(), [], [])
        tight = path.dtype == torch.float64
        same(posterior.mean[name], filter_.mean, EXACT if tight else MEAN_FLOAT32)
        same(posterior.variance[name], filter_.variance, EXACT if tight else VARIANCE_FLOAT32)
        assert posterior.mean[name].dtype == (torch.float64 if tight else torch.float32)


def test_weights_that_do_not_lie_side_by_side() -> None:
    model = nn.ParameterDict({"w": nn.Parameter(normal(6, 2)[:, 0])})
    assert model["w"].stride() == (2,)
    optimizer = SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    filter_ = reference.Trajectory()
    for seed in range(5):
        model["w"].grad = normal(6, seed=seed)
        optimizer.step()
        filter_.step(model["w"].tolist(), [], [])
    same(tracker.posterior().mean["w"], filter_.mean, EXACT)
    same(tracker.posterior().variance["w"], filter_.variance, EXACT)


def test_weights_that_count_their_own_steps_get_their_own_gains() -> None:
    paths = {"a": normal(6, 3), "b": normal(6, 3, seed=1)}
    model = nn.ParameterDict({name: path[0].clone() for name, path in paths.items()})
    optimizer = SGD(model.parameters(), 0.0)
    tracker = tradi.TRADI(model, optimizer)
    filters = {name: reference.Trajectory() for name in paths}
    for t in range(6):
        for name in paths if t % 2 else ("a",):  # b has no gradient at every other step
            model[name].data.copy_(paths[name][t])
            model[name].grad = torch.zeros_like(model[name])
            filters[name].step(paths[name][t].tolist(), [], [])
        optimizer.step()
        optimizer.zero_grad()
    for name, found in filters.items():
        same(tracker.posterior().mean[name], found.mean, EXACT)
        same(tracker.posterior().variance[name], found.variance, EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_is_eight_bytes_a_weight_and_attaching_reads_none(dtype: torch.dtype) -> None:
    class Operations(TorchDispatchMode):
        read: ClassVar[list[int]] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not str(function).startswith(("aten.detach", "aten.select", "aten.slice")):  # views read nothing
                self.read.extend(leaf.numel() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
            return function(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(50, 40), nn.LayerNorm(40), nn.Linear(40, 3)).to(dtype)
    optimizer = SGD(model.parameters(), 0.1)
    with Operations() as counted:
        tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman(), select="*")
    assert max(counted.read) <= 16  # a few values, to notice weights that move without a step
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    held = [t for b in tracker.state_dict()["weights"].values() for t in (*b["mean"].values(), b["second"])]
    assert sum(t.nbytes for t in held) == 8 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("preset", PRESETS)
def test_full_covariance_equals_the_loops_over_pairs(preset: str, kind: str) -> None:
    model = mlp()
    optimizer = optimizer_of(kind, model)
    joint = tradi.TRADI(model, optimizer, kalman=PRESETS[preset], **SELECTED[preset], covariance=tradi.FullCovariance())
    single = tradi.TRADI(model, optimizer, kalman=PRESETS[preset], **SELECTED[preset])
    layer = {n: p for n, p in model.named_parameters() if n.startswith("3.")}
    pairs = reference.filter_of(preset, [tuple(p.shape) for p in layer.values()], FAN_IN["3.weight"])
    for _ in steps(model, optimizer, 20):
        weights, gradients = row(layer.values())
        pairs.step(weights, gradients, [optimizer.param_groups[0]["lr"]] * len(weights), pairs=True)
        tracked = joint.state_dict()["weights"]["3.weight"]
        same(torch.cat([value.flatten() for value in tracked["mean"].values()]), pairs.mean, EXACT)
        same(tracked["second"], pairs.covariance, EXACT)
    one, other = joint.posterior(), single.posterior()
    for name in other.mean:  # the diagonal is what is tracked weight by weight
        close(one.mean[name], other.mean[name], EXACT)
        close(one.variance[name], other.variance[name], EXACT)


def test_full_covariance_takes_each_weights_own_learning_rate() -> None:
    model = mlp()
    rates = {"3.weight": 0.2, "3.bias": 0.01}
    optimizer = SGD([{"params": [p], "lr": rates.get(n, 0.1)} for n, p in model.named_parameters()])
    kalman = tradi.Kalman.paper()
    tracker = tradi.TRADI(model, optimizer, kalman=kalman, covariance=tradi.FullCovariance(), select="3")
    pairs = reference.filter_of("paper", [(2, 4), (2,)], 4)
    for _ in steps(model, optimizer, 10):
        weights, gradients = row(model[3].parameters())
        pairs.step(weights, gradients, [rates["3.weight"]] * 8 + [rates["3.bias"]] * 2, pairs=True)
    tracked = tracker.state_dict()["weights"]["3.weight"]
    same(tracked["second"], pairs.covariance, EXACT)


@pytest.mark.parametrize("every", [0, -3])
def test_every_must_be_positive(every: int) -> None:
    with pytest.raises(ValueError, match=rf"every must be a whole number of steps, at least 1, got {every}"):
        tradi.Kalman(every=every)


@pytest.mark.parametrize("equations", [tradi.AlgorithmOne(), tradi.ReleasedCode()], ids=repr)
def test_equations_that_add_up_gradients_must_see_every_step(equations: tradi.AlgorithmOne) -> None:
    with pytest.raises(ValueError, match=r"every = 2 would miss gradients"):
        tradi.Kalman(equations, every=2)
    # also where the gains alone would let steps pass
    assert all(tradi.Kalman(equations).observes(step) for step in range(5000, 5020))
