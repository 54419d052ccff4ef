from __future__ import annotations

import copy
import dataclasses
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, TensorDataset

import tradi
from tests.training import network, problem, same, snapshot, train
from tradi.ensemble import ensemble as ensemble_module
from tradi.ensemble.batches import Caller
from tradi.ensemble.batchnorm import refreshed
from tradi.ensemble.parameter_swap import ParameterSwap
from tradi.methods import DeepEnsemble, SingleNetwork


def tracked(model: Any = None, **options: Any) -> tradi.Posterior:
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer, **options)
    train(model, optimizer)
    return tracker.posterior()


X = problem()[0][0]
COVARIANCES = [tradi.FourierFeatures(), tradi.FourierFeatures.released(), tradi.Independent(), tradi.FullCovariance()]


def test_outputs_are_members_by_batch_and_members_differ() -> None:
    outputs = tracked().sample(5)(X)
    assert outputs.shape == (5, 16, 3)
    assert outputs.std(0).min() > 0


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_small_sample_is_a_prefix_of_a_larger_one(covariance: tradi.Covariance) -> None:
    posterior = tracked(covariance=covariance)
    few, many = posterior.sample(5, seed=3)(X), posterior.sample(20, seed=3)(X)
    assert torch.equal(few, many[:5])
    assert not torch.equal(few, posterior.sample(5, seed=4)(X))


def test_members_do_not_depend_on_the_order_of_drawing_or_on_the_global_seed() -> None:
    posterior = tracked()
    torch.manual_seed(0)
    forwards = [m.state_dict() for m in posterior.sample(4)]
    torch.manual_seed(99)
    ensemble = posterior.sample(4)
    for i in (3, 0, 2, 1):
        assert same(ensemble[i].state_dict(), forwards[i])
    assert same(ensemble[-1].state_dict(), forwards[3])


def test_members_that_do_not_fit_in_memory_are_drawn_again_and_are_the_same() -> None:
    posterior = tracked()
    kept, drawn = posterior.sample(4), posterior.sample(4)
    drawn.keep_bytes = 0
    assert torch.equal(*(ensemble.refresh(problem()).outputs([X]) for ensemble in (kept, drawn)))


class Counted:
    """Batches, and how often they were asked for."""

    passes = 0

    def __iter__(self) -> Any:
        self.passes += 1
        return iter(problem())


