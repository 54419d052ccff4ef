from __future__ import annotations

import copy
import io
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tests.training import network, problem, same, snapshot, step, train
from tradi.tracking.tracker import Tracker


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr)


def trajectory_moments(seen: list[Tensor], g: float = 10.0) -> tuple[Tensor, Tensor]:
    """Mean and variance of a trajectory with weights t^g - (t-1)^g, straight from their definition."""
    values = torch.stack(seen).double()
    t = torch.arange(1, len(seen) + 1, dtype=torch.float64)
    share = ((t**g - (t - 1) ** g) / len(seen) ** g).view(-1, *[1] * (values.ndim - 1))
    mean = (share * values).sum(0)
    return mean, (share * (values - mean) ** 2).sum(0)


def check_moments(posterior: tradi.Posterior, name: str, seen: list[Tensor]) -> None:
    mean, variance = trajectory_moments(seen)
    torch.testing.assert_close(posterior.mean[name].double(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(posterior.variance[name].double(), variance, rtol=1e-3, atol=1e-9)


def test_the_training_run_is_the_same_bit_for_bit_with_and_without_a_tracker() -> None:
    plain, tracked = network(), network()
    train(plain, torch.optim.Adam(plain.parameters(), 1e-2))
    optimizer = torch.optim.Adam(tracked.parameters(), 1e-2)
    tracker = tradi.TRADI(tracked, optimizer)
    train(tracked, optimizer)
    before = snapshot(tracked)
    ensemble = tracker.posterior().sample(3).refresh(problem())
    ensemble(problem()[0][0])
    ensemble[0]
    assert same(snapshot(plain), snapshot(tracked))
    assert same(before, snapshot(tracked))
    assert tracked.training


def test_default_selection_leaves_normalisation_layers_out_and_paper_takes_all() -> None:
    model = network()
    tracker = tradi.TRADI(model, sgd(model))
    assert [w.name for w in tracker.tracked] == ["0.weight", "0.bias", "4.weight", "4.bias"]
    paper = tradi.TRADI.paper(model, sgd(model))
    assert [w.name for w in paper.tracked] == [name for name, _ in model.named_parameters()]


class SomebodysRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


@pytest.mark.parametrize(
    "layer",
    [nn.BatchNorm1d(4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True), SomebodysRMSNorm()],
)
def test_normalisation_layers_of_any_make_are_recognised(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), layer)
    assert [w.layer for w in tradi.TRADI(model, sgd(model)).tracked] == ["0", "0"]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("4", ["4.weight", "4.bias"]),
        ("*.weight", ["0.weight", "1.weight", "4.weight"]),
        (nn.Linear, ["0.weight", "0.bias", "4.weight", "4.bias"]),
        (nn.BatchNorm1d, ["1.weight", "1.bias"]),
        (["0.bias", nn.BatchNorm1d], ["0.bias", "1.weight", "1.bias"]),
        (lambda name, module, parameter: parameter.ndim == 2, ["0.weight", "4.weight"]),
    ],
)
def test_selection_by_pattern_type_and_predicate(select: Any, expected: list[str]) -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer, select=select)
    train(model, optimizer)
    assert list(tracker.posterior().mean) == expected


def test_unselected_weights_stay_as_trained_in_every_member() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer, select="4")
    train(model, optimizer)
    member = dict(tracker.posterior().sample(1)[0].named_parameters())
    assert torch.equal(member["0.weight"], model[0].weight)
    assert not torch.equal(member["4.weight"], model[4].weight)


def test_scheduler_and_accumulation_are_seen_as_optimizer_steps() -> None:
    model = network()
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    tracker = tradi.TRADI(model, optimizer)
    seen = []
    for i, (x, y) in enumerate(problem() * 4):
        F.cross_entropy(model(x), y).backward()
        if i % 2:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            seen.append(model[0].weight.detach().clone())
    assert tracker.steps == len(seen) == 8
    check_moments(tracker.posterior(), "0.weight", seen)


def test_scheduled_learning_rate_reaches_the_paper_filter() -> None:
    model = nn.Linear(4, 3)
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman.paper())
    x, y = problem()[0]
    step(model, optimizer, x, y)
    before = tracker.posterior().mean["weight"]
    optimizer.param_groups[0]["lr"] = 0.0  # then nothing is predicted, and the correction is Q (w - mu)
    step(model, optimizer, x, y)
    gain = tradi.StationaryNoise(1e-4, 10.0)(1, 2)
    expected = before + gain * (model.weight.detach() - before)
    torch.testing.assert_close(tracker.posterior().mean["weight"], expected)


