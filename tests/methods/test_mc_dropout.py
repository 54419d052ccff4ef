from __future__ import annotations

import copy
import itertools
import threading
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import dropout

from tests.training import network
from tradi.methods import MCDropout, mc_dropout


def test_masks_drop_the_right_share_and_rescale_the_rest() -> None:
    outputs = MCDropout(nn.Sequential(nn.Identity(), nn.Dropout(0.3))).sample(50)(torch.ones(40, 25))
    kept = outputs > 0
    assert torch.allclose(outputs[kept], torch.tensor(1 / 0.7))
    # 50,000 masks: standard error sqrt(0.3 * 0.7 / 50000) = 0.002
    assert abs(kept.float().mean().item() - 0.7) < 0.01
    # members and samples are independent: correlation of masks has a standard error of 1 / sqrt(1000) = 0.03
    assert abs(torch.corrcoef(kept[:2].flatten(1).float())[0, 1].item()) < 0.13


def test_a_layer_used_twice_drops_differently_each_time() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.drop(x), self.drop(x)])

    (first, second), *_ = MCDropout(Twice()).sample(1)(torch.ones(1000))
    assert not torch.equal(first, second)


def test_batchnorm_stays_in_eval_mode() -> None:
    model = network()
    model[1].running_mean.fill_(3.0)
    ensemble = MCDropout(model).sample(2)
    x = torch.randn(16, 4)
    hidden = F.relu(
        F.batch_norm(model[0](x), model[1].running_mean, model[1].running_var, model[1].weight, model[1].bias)
    )
    expected = model[4](hidden)  # without dropout; the mean over many masks must agree
    many = MCDropout(model).sample(3000)(x)
    error = many.std(0) / 3000**0.5
    assert ((many.mean(0) - expected).abs() < 5 * error + 1e-6).all()
    before = ensemble[0].state_dict()["1.running_mean"]
    ensemble[0](x)
    assert torch.equal(before, model[1].running_mean)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, x)[0]


every_kind = pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Conv1d(1, 2, 1), nn.Dropout1d(0.5)), torch.ones(9, 1, 3)),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.Dropout2d(0.5)), torch.ones(9, 1, 3, 3)),
        (nn.Sequential(nn.Conv3d(1, 2, 1), nn.Dropout3d(0.5)), torch.ones(9, 1, 3, 3, 3)),
        (nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.5)), torch.ones(9, 4)),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.FeatureAlphaDropout(0.5)), torch.ones(9, 1, 3, 3)),
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5, inplace=True)), torch.ones(9, 4)),
        (nn.LSTM(4, 5, num_layers=2, dropout=0.5, batch_first=True), torch.ones(9, 3, 4)),
        (nn.GRU(4, 5, num_layers=2, dropout=0.5, batch_first=True), torch.ones(9, 3, 4)),
        (nn.RNN(4, 5, num_layers=2, dropout=0.5, batch_first=True), torch.ones(9, 3, 4)),
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True), torch.ones(9, 3, 4)),
        (Attention(), torch.ones(9, 3, 4)),
    ],
)


def outputs_of(model: nn.Module, x: Tensor) -> Tensor:
    outputs = MCDropout(model).sample(3)(x)
    first: Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return first


@every_kind
def test_every_kind_of_dropout_module_is_switched_on(model: nn.Module, x: Tensor) -> None:
    outputs = outputs_of(model, x)
    assert not torch.equal(outputs[0], outputs[1])


