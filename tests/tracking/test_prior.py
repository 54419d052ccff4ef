"""A run that begins with an earlier posterior: what is taken over from it, what starts fresh, and what is refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi
from tests.training import Batches, problem, same, step
from tradi.storage.states import read_state, write_state

STEPS = 12


def network(classes: int = 3, head: str = "head") -> Any:
    torch.manual_seed(classes)
    model = nn.Sequential()
    model.add_module("one", nn.Linear(4, 8))
    model.add_module("relu", nn.ReLU())
    model.add_module("two", nn.Linear(8, 8))
    model.add_module("tanh", nn.Tanh())
    model.add_module(head, nn.Linear(8, classes))
    return model


def trained(model: nn.Module, data: Batches, steps: int = STEPS, **options: Any) -> tradi.TRADI:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    tracker = tradi.TRADI(model, optimizer, **options)
    for i in range(steps):
        step(model, optimizer, *data[i % len(data)])
    return tracker


def two_classes() -> Batches:
    return [(x, y % 2) for x, y in problem(seed=1)]


@pytest.fixture(scope="module")
def earlier() -> tradi.Posterior:
    data = problem()
    return trained(network(), data).posterior().condition(data)


def begun(earlier: tradi.Posterior, head: str = "head") -> Any:
    """A network with the earlier weights and a new head of two classes."""
    model, own = network(2, head), earlier.model.state_dict()
    body = {name: own[name] for name in own if not name.startswith("head")}
    model.load_state_dict(body, strict=False)
    return model


def backbone(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if "head" not in name and "new" not in name}


@pytest.mark.parametrize("joint", [False, True])
def test_variances_of_the_prior_and_of_the_run_add_up(earlier: tradi.Posterior, joint: bool) -> None:
    covariance = tradi.FullCovariance() if joint else None
    model, kept = begun(earlier), earlier.mean
    alone = trained(copy.deepcopy(model), two_classes(), covariance=covariance).posterior()
    ours = trained(model, two_classes(), covariance=covariance, prior=earlier).posterior()
    assert same(earlier.mean, kept)  # nothing is tracked in its place
    assert same(ours.mean, alone.mean)  # the default filter forgets its start at the first step
    for name, variance in ours.variance.items():
        before = earlier.variance[name] if name in backbone(ours.mean) else 0
        torch.testing.assert_close(variance, alone.variance[name] + before)


def test_a_joint_covariance_of_the_prior_is_added_whole() -> None:
    data, covariance = problem(), tradi.FullCovariance()
    earlier = trained(network(), data, covariance=covariance).posterior()
    model = begun(earlier)
    alone = trained(copy.deepcopy(model), two_classes(), covariance=covariance).posterior()
    ours = trained(model, two_classes(), covariance=covariance, prior=earlier).posterior()
    for a, b, c in zip(ours.layers[:2], alone.layers, earlier.layers, strict=False):
        for names, matrix in a.covariance.items():
            torch.testing.assert_close(matrix, b.covariance[names] + c.covariance[names])


def test_the_papers_filter_starts_at_the_priors_mean(earlier: tradi.Posterior) -> None:
    model = begun(earlier)
    tracker = trained(model, two_classes(), steps=1, kalman=tradi.Kalman.released(), prior=earlier)
    mean = tracker.posterior().mean
    near = {name: (mean[name] - earlier.mean[name]).abs().max().item() for name in backbone(mean)}
    assert max(near.values()) < 0.02  # one step of 0.01 away; a start at 0 would be half a weight away
    assert mean["head.weight"].abs().max() < 0.02  # a new head starts where the equations say, at 0


@pytest.mark.parametrize("frozen", [False, True])
def test_what_training_does_not_move_keeps_the_priors_uncertainty(earlier: tradi.Posterior, frozen: bool) -> None:
    model = begun(earlier)
    own = model.one.weight.detach().clone()
    if frozen:
        model.one.requires_grad_(False)
        tracker = trained(model, two_classes(), prior=earlier)
    else:  # trainable, and in no optimizer
        optimizer = torch.optim.Adam([*model.two.parameters(), *model.head.parameters()], 1e-2)
        tracker = tradi.TRADI(model, optimizer, prior=earlier)
        for x, y in two_classes():
            step(model, optimizer, x, y)
    posterior = tracker.posterior()
    assert torch.equal(posterior.variance["one.weight"], earlier.variance["one.weight"])
    assert torch.equal(posterior.mean["one.weight"], own)
    (still,) = (layer for layer in posterior.layers if layer.name == "one")
    (before,) = (layer for layer in earlier.layers if layer.name == "one")
    assert still.reach == before.reach
    fitted = posterior.fit(two_classes(), two_classes())
    assert not torch.equal(fitted.rescaled(1.0).draw(0)["one.weight"], own)
    left_out = tradi.TRADI(model, torch.optim.SGD(model.parameters(), 0.1), select=["two", "head"], prior=earlier)
    assert left_out.prior is not None
    assert {weight.name for weight in left_out.prior.mean} == {"two.weight", "two.bias"}


def test_a_layer_that_a_prior_of_no_reach_knows_moves_by_its_spread() -> None:
    data = problem()
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    swag = tradi.methods.SWAG(model, optimizer, every=1, start=0, rank=2)
    for x, y in data:
        step(model, optimizer, x, y)
    model.one.requires_grad_(False)
    posterior = trained(model, data, prior=swag.posterior()).posterior()
    assert posterior.layers[0].reach == pytest.approx(posterior.layers[0].unit)


def test_second_moments_of_both_trainings_count_as_much(earlier: tradi.Posterior) -> None:
    data, model = two_classes(), begun(earlier)
    alone = trained(copy.deepcopy(model), data).posterior().condition(data)
    tracker = trained(model, data, prior=earlier)
    ours = tracker.posterior().condition(data)
    for a, b, c in zip(ours.layers[:2], alone.layers, earlier.layers, strict=False):
        assert a.moments is not None is not b.moments
        assert c.moments is not None
        torch.testing.assert_close(a.moments.second, (b.moments.second + c.moments.second) / 2)
    head, lone = ours.layers[2].moments, alone.layers[2].moments
    assert head is not None is not lone
    torch.testing.assert_close(head.second, lone.second)
    assert same(ours.condition(data).rescaled(1.0).draw(0), ours.rescaled(1.0).draw(0))  # no third time


def test_a_file_is_a_prior_as_the_posterior_is_and_one_with_a_prior_survives_saving(
    earlier: tradi.Posterior, tmp_path: Path
) -> None:
    data, model, path = two_classes(), begun(earlier), tmp_path / "earlier.safetensors"
    earlier.save(path)
    in_memory = trained(copy.deepcopy(model), data, prior=earlier)
    from_file = trained(model, data, prior=path)
    assert repr(in_memory) == repr(from_file)
    assert in_memory.options == from_file.options
    ours = from_file.posterior()
    assert same(ours.variance, in_memory.posterior().variance)
    again = tmp_path / "later.safetensors"
    ours.save(again)
    loaded = tradi.load_posterior(again, model)
    a, b = (one.condition(data).rescaled(2.0).draw(1) for one in (ours, loaded))  # needs the prior's second moments
    assert same(a, b)
    third = trained(copy.deepcopy(model), data, prior=again)  # and so on
    alone = trained(copy.deepcopy(model), data)
    added = third.posterior().variance["one.weight"] - ours.variance["one.weight"]
    torch.testing.assert_close(added, alone.posterior().variance["one.weight"], rtol=1e-4, atol=1e-8)


def test_frozen_weights_that_a_file_leaves_out_must_be_the_models(tmp_path: Path) -> None:
    base = network()
    base.one.requires_grad_(False)
    path = tmp_path / "adapter.safetensors"
    trained(base, problem()).posterior().save(path)
    model = copy.deepcopy(base)
    tracker = tradi.TRADI(model, torch.optim.SGD(model.two.parameters(), 0.1), prior=str(path))
    assert tracker.prior is not None
    assert {weight.name for weight in tracker.prior.mean} == {
        *("two.weight", "two.bias", "head.weight", "head.bias"),
    }
    with torch.no_grad():
        model.one.weight += 1
    with pytest.raises(ValueError, match=r"adapter\.safetensors cannot be loaded: it leaves out 2 weights"):
        tradi.TRADI(model, torch.optim.SGD(model.two.parameters(), 0.1), prior=path)


def test_what_matched_and_what_did_not_is_said(earlier: tradi.Posterior) -> None:
    model = begun(earlier, "new")
    tracker = trained(model, two_classes(), prior=earlier)
    said = "prior of 4 weight tensors, 2 start fresh (new.weight, new.bias), 2 of the prior are not here (head.bias, "
    assert said in repr(tracker)
    assert said in str(tradi.diagnostics(tracker))
    assert "prior" not in repr(trained(begun(earlier), two_classes()))
    whole = _attach(copy.deepcopy(earlier.model), earlier)
    assert repr(whole).endswith("0 steps seen, prior of 6 weight tensors)")


def test_a_checkpoint_belongs_to_its_prior(earlier: tradi.Posterior) -> None:
    data = two_classes()
    model = begun(earlier)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer, prior=earlier)
    for x, y in data:
        step(model, optimizer, x, y)
    state = copy.deepcopy(tracker.state_dict())
    resumed = tradi.TRADI(model, optimizer, prior=earlier)
    resumed.load_state_dict(state)
    assert same(resumed.posterior().variance, tracker.posterior().variance)
    without = tradi.TRADI(model, optimizer)
    with pytest.raises(ValueError, match="the checkpoint was written with"):
        without.load_state_dict(state)
    other = trained(network(), problem(seed=5)).posterior()
    with pytest.raises(ValueError, match="the checkpoint was written with"):
        tradi.TRADI(model, optimizer, prior=other).load_state_dict(state)


def test_a_prior_that_does_not_fit_is_refused_and_leaves_no_hook(earlier: tradi.Posterior, tmp_path: Path) -> None:
    stranger = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(stranger.parameters(), 0.1)
    with pytest.raises(ValueError, match=r"no weight has a name and a shape of the prior, which knows head\.bias, "):
        tradi.TRADI(stranger, optimizer, prior=earlier)
    stranger(torch.ones(1, 3)).sum().backward()
    optimizer.step()  # no tracker that was refused sees it
    with pytest.raises(TypeError, match=r"prior must be a posterior or the path of one, got dict"):
        tradi.TRADI(stranger, optimizer, prior={})  # type: ignore[arg-type]
    with pytest.raises(OSError, match=re.escape("nowhere")):
        tradi.TRADI(stranger, optimizer, prior=tmp_path / "nowhere")
    path = tmp_path / "two.safetensors"
    tradi.methods.DeepEnsemble([earlier, earlier]).save(path)
    with pytest.raises(ValueError, match="it holds 2 runs, and a prior is of one"):
        _attach(begun(earlier), path)


def _attach(model: nn.Module, prior: Any) -> tradi.TRADI:
    return tradi.TRADI(model, torch.optim.SGD(model.parameters(), 0.1), prior=prior)


def test_a_model_without_the_priors_weights_is_warned_about(earlier: tradi.Posterior) -> None:
    with pytest.warns(UserWarning, match=r"far from the prior's mean, in one, two: load the weights that the prior is"):
        _attach(network(2), earlier)


def test_a_new_head_of_the_old_name_and_shape_is_warned_about(earlier: tradi.Posterior) -> None:
    model = copy.deepcopy(earlier.model)
    torch.nn.init.normal_(model.head.weight)  # type: ignore[union-attr, arg-type]
    with pytest.warns(UserWarning, match=r"far from the prior's mean, in head: .* give a new layer a name of its own"):
        _attach(model, earlier)


@pytest.mark.parametrize("attach", [tradi.TRADI.paper, tradi.TRADI.released])
def test_the_faithful_filters_take_a_prior(earlier: tradi.Posterior, attach: Any) -> None:
    model = begun(earlier)
    tracker = attach(model, torch.optim.SGD(model.parameters(), 0.1), prior=earlier)
    assert "prior of 4 weight tensors" in repr(tracker)


def test_a_prior_of_which_only_biases_match_is_warned_about(earlier: tradi.Posterior) -> None:
    model = nn.Sequential()
    model.add_module("one", nn.Linear(5, 8))
    model.one.bias.data.copy_(earlier.mean["one.bias"])  # type: ignore[operator, union-attr]
    with pytest.warns(UserWarning, match=r"only vectors match the prior, such as biases \(one\.bias\)"):
        _attach(model, earlier)


def test_a_state_with_a_prior_goes_through_the_files_of_the_callbacks(earlier: tradi.Posterior, tmp_path: Path) -> None:
    model = begun(earlier)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer, prior=earlier)
    for x, y in two_classes():
        step(model, optimizer, x, y)
    write_state(tmp_path / "tradi.safetensors", tracker.state_dict())
    resumed = tradi.TRADI(model, optimizer, prior=earlier)
    resumed.load_state_dict(read_state(tmp_path / "tradi.safetensors"))
    assert same(resumed.posterior().variance, tracker.posterior().variance)