def test_maximising_optimizers_are_predicted_uphill() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, maximize=True)
    tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman.paper())
    step(model, optimizer, *problem()[0])
    assert model.weight.grad is not None
    gain = tradi.StationaryNoise(1e-4, 10.0)(0, 1)
    expected = (1 - gain) * 0.1 * model.weight.grad + gain * model.weight.detach()
    torch.testing.assert_close(tracker.posterior().mean["weight"], expected)


def test_the_default_equations_start_at_the_weights_whatever_the_gain() -> None:
    model = nn.Linear(4, 3)
    optimizer = sgd(model, lr=0.0)
    noise = tradi.StationaryNoise(1e-4, 10.0)
    tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman(mean_gain=noise, variance_gain=noise))
    train(model, optimizer, 5)
    posterior = tracker.posterior()
    torch.testing.assert_close(posterior.mean["weight"], model.weight.detach())
    assert not posterior.variance["weight"].any()


def test_weights_without_a_gradient_wait() -> None:
    model: Any = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    seen = []
    for i, (x, y) in enumerate(problem() * 3):
        step(model["a" if i % 3 else "b"], optimizer, x, y)
        if i % 3 == 0:
            seen.append(model["b"].weight.detach().clone())
    check_moments(tracker.posterior(), "b.weight", seen)


def test_weights_frozen_and_unfrozen_on_the_way() -> None:
    model = network()
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    seen: dict[str, list[Tensor]] = {"0.weight": [], "4.weight": []}

    def after(done: int) -> None:
        if done > 4:
            seen["0.weight"].append(model[0].weight.detach().clone())
        if done <= 8:
            seen["4.weight"].append(model[4].weight.detach().clone())
        if done == 4:
            assert "0.weight" not in tracker.posterior().mean
            model[0].requires_grad_(True)
        if done == 8:
            model[4].requires_grad_(False)

    train(model, optimizer, 12, after)
    posterior = tracker.posterior()
    check_moments(posterior, "0.weight", seen["0.weight"])
    check_moments(posterior, "4.weight", seen["4.weight"])


def test_a_layer_frozen_on_the_way_has_its_final_value_for_a_mean() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 10)
    model[0].requires_grad_(False)
    spread = tracker.posterior().variance["0.weight"]
    optimizer.zero_grad()
    train(model, optimizer, 20)
    posterior = tracker.posterior()
    assert torch.equal(posterior.mean["0.weight"], model[0].weight)
    assert torch.equal(posterior.variance["0.weight"], spread)
    assert not torch.equal(posterior.mean["4.weight"], model[4].weight)
    again = network()
    again.load_state_dict(snapshot(model))
    again[0].requires_grad_(False)
    resumed = tradi.TRADI(again, sgd(again))
    resumed.load_state_dict(tracker.state_dict())
    assert same(resumed.posterior().mean, posterior.mean)


def test_a_model_that_is_frozen_when_training_is_over_keeps_its_means() -> None:
    model = network()
    optimizers = [sgd(model[0]), sgd(model[4])]
    tracker = tradi.TRADI(model, optimizers)
    train(model, optimizers, 20)
    before = tracker.posterior().mean
    model.requires_grad_(False)
    assert same(tracker.posterior().mean, before)


def test_param_groups_and_layers_added_late() -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3)
    head = nn.Linear(3, 3)
    model.append(head)
    optimizer.add_param_group({"params": head.parameters(), "lr": 0.01})
    seen: list[Tensor] = []
    train(model, optimizer, 5, lambda _: seen.append(head.weight.detach().clone()))
    check_moments(tracker.posterior(), "1.weight", seen)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x).relu())


def test_what_a_forward_leaves_on_a_module_is_no_obstacle() -> None:
    with pytest.warns(FutureWarning):
        model: Any = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3, lambda _: setattr(model, "cached", model(problem()[0][0])))
    posterior = tracker.posterior()
    assert list(posterior.mean) == ["0.bias", "0.weight_g", "0.weight_v"]
    outputs = posterior.sample(2)(problem()[0][0])
    assert not torch.equal(outputs[0], outputs[1])