@every_kind
def test_masks_neither_use_nor_touch_the_random_numbers_of_the_process(
    model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("another thread would see this")

    expected = outputs_of(model, x)
    torch.manual_seed(7)
    before = torch.get_rng_state()
    method = copy.deepcopy(model)
    for name in ("manual_seed", "seed", "set_rng_state"):
        monkeypatch.setattr(torch.random, name, forbidden)
        monkeypatch.setattr(torch, name, forbidden)
    assert torch.equal(outputs_of(method, x), expected)
    assert torch.equal(torch.get_rng_state(), before)


class Waits(nn.Module):
    """Lets another thread draw random numbers while this one predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.within: Any = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        self.within()
        return x


def test_a_training_in_another_thread_and_a_prediction_leave_each_other_alone() -> None:
    model = nn.Sequential(nn.Dropout(0.5), Waits(), nn.Dropout(0.5))
    x = torch.ones(50)
    member = MCDropout(model).sample(1)[0]
    expected = member(x)
    torch.manual_seed(3)
    drawn = torch.rand(10)
    found: list[Tensor] = []

    def draw() -> None:
        other = threading.Thread(target=lambda: found.append(torch.rand(10)))
        other.start()
        other.join(60)

    next(m for m in member.modules() if isinstance(m, Waits)).within = draw
    torch.manual_seed(3)
    assert torch.equal(member(x), expected)
    assert torch.equal(found[0], drawn)


def test_dropout_in_one_kernel_draws_the_same_share() -> None:
    x = torch.ones(40, 50)
    with mc_dropout._Masks(5):
        dropped, mask = torch.native_dropout(x, 0.3, True)
        again, _ = torch.native_dropout(x, 1.0, True)
    assert torch.equal(dropped, mask / 0.7)
    assert abs(mask.float().mean().item() - 0.7) < 0.05  # standard error 0.01
    assert not again.any()


def test_a_kernel_that_draws_masks_by_itself_is_refused_with_the_remedies() -> None:
    """Those of graphics processors, of which there may be none here."""
    kernel = SimpleNamespace(overloadpacket=SimpleNamespace(__name__="_cudnn_rnn"))
    with pytest.raises(RuntimeError, match=r"_cudnn_rnn draws dropout masks by itself.*use nn.Dropout.*on the CPU"):
        mc_dropout._Masks(5).__torch_dispatch__(kernel, ())


class Functional(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layer(x), 0.5, self.training)


class Imported(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return dropout(self.layer(x), 0.5, self.training)


class Helped(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return self.helped(self.layer(x))

    def helped(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


class Scaled(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, self.layer(x), dropout_p=0.5 * self.training)


class Quiet(nn.Module):
    """Mentions F.dropout(x) and has a module called dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = Own(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x)  # not F.dropout(x)


class Own(nn.Dropout):
    pass


def one_layer() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns too that this dropout does nothing
        return nn.LSTM(4, 5, num_layers=1, dropout=0.5)


def test_a_model_without_active_dropout_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="no dropout layer with p > 0"):
        MCDropout(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)))
    with pytest.raises(ValueError, match="no dropout layer"):
        MCDropout(nn.Sequential(nn.Linear(4, 4), one_layer()))
    for functional in (Functional, Imported, Helped, Scaled):
        with pytest.raises(ValueError, match=rf"no dropout layer.*'{functional.__name__}'.*use nn\.Dropout"):
            MCDropout(functional(nn.Linear(4, 4)))


def test_functional_dropout_beside_layers_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="'Functional'.*not switched on"):
        MCDropout(Functional(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MCDropout(network())
        MCDropout(Quiet())


def test_a_model_may_call_itself_and_members_are_models() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Tensor, again: bool = True) -> Tensor:
            return self(self.drop(x), again=False) if again else self.drop(x)

    torch.manual_seed(0)
    state = torch.get_rng_state()
    outputs = MCDropout(MCDropout(Twice()).sample(1)[0]).sample(2)(torch.ones(100))
    assert not torch.equal(outputs[0], outputs[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_layers_are_off_again_after_the_forward() -> None:
    member = MCDropout(network()).sample(1)[0]
    member(torch.ones(2, 4))
    assert not any(module.training for module in member.modules())
    with pytest.raises(RuntimeError, match="shapes"):
        member(torch.ones(2, 9))
    assert not any(module.training for module in member.modules())


def test_a_forward_that_fails_leaves_the_random_state_alone() -> None:
    ensemble = MCDropout(network()).sample(1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shapes"):
        ensemble(torch.randn(2, 9, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.get_rng_state(), before)
    assert ensemble(torch.ones(2, 4)).shape == (1, 2, 3)


def test_every_member_of_every_seed_has_masks_of_its_own_and_the_first_stay_the_same() -> None:
    method, x = MCDropout(nn.Sequential(nn.Dropout(0.5))), torch.ones(4, 64)
    many = [method.sample(5, seed=seed)(x) for seed in (0, 1, 2)]
    assert torch.equal(method.sample(3, seed=1)(x), many[1][:3])
    masks = [mask for members in many for mask in members]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(masks, 2))