@pytest.mark.parametrize(("fit", "passes"), [(0, 6), (1, 6), (2, 4), (4, 3), (5, 2)])  # one for the trained network
def test_members_are_drawn_once_a_data_set_and_refreshed_together_as_far_as_they_fit(
    fit: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = tracked()
    expected = posterior.sample(5).refresh(problem()).outputs(problem())
    monkeypatch.setattr(ensemble_module, "PART_BYTES", 0)  # every batch by itself
    drawn: list[int] = []
    draw = posterior.draw
    monkeypatch.setattr(posterior, "draw", lambda i, seed: drawn.append(i) or draw(i, seed))  # type: ignore[func-returns-value]
    data = Counted()
    ensemble = posterior.sample(5)
    ensemble.keep_bytes = fit * sum(mean.nbytes for mean in posterior.mean.values())  # what is drawn, and no more
    ensemble.refresh(data)
    assert data.passes == 1 + passes  # a look at whether the data fits in memory comes first
    assert drawn == list(range(5))
    predicted = ensemble.outputs(data)
    assert drawn == list(range(5)) + list(range(fit, 5)) * len(problem())  # as many as fit are kept
    assert torch.equal(predicted, expected)


@pytest.mark.parametrize("kind", [Counted, problem], ids=["loader", "list"])
def test_members_take_turns_over_as_much_data_as_fits_which_is_read_once(
    kind: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble, data = tracked().sample(2).refresh(problem()), kind()
    expected = ensemble.outputs(problem())
    x, y = problem()[0]
    monkeypatch.setattr(ensemble_module, "PART_BYTES", 2 * (x.nbytes + y.nbytes))
    found = list(ensemble.iterate(data))
    assert [(i, batch) for i, batch, _, _ in found] == [
        *((0, 0), (0, 1), (1, 0), (1, 1)),
        *((0, 2), (0, 3), (1, 2), (1, 3)),
    ]
    for member in range(2):
        outputs = [(output, target) for i, _, output, target in found if i == member]
        assert torch.equal(torch.cat([output for output, _ in outputs]), expected[member])
        assert torch.equal(torch.cat([target for _, target in outputs]), torch.cat([y for _, y in problem()]))
    if isinstance(data, Counted):
        assert data.passes == 1


def test_a_member_is_an_ordinary_module_that_agrees_with_the_ensemble() -> None:
    ensemble = tracked().sample(3).refresh(problem())
    for i, member in enumerate(ensemble):
        torch.testing.assert_close(member(X), ensemble(X)[i])
    member = ensemble[0]
    assert not member.training
    member.train()
    member(X).sum().backward()  # trainable, and nobody else's
    assert all(p.grad is not None for p in member.parameters())
    before = ensemble(X)
    torch.optim.SGD(member.parameters(), 1.0).step()
    assert torch.equal(before, ensemble(X))


def test_a_snapshot_does_not_follow_the_training_that_goes_on() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    train(model, optimizer, 5)
    posterior = tracker.posterior()
    before = posterior.sample(3)(X)
    train(model, optimizer, 5)
    assert torch.equal(before, posterior.sample(3)(X))
    assert not torch.equal(before, tracker.posterior().sample(3)(X))


class Pair(NamedTuple):
    mean: Tensor
    variance: Tensor


class Wrapped(nn.Module):
    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.net(x))


@pytest.mark.parametrize(
    ("wrap", "read"),
    [
        (lambda out: (out, out.exp()), lambda o: o[1]),
        (lambda out: Pair(out, out.exp()), lambda o: o.variance),
        (lambda out: {"logits": out, "more": {"exp": out.exp()}, "loss": None}, lambda o: o["more"]["exp"]),
        (lambda out: [out, out.exp()], lambda o: o[1]),
    ],
)
def test_tuples_and_dicts_keep_their_form(wrap: Any, read: Any) -> None:
    model = Wrapped(lambda out: out)
    posterior = tracked(model)
    posterior.model.wrap = wrap
    ensemble = posterior.sample(2)
    output = ensemble(X)
    assert type(output) is type(wrap(X))
    torch.testing.assert_close(read(output), torch.stack([read(member(X)) for member in ensemble]))
    joined = read(ensemble.outputs([X[:10], X[10:]]))
    torch.testing.assert_close(joined, read(output))


@dataclasses.dataclass
class Named:
    logits: Tensor
    loss: Tensor | None = None
    extra: Tensor | None = dataclasses.field(init=False, default=None)


class Output(OrderedDict[str, Tensor]):
    """A dict of somebody's own."""


@dataclasses.dataclass
class Both(OrderedDict[str, Tensor]):
    """A dataclass that is a dict of its fields too, filled after its creation, as transformers' outputs are."""

    logits: Tensor
    twice: Tensor = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.logits
        self["logits"] = self.logits


@pytest.mark.parametrize(
    ("wrap", "read"),
    [
        (lambda out: Named(out), lambda o: o.logits),
        (lambda out: Output(logits=out), lambda o: o["logits"]),
        (lambda out: Both(out), lambda o: o["logits"]),
        (lambda out: Both(out), lambda o: o.logits),
        (lambda out: Both(out), lambda o: o.twice / 2),
    ],
)
def test_dataclasses_and_dicts_of_ones_own_are_stacked_too(wrap: Any, read: Any) -> None:
    posterior = tracked(Wrapped(lambda out: out))
    posterior.model.wrap = wrap
    ensemble = posterior.sample(3)
    assert type(ensemble(X)) is type(wrap(X))
    expected = torch.stack([member.net(X) for member in ensemble])  # type: ignore[operator]
    torch.testing.assert_close(read(ensemble(X)), expected)
    torch.testing.assert_close(read(ensemble.outputs([X[:10], X[10:]])), expected)


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "half": lambda out: out.half(),
    "bfloat16": lambda out: out.bfloat16(),
    "double": lambda out: out.double(),
    "classes": lambda out: out.argmax(1),
    "flags": lambda out: out > 0,
    "several": lambda out: {"flags": out > 0, "classes": (out.argmax(1), out.half()), "none": None, "one": 1},
}