def test_a_damaged_checkpoint_is_an_error_and_changes_nothing() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3)
    before = tracker.posterior().mean
    for spoil in (
        lambda state: state.update(weights={}),
        lambda state: state["weights"]["0.weight"].update(second=torch.zeros(3)),
        lambda state: state["weights"]["0.weight"]["mean"].update({"0.weight": torch.zeros(4, 8)}),
        lambda state: state.update(taken={0: 1, 1: 1}),
    ):
        state = tracker.state_dict()
        spoil(state)
        with pytest.raises(ValueError, match=r"damaged|2 optimizers"):
            tracker.load_state_dict(state)
    assert same(before, tracker.posterior().mean)
    with pytest.raises(ValueError, match="not the state_dict"):
        tracker.load_state_dict(None)  # type: ignore[arg-type]


def test_a_tracker_that_a_module_holds_is_not_copied_with_it() -> None:
    model = network()
    optimizer = sgd(model)
    model.tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3)
    assert copy.deepcopy(model).tracker is model.tracker


def test_an_optimizer_whose_step_calls_that_of_its_base_takes_one_step() -> None:
    class Decaying(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if closure is not None:
                super().step(closure)
            super().step()
            for p in model.parameters():
                p.mul_(0.9)

    model = network()
    sgd(model)  # torch prepares a class for hooks when it is first used
    optimizer = Decaying(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    seen: list[Tensor] = []
    train(model, optimizer, 3, lambda _: seen.append(model[0].weight.detach().clone()))

    def broken() -> float:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        optimizer.step(broken)
    train(model, optimizer, 3, lambda _: seen.append(model[0].weight.detach().clone()))
    assert tracker.steps == 6
    check_moments(tracker.posterior(), "0.weight", seen)


def test_one_optimizer_given_twice_is_one() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, (one for one in (optimizer, optimizer)))  # type: ignore[arg-type]
    train(model, optimizer, 3)
    assert tracker.steps == 3


def test_tied_weights_are_tracked_once_and_stay_tied_in_members() -> None:
    model = Tied()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    seen: list[Tensor] = []
    train(model, optimizer, 6, lambda _: seen.append(model.encode.weight.detach().clone()))
    posterior = tracker.posterior()
    assert list(posterior.mean) == ["encode.weight"]
    check_moments(posterior, "encode.weight", seen)
    ensemble = posterior.sample(2)
    member = ensemble[1]
    assert isinstance(member, Tied)
    assert member.encode.weight is member.decode.weight
    x = torch.randn(5, 4)
    torch.testing.assert_close(ensemble(x)[1], member(x))


def test_two_optimizers_on_one_model() -> None:
    model = network()
    optimizers = [sgd(model[0]), torch.optim.Adam(model[4].parameters(), 1e-2)]
    tracker = tradi.TRADI(model, optimizers)
    seen: dict[str, list[Tensor]] = {"0.weight": [], "4.weight": []}

    def after(done: int) -> None:
        for name, values in seen.items():
            values.append(model.state_dict()[name].clone())

    train(model, optimizers, 6, after)
    for name, values in seen.items():
        check_moments(tracker.posterior(), name, values)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_grad_scaler_skips_are_not_tracked(fused: bool) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    tracker = tradi.TRADI(model, optimizer)
    seen = []
    for i, (x, y) in enumerate(problem() * 2):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (float("inf") if i % 3 == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if i % 3 != 1:
            seen.append(model.weight.detach().clone())
    assert tracker.steps == len(seen) == 5
    check_moments(tracker.posterior(), "weight", seen)


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_unscaled_when_the_paper_filter_reads_them(fused: bool) -> None:
    def posterior(scale: float) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman.paper())
        for x, y in problem():
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        return tracker.posterior().variance

    torch.testing.assert_close(posterior(1.0), posterior(1024.0))


def test_compiled_model_is_tracked_under_its_own_names() -> None:
    model = network()
    compiled: Any = torch.compile(model, backend="eager")
    optimizer = sgd(compiled)
    tracker = tradi.TRADI(compiled, optimizer)
    train(compiled, optimizer, 4)
    posterior = tracker.posterior()
    assert list(posterior.mean) == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert posterior.sample(2).refresh(problem())(problem()[0][0]).shape == (2, 16, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what dynamo imports
def test_compiled_optimizer_step_is_tracked_like_any_other() -> None:
    def posterior(compiled: bool) -> tradi.Posterior:
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = sgd(model)
        tracker = tradi.TRADI(model, optimizer)
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for x in torch.randn(10, 8, 4):  # past the compiler's limit of new versions, from which on it leaves it be
            optimizer.zero_grad()
            model(x).square().mean().backward()
            step()
        assert tracker.steps == 10
        return tracker.posterior()

    plain, compiled = posterior(False), posterior(True)
    torch.testing.assert_close(plain.mean, compiled.mean)
    torch.testing.assert_close(plain.variance, compiled.variance)


def test_state_follows_a_model_to_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 3)
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 2)
    # Meta is the only other device of a machine without accelerators; as on those, parameters keep their identity.
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    model.to("meta")
    model.weight.grad = torch.empty(3, 4, device="meta")
    model.bias.grad = torch.empty(3, device="meta")
    optimizer.step()
    assert {saved["second"].device.type for saved in tracker.state_dict()["weights"].values()} == {"meta"}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_state_of_half_precision_weights_is_float32(half: torch.dtype) -> None:
    model = nn.Linear(4, 3).to(half)
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    seen: list[Tensor] = []
    data = problem(dtype=half)
    for x, y in data:
        step(model, optimizer, x, y)
        seen.append(model.weight.detach().clone())
    posterior = tracker.posterior()
    assert posterior.mean["weight"].dtype == posterior.variance["weight"].dtype == torch.float32
    check_moments(posterior, "weight", seen)
    assert posterior.sample(2)(data[0][0]).dtype == half


