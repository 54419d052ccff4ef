from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tradi.ensemble as ensemble_module
from tests.test_ensemble import tracked
from tests.training import problem
from tradi import at_once
from tradi.at_once import FEW, LAYERS, are_few, is_mlp, pays, run, stacked
from tradi.ensemble import Ensemble
from tradi.methods import MCDropout
from tradi.models import enet, mlp

X = torch.randn(FEW, 4, generator=torch.Generator().manual_seed(0))


def one_by_one(ensemble: Ensemble, x: Tensor) -> Tensor:
    return torch.stack([member(x) for member in ensemble])


@pytest.mark.parametrize("samples", [1, 5, FEW, FEW + 1])
def test_members_at_once_give_what_they_give_one_by_one(samples: int) -> None:
    ensemble = tracked().sample(6).refresh(problem())
    x = torch.randn(samples, 4)
    torch.testing.assert_close(ensemble(x), one_by_one(ensemble, x).detach(), rtol=1e-5, atol=1e-5)


def test_every_layer_that_is_batched_gives_what_it_gives_alone() -> None:
    torch.manual_seed(0)
    made: dict[Any, nn.Module] = {
        nn.Linear: nn.Linear(4, 4),
        nn.BatchNorm1d: nn.BatchNorm1d(4),
        nn.LayerNorm: nn.LayerNorm(4),
        nn.Sequential: nn.Sequential(nn.Linear(4, 4)),
    }
    for kind in sorted(LAYERS, key=str):
        models = [nn.Sequential(nn.Linear(4, 4), made.get(kind) or kind(), nn.Linear(4, 2)).eval() for _ in range(3)]
        states = []
        for model in models:
            for value in model.state_dict().values():
                if value.is_floating_point():
                    value.uniform_(0.5, 2)
            states.append({name: value.clone() for name, value in model.state_dict().items()})
        expected = []
        for state in states:
            models[0].load_state_dict(state)
            expected.append(models[0](X).detach())
        assert is_mlp(models[0]), kind
        found = run(models[0], stacked(states), X).detach()
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_a_refresh_after_a_call_counts() -> None:
    ensemble = tracked().sample(3).refresh(problem())
    before = ensemble(X)
    ensemble.refresh([3 * x + 1 for x, _ in problem()])
    torch.testing.assert_close(ensemble(X), one_by_one(ensemble, X).detach(), rtol=1e-5, atol=1e-5)
    assert (ensemble(X) - before).abs().max() > 1e-3


def test_gradients_flow_to_the_inputs_alone() -> None:
    ensemble = tracked().sample(3).refresh(problem())
    x, same = X.clone().requires_grad_(), X.clone().requires_grad_()
    ensemble(x).square().sum().backward()
    one_by_one(ensemble, same).square().sum().backward()
    torch.testing.assert_close(x.grad, same.grad, rtol=1e-4, atol=1e-4)


def test_a_call_in_inference_mode_leaves_what_serves_outside_of_it() -> None:
    ensemble = tracked().sample(3).refresh(problem())
    with torch.inference_mode():
        inside = ensemble(X)
    x = X.clone().requires_grad_()
    outside = ensemble(x)
    outside.sum().backward()
    torch.testing.assert_close(inside, outside.detach(), rtol=1e-5, atol=1e-5)


def test_what_is_more_than_an_mlp_is_run_one_by_one() -> None:
    model = mlp(4, [5], 3, batchnorm=True, dropout=0.1)
    assert not is_mlp(model.train()), "masks and statistics are drawn and kept in training mode"
    assert is_mlp(model.eval())
    hooks = [
        model[0].register_forward_hook(lambda module, args, output: output),
        model[0].register_forward_pre_hook(lambda module, args: args),
        model[0].register_full_backward_hook(lambda module, before, after: None),
        model[0].register_full_backward_pre_hook(lambda module, after: None),
    ]
    for hook in hooks:
        assert not is_mlp(model)
        hook.remove()
    assert is_mlp(model)
    model[0].forward = lambda x: x
    assert not is_mlp(model)
    assert not is_mlp(enet(3).eval())


def test_only_one_tensor_of_few_samples_is_run_at_once() -> None:
    assert are_few((X,), {})
    assert not are_few((torch.zeros(FEW + 1, 4),), {})
    assert not are_few((X, X), {})
    assert not are_few((X,), {"mask": X})
    assert not are_few(([X],), {})
    assert not are_few((torch.tensor(1.0),), {})
    assert not are_few((torch.zeros(2, 1000, 4),), {})
    assert not are_few((X.to_sparse(),), {})


def test_numbers_of_several_types_and_autocast_are_left_to_the_loop() -> None:
    model = mlp(4, [5], 3, batchnorm=True).eval()
    assert pays(model, (X,), {})
    with torch.autocast("cpu", torch.bfloat16):
        assert not pays(model, (X,), {})
    assert not pays(model, (X.double(),), {})
    assert pays(model.double(), (X.double(),), {})
    model[0].float()
    assert not pays(model, (X,), {})
    assert not pays(nn.Sequential(nn.Identity()).eval(), (X,), {})


def test_members_whose_stack_does_not_fit_are_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Tensor:
        raise AssertionError

    monkeypatch.setattr(at_once, "run", refuse)
    posterior = tracked()
    with pytest.raises(AssertionError):
        posterior.sample(4).refresh(problem())(X)
    size = sum(p.nbytes for p in posterior.model.parameters())
    monkeypatch.setattr(ensemble_module, "KEEP_BYTES", 7 * size)
    posterior.sample(4).refresh(problem())(X)
    posterior.sample(1).refresh(problem())(X)


def test_dropout_masks_are_still_each_members_own() -> None:
    outputs = MCDropout(mlp(4, [50], 3, dropout=0.5)).sample(4)(X)
    assert all((outputs[0] - other).abs().max() > 1e-3 for other in outputs[1:])