@pytest.mark.parametrize("form", FORMS)
def test_predict_gives_the_values_and_types_that_calling_gives(form: str) -> None:
    posterior = tracked(Wrapped(lambda out: out))
    posterior.model.wrap = FORMS[form]  # type: ignore[assignment]
    ensemble = posterior.sample(3)
    whole, joined = (tree_flatten(outputs) for outputs in (ensemble(X), ensemble.outputs([X[:10], X[10:]])))
    assert whole[1] == joined[1]
    for ours, theirs in zip(whole[0], joined[0], strict=True):
        assert type(ours) is type(theirs)
        if isinstance(ours, Tensor):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (lambda out: out[:1], r"\(16, 3\), torch.float32 of member 0 and \(1, 3\)"),
        (lambda out: out.double(), r"torch.float32 of member 0 and \(16, 3\), torch.float64 of member 1"),
        (lambda out: None, "NoneType"),
        (lambda out: {"a": out}, "dict"),
    ],
)
def test_predict_refuses_members_whose_outputs_differ_in_form(later: Any, message: str) -> None:
    posterior = tracked(Wrapped(lambda out: out))
    calls = iter(range(9))
    posterior.model.wrap = lambda out: later(out) if next(calls) else out  # type: ignore[assignment]
    with pytest.raises(TypeError, match=rf"outputs differ in form.*{message}"):
        posterior.sample(2).outputs([X])


def test_a_key_that_only_some_members_give_is_an_error() -> None:
    posterior = tracked(Wrapped(lambda out: out))
    calls = iter(range(9))
    posterior.model.wrap = lambda out: {"a": out} | ({"b": out} if next(calls) else {})  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"outputs differ in form: .*dict"):
        posterior.sample(2)(X)


def test_predict_gives_no_graph_even_where_the_model_makes_one() -> None:
    posterior = tracked(Wrapped(lambda out: out))
    posterior.model.wrap = torch.enable_grad()(lambda out: out * torch.ones((), requires_grad=True))  # type: ignore[assignment]
    assert not posterior.sample(2).outputs([X]).requires_grad


def test_predict_holds_the_outputs_of_no_more_than_one_member_besides_its_result() -> None:
    posterior = tracked(Wrapped(lambda out: out))
    outputs: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def wrap(out: Tensor) -> Tensor:
        alive.append(sum(output() is not None for output in outputs))
        outputs.append(weakref.ref(out))
        return out

    posterior.model.wrap = wrap  # type: ignore[assignment]
    posterior.sample(3).outputs([X[:5], X[5:10], X[10:]])
    assert alive == [0, 1, 2] * 3


def test_outputs_that_cannot_be_put_together_are_an_error() -> None:
    posterior = tracked(Wrapped(lambda out: out))
    posterior.model.wrap = lambda out: out.detach().numpy()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="ndarray cannot be joined"):
        posterior.sample(2)(X)
    posterior.model.wrap = lambda out: out.sum().item()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="float cannot be joined"):
        posterior.sample(2)(X)
    posterior.model.wrap = lambda out: list(out)  # type: ignore[assignment]
    with pytest.raises(TypeError, match="outputs differ in form"):
        posterior.sample(2).outputs([X, X[:3]])
    posterior.model.wrap = lambda out: out.sum()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="first axis, and this model returns a single number"):
        posterior.sample(2).outputs([X])