@pytest.mark.parametrize("kalman", [tradi.Kalman(), tradi.Kalman.paper()])
def test_sparse_gradients(kalman: tradi.Kalman) -> None:
    def posterior(sparse: bool) -> tradi.Posterior:
        torch.manual_seed(0)
        model = nn.Embedding(6, 3, sparse=sparse)
        optimizer = sgd(model)
        tracker = tradi.TRADI(model, optimizer, kalman=kalman)
        for words in torch.randint(6, (8, 2)):
            optimizer.zero_grad()
            model(words).square().sum().backward()
            optimizer.step()
        return tracker.posterior()

    dense, sparse = posterior(False), posterior(True)
    torch.testing.assert_close(dense.mean, sparse.mean)
    torch.testing.assert_close(dense.variance, sparse.variance)


def test_channels_last_weights() -> None:
    def posterior(form: torch.memory_format) -> tradi.Posterior:
        torch.manual_seed(0)
        model = nn.Conv2d(2, 3, 3).to(memory_format=form)  # type: ignore[call-overload]
        optimizer = sgd(model)
        tracker = tradi.TRADI(model, optimizer, kalman=tradi.Kalman.paper())
        for x in torch.randn(4, 2, 2, 5, 5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return tracker.posterior()

    plain, last = posterior(torch.contiguous_format), posterior(torch.channels_last)
    torch.testing.assert_close(plain.variance, last.variance)
    torch.testing.assert_close(plain.sample(1)[0].state_dict(), last.sample(1)[0].state_dict())


def test_full_covariance_with_a_bias_frozen_on_the_way() -> None:
    model = nn.Linear(4, 3)
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer, covariance=tradi.FullCovariance())
    seen: list[Tensor] = []

    def after(done: int) -> None:
        seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
        if done == 3:
            model.bias.requires_grad_(False)

    train(model, optimizer, 6, after)
    mean, variance = trajectory_moments(seen)
    posterior = tracker.posterior()
    torch.testing.assert_close(
        torch.cat([m.flatten() for m in posterior.mean.values()]).double(), mean, rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(
        torch.cat([v.flatten() for v in posterior.variance.values()]).double(), variance, rtol=1e-3, atol=1e-9
    )


def test_a_deep_copied_optimizer_is_noticed() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, copy.deepcopy(optimizer))
    with pytest.raises(RuntimeError, match=r"no optimizer step was seen.*copied"):
        tracker.posterior()
    with pytest.warns(UserWarning, match="no optimizer step was seen"):
        tracker.detach()


def test_detach_and_context_manager_stop_tracking_and_keep_what_was_tracked() -> None:
    model = network()
    optimizer = sgd(model)
    with tradi.TRADI(model, optimizer) as tracker:
        train(model, optimizer, 3)
    before = tracker.posterior()
    train(model, optimizer, 3)
    assert tracker.steps == 3
    kept = [block["mean"] for block in tracker.state_dict()["weights"].values()]
    assert same(before.mean, {name: mean for block in kept for name, mean in block.items()})


def test_an_exception_inside_the_context_is_what_the_user_sees() -> None:
    model = network()
    with pytest.raises(KeyError, match="mine"), tradi.TRADI(model, sgd(model)):
        raise KeyError("mine")


@pytest.mark.parametrize(
    "kalman", [tradi.Kalman(), tradi.Kalman.paper(), tradi.Kalman.released(), tradi.Kalman(every=3)]
)
@pytest.mark.parametrize("covariance", [tradi.FourierFeatures(), tradi.FullCovariance()])
def test_a_restarted_run_gives_the_posterior_of_an_uninterrupted_one_bit_for_bit(
    kalman: tradi.Kalman, covariance: tradi.Covariance
) -> None:
    def start() -> tuple[Any, torch.optim.Optimizer, tradi.TRADI]:
        model = network()
        model[3].p = 0.0  # so that the two runs share no random state
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        return model, optimizer, tradi.TRADI(model, optimizer, kalman=kalman, covariance=covariance)

    model, optimizer, tracker = start()
    file = io.BytesIO()

    def after(done: int) -> None:
        if done == 8:
            parent = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "nested": {"tradi": tracker.state_dict()},
            }
            torch.save(parent, file)

    train(model, optimizer, 20, after)
    again, its_optimizer, its_tracker = start()
    file.seek(0)
    parent = torch.load(file, weights_only=True)
    again.load_state_dict(parent["model"])
    its_optimizer.load_state_dict(parent["optimizer"])
    its_tracker.load_state_dict(parent["nested"]["tradi"])
    train(again, its_optimizer, 12)
    assert same(snapshot(model), snapshot(again))
    for one, other in ((tracker.posterior(), its_tracker.posterior()),):
        assert same(one.mean, other.mean)
        assert same(one.variance, other.variance)
        assert same(one.sample(1)[0].state_dict(), other.sample(1)[0].state_dict())


def test_state_dict_is_a_copy_of_tensors_and_numbers() -> None:
    model = network()
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 3)
    state = tracker.state_dict()
    kept = copy.deepcopy(state)
    train(model, optimizer, 3)

    def leaves(value: Any) -> list[Any]:
        return [leaf for v in value.values() for leaf in leaves(v)] if isinstance(value, dict) else [value]

    assert all(isinstance(leaf, int | float | Tensor) for leaf in leaves(state))
    assert all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(leaves(state), leaves(kept), strict=True)
    )
    # A mean and a variance of every weight, and a squared gradient at the first of its rows.
    held = sum(leaf.nbytes for leaf in leaves(state["weights"]) if isinstance(leaf, Tensor))
    assert held == 8 * sum(w.parameter.numel() for w in tracker.tracked) + 4 * sum(w.rows for w in tracker.tracked)


def test_a_checkpoint_that_does_not_fit_is_an_error_that_lists_both_sides() -> None:
    model, other = network(), nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 2)
    state = tracker.state_dict()
    with pytest.raises(ValueError, match=r"checkpoint is of weights.*4\.weight.*follows.*1\.weight"):
        tradi.TRADI(other, sgd(other)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"0\.weight.*4\.weight.*follows.*4\.weight"):
        tradi.TRADI(model, sgd(model), select="4").load_state_dict(state)
    turned = nn.Sequential(nn.Linear(8, 4), *list(model)[1:4], nn.Linear(3, 8))
    with pytest.raises(ValueError, match=r"\(8, 4\).*follows.*\(4, 8\)"):
        tradi.TRADI(turned, sgd(turned)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"'joint': False.*has.*'joint': True"):
        tradi.TRADI(model, sgd(model), covariance=tradi.FullCovariance()).load_state_dict(state)
    with pytest.raises(ValueError, match=r"written with.*Trajectory.*has.*AlgorithmOne"):
        tradi.TRADI(model, sgd(model), kalman=tradi.Kalman.paper(), select=nn.Linear).load_state_dict(state)
    with pytest.raises(ValueError, match="not the state_dict"):
        tracker.load_state_dict(model.state_dict())