def test_a_loader_that_shuffles_is_read_once_for_all_members() -> None:
    data = TensorDataset(torch.cat([x for x, _ in problem()]), torch.cat([y for _, y in problem()]))
    posterior = tracked(nn.Linear(4, 3))
    torch.manual_seed(0)
    shuffled: Any = DataLoader(data, 16, shuffle=True)
    rows: dict[int, list[Any]] = {0: [], 1: []}
    for i, _, output, target in posterior.sample(2).iterate(shuffled):
        rows[i].append((output, target))
    for (first, labels), (second, same_labels) in zip(rows[0], rows[1], strict=True):
        assert torch.equal(labels, same_labels)
        assert 0 < (first - second).abs().max() < 1  # the same samples
    # Into memory: in whatever order it comes, all scales are judged on the same samples.
    for seed in range(2):
        torch.manual_seed(seed)
        found = posterior.choose_scale(shuffled).scale_search
        expected = posterior.choose_scale(problem()).scale_search
        assert found is not None
        assert expected is not None
        assert found.nll == pytest.approx(expected.nll, rel=1e-5)


def test_threads_share_an_ensemble() -> None:
    ensemble = tracked().sample(4).refresh(problem())
    expected = [ensemble(x) for x, _ in problem()]
    with ThreadPoolExecutor(4) as pool:
        members = [pool.submit(ensemble.__getitem__, i % 4) for i in range(40)]
        outputs = list(pool.map(ensemble, [x for x, _ in problem()] * 20))
    assert all(isinstance(p, nn.Parameter) for m in members for p in m.result().parameters())
    assert all(len(list(m.result().parameters())) == 6 for m in members)
    assert all(torch.equal(output, expected[i % 4]) for i, output in enumerate(outputs))


def test_a_copy_is_an_ensemble_of_its_own() -> None:
    ensemble = tracked().sample(3).refresh(problem())
    again = copy.deepcopy(ensemble)
    expected = ensemble(X)
    with torch.no_grad():
        for parameter in ensemble._model.parameters():
            parameter.zero_()
    assert torch.equal(again(X), expected)