def test_what_cannot_be_tracked_is_an_error_at_construction() -> None:
    model = nn.Linear(4, 3, dtype=torch.complex64)
    with pytest.raises(TypeError, match=r"weight has dtype torch.complex64.*select="):
        tradi.TRADI(model, sgd(model))
    lazy = nn.LazyLinear(3)
    with pytest.raises(TypeError, match="forward pass"):
        tradi.TRADI(lazy, sgd(lazy))
    locked = nn.Linear(4, 3)
    locked.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="cannot be copied"):
        tradi.TRADI(locked, sgd(locked))
    meta = nn.Linear(4, 3, device="meta")
    with pytest.raises(TypeError, match="meta device"):
        tradi.TRADI(meta, sgd(meta))


def test_frozen_weights_of_any_kind_are_no_obstacle() -> None:
    model = network()
    model.register_parameter("codes", nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False))
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 4)))
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    model.nothing.grad = torch.zeros(0, 4)  # empty, and moved
    optimizer.step()
    train(model, optimizer, 2)
    posterior = tracker.posterior()
    assert list(posterior.mean) == ["0.weight", "0.bias", "4.weight", "4.bias"]
    posterior.sample(1)[0]


def test_wrong_arguments_are_errors_that_name_the_remedy() -> None:
    model, other = network(), network()
    with pytest.raises(ValueError, match="none of this model's parameters"):
        tradi.TRADI(model, sgd(other))
    with pytest.raises(ValueError, match=r"select= leaves nothing.*4\.weight"):
        tradi.TRADI(model, sgd(model), select="no.such.layer")
    with pytest.raises(TypeError, match=r"torch\.optim\.Optimizer"):
        tradi.TRADI(model, ["adam"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="got StepLR"):
        tradi.TRADI(model, torch.optim.lr_scheduler.StepLR(sgd(model), 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module"):
        tradi.TRADI(None, sgd(model))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="kalman must be an instance of Kalman"):
        tradi.TRADI(model, sgd(model), kalman=tradi.Kalman)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="covariance must be an instance of Covariance"):
        tradi.TRADI(model, sgd(model), covariance="full")  # type: ignore[arg-type]
    for select in (lambda name, parameter: True, ["0", lambda name: True]):
        with pytest.raises(
            TypeError, match=r"select= takes functions of \(name, module, parameter\), got one of \(name"
        ):
            tradi.TRADI(model, sgd(model), select=select)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="select must be"):
        tradi.TRADI(model, sgd(model), select=3)  # type: ignore[arg-type]


def test_memory_is_two_floats_a_weight_and_attaching_allocates_nothing() -> None:
    model = nn.Linear(1000, 100, bias=False)
    optimizer = sgd(model)
    tracker = tradi.TRADI(model, optimizer)
    assert tracker._blocks == {}
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    (saved,) = tracker.state_dict()["weights"].values()
    assert saved["mean"]["weight"].nbytes + saved["second"].nbytes == 8 * model.weight.numel()


def test_what_a_tracker_must_implement_is_abstract() -> None:
    assert Tracker.__abstractmethods__ == {"options", "observe", "snapshot", "tracked_state", "load_tracked_state"}


def test_selected_weights_are_those_of_the_model_as_it_is_now() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    tracker = tradi.TRADI(model, torch.optim.SGD(model.parameters(), 0.1))
    first = tracker.selected["0.weight"]
    model[0].bias.requires_grad_(False)
    model.append(nn.Linear(2, 2))
    assert list(tracker.selected) == [name for name, _ in model.named_parameters()]
    assert tracker.selected["0.weight"] is first, "a weight that stays keeps what was tracked of it"
    assert "0.bias" not in [weight.name for weight in tracker.tracked]


def test_a_tracker_says_what_it_follows_and_how_far_it_has_seen() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    assert repr(tracker) == "TRADI(Sequential: 23 weights in 2 layers, 0 steps seen)"
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    tracker.detach()
    assert repr(tracker) == "TRADI(Sequential: 23 weights in 2 layers, 1 steps seen, detached)"