def test_a_forward_that_writes_to_buffers_leaves_nothing_for_the_next_member() -> None:
    class Counting(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return self.net(x) + self.count

    ensemble = tracked(Counting()).sample(3)
    assert torch.equal(ensemble(X), ensemble(X))
    model = Counting()
    several = DeepEnsemble([model, model]).sample()
    assert torch.equal(several(X), several(X))


@pytest.mark.parametrize("refresh", [False, True])
def test_members_drawn_in_inference_mode_serve_outside_of_it(refresh: bool) -> None:
    ensemble = tracked().sample(2)
    with torch.inference_mode():
        if refresh:
            ensemble.refresh(problem())
        ensemble(X)
        member = ensemble[0]
    x = X.clone().requires_grad_()
    ensemble(x).sum().backward()
    member(x).sum().backward()
    assert x.grad is not None


def test_forgetting_to_refresh_is_a_warning_where_it_matters() -> None:
    with pytest.warns(UserWarning, match="pass refresh=training_batches"):
        tracked().sample(2)(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracked().sample(2).refresh(problem())(X)
        tracked(nn.Linear(4, 3)).sample(2)(X)
        tracked().final()(X)


def test_a_tuple_of_inputs_is_passed_by_position() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
            return self.net(a if b is None else a + b)

    ensemble = tracked(Sum()).sample(2)
    assert torch.equal(ensemble.outputs([((X, X), None)]), ensemble(X, X))
    collated: Any = DataLoader([((x, x), 0) for x in X], 16)  # type: ignore[arg-type]  # the usual collate makes lists of tuples
    assert torch.equal(ensemble.outputs(collated), ensemble(X, X))


def test_prediction_of_a_data_set_equals_prediction_of_its_batches() -> None:
    ensemble = tracked().sample(3).refresh(problem())
    whole = ensemble.outputs(problem())
    torch.testing.assert_close(whole, torch.cat([ensemble(x) for x, _ in problem()], 1))
    assert not whole.requires_grad


def test_dict_batches_become_keyword_arguments() -> None:
    ensemble = tracked(Wrapped(lambda out: out)).sample(2)
    assert torch.equal(ensemble.outputs([{"x": X}]), ensemble(x=X))


def test_gradients_flow_to_inputs_and_nowhere_else() -> None:
    ensemble = tracked().sample(3)
    assert not ensemble(X).requires_grad
    x = X.clone().requires_grad_()
    ensemble(x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


def averaged(model: Any, data: list[Any]) -> Any:
    """What torch itself recomputes, in a copy of the model, without dropout."""
    oracle = copy.deepcopy(model)
    for module in oracle.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch.optim.swa_utils.update_bn(data, oracle)
    return oracle.eval()


def collected(model: nn.Module, data: list[Any]) -> dict[str, Tensor]:
    """What `refreshed` finds for the model itself."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    (found,) = refreshed(model, ParameterSwap(model), Caller(model), [own], [(x, None) for x in data])
    return found


def test_refresh_moves_statistics_by_what_the_weights_changed_as_swa_utils_averages_them() -> None:
    posterior = tracked()
    trained: Any = posterior.model
    before = averaged(trained, problem())[1]
    for member in posterior.sample(3).refresh(problem()):
        norm, after = member[1], averaged(member, problem())[1]  # type: ignore[index]
        ratio = (trained[1].running_var + 1e-5) / (before.running_var + 1e-5)
        mean = trained[1].running_mean + (after.running_mean - before.running_mean) * ratio.sqrt()
        var = trained[1].running_var + (after.running_var - before.running_var) * ratio
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, var)
        assert norm.num_batches_tracked == trained[1].num_batches_tracked
        assert (norm.running_mean - trained[1].running_mean).abs().max() > 1e-3


def test_a_variance_that_would_fall_below_0_is_0() -> None:
    posterior = tracked()
    still: Any = posterior.model
    still[1].running_var.fill_(1e-8)
    still[0].weight.data.mul_(30)  # refreshed, the trained network has far more variance than a member
    member: Any = posterior.sample(1).refresh(problem())[0]
    assert (member[1].running_var == 0).any()
    assert (member[1].running_var >= 0).all()


def test_a_member_without_noise_is_the_trained_network_bit_for_bit() -> None:
    model = network()
    train(model, torch.optim.SGD(model.parameters(), 0.1))
    (member,) = SingleNetwork(model).sample(1).refresh(problem(seed=5))  # on whatever data
    assert same(snapshot(member), snapshot(model))


def test_members_of_several_runs_are_refreshed_beside_their_own_run() -> None:
    runs = [tracked(network(seed)) for seed in range(2)]
    several = DeepEnsemble(runs).sample(4, seed=3).refresh(problem())
    for i, member in enumerate(several):
        trained: Any = runs[i % 2].model
        before, after = averaged(trained, problem())[1], averaged(member, problem())[1]
        ratio = (trained[1].running_var + 1e-5) / (before.running_var + 1e-5)
        mean = trained[1].running_mean + (after.running_mean - before.running_mean) * ratio.sqrt()
        torch.testing.assert_close(member[1].running_mean, mean)  # type: ignore[index]


def test_refresh_collects_the_cumulative_average_of_swa_utils() -> None:
    model = tracked().model
    expected = averaged(model, problem())[1]
    found = collected(model, [x for x, _ in problem()])
    torch.testing.assert_close(found["1.running_mean"], expected.running_mean)
    torch.testing.assert_close(found["1.running_var"], expected.running_var)


def test_refresh_weighs_a_short_last_batch_by_its_length() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    x = torch.cat([x for x, _ in problem()])
    found = collected(model, [x[:50], x[50:]])
    torch.testing.assert_close(found["0.running_mean"], x.mean(0))
    variance = (50 * x[:50].var(0) + 14 * x[50:].var(0)) / 64
    torch.testing.assert_close(found["0.running_var"], variance)


def test_refresh_averages_over_all_uses_of_a_layer_and_leaves_its_other_buffers_alone() -> None:
    class Gated(nn.BatchNorm1d):
        def __init__(self) -> None:
            super().__init__(4)
            self.register_buffer("gate", torch.ones(4))

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = Gated(), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x) + self.norm(3 + 2 * x))

    model: Any = tracked(Siamese()).model
    found, expected = collected(model, [x for x, _ in problem()]), averaged(model, problem()).norm
    torch.testing.assert_close(found["norm.running_mean"], expected.running_mean)
    torch.testing.assert_close(found["norm.running_var"], expected.running_var)
    member: Any = tracked(Siamese()).sample(1).refresh(problem())[0]
    assert torch.equal(member.norm.gate, torch.ones(4))


def test_refresh_leaves_dropout_off_and_modes_and_momentum_as_they_were() -> None:
    ensemble = tracked().sample(2)
    again = ensemble.refresh(problem())[0].state_dict()
    assert same(again, ensemble.refresh(problem())[0].state_dict())  # dropout would make it random
    with ensemble._stages.one() as stage:
        inner: Any = stage.module
    assert inner[1].momentum == 0.1
    assert not any(module.training for module in inner.modules())


def test_refresh_that_fails_on_the_way_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_module, "PART_BYTES", 0)  # the data is read again

    class Breaking:
        runs = 0

        def __iter__(self) -> Any:
            yield from problem()[:2]
            self.runs += 1
            if self.runs == 2:
                raise OSError("disk")

    ensemble = tracked().sample(3).refresh(problem())
    ensemble.keep_bytes = 0  # a pass for every member
    before = ensemble(X)
    with ensemble._stages.one() as stage:
        inner: Any = stage.module
    with pytest.raises(OSError, match="disk"):
        ensemble.refresh(Breaking())
    assert torch.equal(before, ensemble(X))
    assert inner[1].momentum == 0.1
    assert not inner[1].training


def test_a_loader_that_shuffles_shows_all_members_the_same_samples() -> None:
    class Shuffling:
        def __iter__(self) -> Any:
            return iter([problem()[i] for i in torch.randperm(len(problem()))[:2]])

    ensemble = tracked().rescaled(0).sample(2).refresh(Shuffling())
    first, second = (snapshot(member) for member in ensemble)
    assert same(first, second)


def test_refresh_without_batchnorm_does_not_even_read_the_data() -> None:
    class Untouchable:
        def __iter__(self) -> Any:
            raise AssertionError("read")

    ensemble = tracked(nn.Linear(4, 3)).sample(2)
    assert ensemble.refresh(Untouchable()) is ensemble


def test_live_model_and_posterior_model_are_untouched_by_everything_an_ensemble_does() -> None:
    posterior = tracked()
    before = snapshot(posterior.model)
    ensemble = posterior.sample(3).refresh(problem())
    ensemble(X)
    ensemble.outputs(problem())
    ensemble[1].train()(X)
    assert same(before, snapshot(posterior.model))


def test_bad_input_names_cause_and_remedy() -> None:
    posterior = tracked()
    with pytest.raises(ValueError, match="at least 1 member, got 0"):
        posterior.sample(0)
    ensemble = posterior.sample(2)
    with pytest.raises(ValueError, match="gave no batches"):
        ensemble.refresh([])
    with pytest.raises(TypeError, match=r"more than once.*one-pass iterator"):
        ensemble.refresh(iter(problem()))
    with pytest.raises(ValueError, match="gave no batches"):
        ensemble.outputs([])
    with pytest.raises(ValueError, match="a batch of 0 parts"):
        ensemble.outputs([()])
    with pytest.raises(ValueError, match="a batch of 3 parts"):
        ensemble.outputs([(X, X, X)])
    with pytest.raises(IndexError, match="member 2 of an ensemble of 2"):
        ensemble[2]
    with pytest.raises(TypeError, match=r"pass a DataLoader or a list of batches, such as \[x\], not a tensor"):
        ensemble.refresh(X)
    with pytest.raises(ValueError, match=r"batch of one sample: use drop_last=True"):
        ensemble.refresh([X, X[:1]])
    with pytest.raises(TypeError, match="integer"):
        posterior.sample(2, seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        ensemble(torch.randn(50, 7))
