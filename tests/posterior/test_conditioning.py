from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn

import tradi
from tests.training import Custom, same, snapshot
from tradi.likelihoods import Gaussian, Likelihood, SquaredError
from tradi.posterior.conditioning import HeadRegression, Regression, Replay
from tradi.posterior.conditions import conditioned
from tradi.posterior.head import State, find_head
from tradi.posterior.linear_regression import Sums, most_probable
from tradi.posterior.linearised import NetworkRegression
from tradi.posterior.runner import Runner

Data = list[tuple[Tensor, Tensor]]


def data(outputs: int = 1, samples: int = 40, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0] * (k + 1) + x[:, 1].tanh() for k in range(outputs)], 1)
    y = y + 0.3 * torch.randn(samples, outputs, generator=generator, dtype=torch.float64)
    return [(x[:24], y[:24]), (x[24:], y[24:])]


def joined(rows: Data) -> tuple[Tensor, Tensor]:
    return torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows])


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)


def regression(
    model: nn.Module, rows: Data, likelihood: Likelihood, kind: type[Regression] = HeadRegression, total: int = 0
) -> Regression:
    replay = Replay(copy.deepcopy(model).eval(), rows, total or sum(len(y) for _, y in rows))
    head = find_head(replay.model, (rows[0][0],), {}, likelihood, None)
    centre = {name: p.detach().clone() for name, p in model.named_parameters()}
    return kind(replay, head, likelihood, centre).with_precision_at(centre)


def placed(way: Regression, drawn: State, noise: float = 0.0) -> State:
    """What a member holds, without the noise of the conditioned weights."""
    return way.with_noise(noise).placed(way.fitted(drawn), seed=0, member=0)


def with_state(model: nn.Module, state: State) -> Any:
    member = copy.deepcopy(model).eval()
    tensors = dict(member.named_parameters()) | dict(member.named_buffers())
    with torch.no_grad():
        for name, value in state.items():
            tensors[name].copy_(value)
    return member


def moved(model: nn.Module, by: float = 0.3) -> State:
    generator = torch.Generator().manual_seed(5)
    return {
        name: p.detach() + by * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for name, p in model.named_parameters()
    }


class TwoHeads(nn.Module):
    """A mean and a variance from the same features, in two layers or in one."""

    def __init__(self, one: bool = False, mean_first: bool = True, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body: Any = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Tanh())
        self.head = nn.Linear(6, 2 if one else 1)
        self.variance: nn.Module = nn.Identity() if one else nn.Linear(6, 1)
        self.mean_first = mean_first
        self.double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        if not isinstance(self.variance, nn.Linear):
            parts = self.head(h).split(1, 1)
            mean, variance = parts if self.mean_first else parts[::-1]
            return mean, variance.exp()
        return self.head(h), self.variance(h).exp()


@pytest.mark.parametrize("kind", [HeadRegression, NetworkRegression])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_network_is_exact_bayesian_linear_regression(kind: type[Regression], bias: bool) -> None:
    model, rows = nn.Linear(4, 1, bias=bias).double(), data()
    way = regression(model, rows, SquaredError(variance=(0.09,)), kind)
    x, y = joined(rows)
    phi = with_ones(x) if bias else x
    (kappa,) = way.precisions
    assert kappa == pytest.approx(most_probable(Sums.of(phi, y[:, 0], torch.full((40,), 0.09))), rel=1e-6)
    ridge = Ridge(alpha=kappa * 0.09, fit_intercept=False).fit(phi.numpy(), y[:, 0].numpy())
    fitted = way.fitted(moved(model))  # whatever was drawn: all weights are conditioned
    torch.testing.assert_close(fitted.fits[0].mean, torch.from_numpy(ridge.coef_))
    A = phi.T @ phi / 0.09 + kappa * torch.eye(phi.shape[1])
    torch.testing.assert_close(torch.cholesky_inverse(fitted.fits[0].factor), A.inverse())
    # tau: the regularised sum of squares over the number of rows.
    left = (
        (y[:, 0] - phi @ fitted.fits[0].mean).square().sum() / 0.09 + kappa * fitted.fits[0].mean.square().sum()
    ) / 40
    assert fitted.noise == pytest.approx(left.item())


@pytest.mark.parametrize("kind", [HeadRegression, NetworkRegression])
def test_members_of_a_linear_network_are_draws_from_its_posterior(kind: type[Regression]) -> None:
    model, rows = nn.Linear(4, 1).double(), data()
    way = regression(model, rows, SquaredError(variance=(0.09,)), kind).with_noise(0.7)
    fitted = way.fitted(moved(model))
    n = 4000
    states = [way.placed(fitted, 3, member) for member in range(n)]
    if kind is NetworkRegression:
        states = [{"weight": s["point_0"] + s["step_0"], "bias": s["point_1"] + s["step_1"]} for s in states]
    draws = torch.stack([torch.cat([s["weight"][0], s["bias"]]) for s in states])
    covariance = 0.7 * torch.cholesky_inverse(fitted.fits[0].factor)
    deviation = covariance.diagonal().sqrt()
    # Five standard errors, of a mean and of a covariance.
    assert ((draws.mean(0) - fitted.fits[0].mean).abs() < 5 * deviation / math.sqrt(n)).all()
    error = (deviation[:, None] * deviation).square().add(covariance.square()).div(n).sqrt()
    assert ((draws.T.cov() - covariance).abs() < 5 * error).all()
    assert same(way.placed(fitted, 3, 7), way.placed(fitted, 3, 7))
    assert not same(way.placed(fitted, 3, 7), way.placed(fitted, 4, 7))


def test_every_output_has_a_regression_of_its_own_with_its_own_noise() -> None:
    model, rows = nn.Linear(4, 3).double(), data(outputs=3)
    way = regression(model, rows, SquaredError(variance=(0.09, 0.2, 4.0)))
    x, y = joined(rows)
    for k, (fit, v) in enumerate(zip(way.fitted({}).fits, (0.09, 0.2, 4.0), strict=True)):
        expected = Ridge(alpha=way.precisions[k] * v, fit_intercept=False).fit(with_ones(x).numpy(), y[:, k].numpy())
        torch.testing.assert_close(fit.mean, torch.from_numpy(expected.coef_))
    member = with_state(model, placed(way, {}))
    expected_mean = with_ones(x) @ torch.stack([fit.mean for fit in way.fitted({}).fits]).T
    torch.testing.assert_close(member(x), expected_mean)


def test_all_outputs_of_a_whole_network_share_one_regression() -> None:
    model, rows = nn.Linear(4, 2, bias=False).double(), data(outputs=2)
    way = regression(model, rows, SquaredError(variance=(0.09, 0.5)), NetworkRegression)
    x, y = joined(rows)
    (fit,), (kappa,) = way.fitted(moved(model)).fits, way.precisions
    for k, v in enumerate((0.09, 0.5)):
        expected = Ridge(alpha=kappa * v, fit_intercept=False).fit(x.numpy(), y[:, k].numpy())
        torch.testing.assert_close(fit.mean.view(2, 4)[k], torch.from_numpy(expected.coef_))
    assert fit.rows == 80


def test_the_head_is_regressed_on_the_features_of_every_member() -> None:
    model, rows = TwoHeads(), data()
    way, drawn = regression(model, rows, Gaussian()), moved(TwoHeads())
    x, y = joined(rows)
    v = model(x)[1].detach()[:, 0]  # the noise at the centre, whatever the member makes of it
    phi = with_ones(with_state(model, drawn).body(x).detach())
    ridge = Ridge(alpha=way.precisions[0], fit_intercept=False).fit(
        phi.numpy(), y[:, 0].numpy(), sample_weight=1 / v.numpy()
    )
    member = with_state(model, placed(way, drawn))
    torch.testing.assert_close(member(x)[0][:, 0].detach(), phi @ torch.from_numpy(ridge.coef_))
    for name in ("body.0.weight", "body.0.bias"):
        assert torch.equal(dict(member.named_parameters())[name], drawn[name])


@pytest.mark.parametrize(("one", "mean_first"), [(False, True), (True, True), (True, False)])
def test_other_heads_on_the_same_features_keep_what_they_gave(one: bool, mean_first: bool) -> None:
    model, rows = TwoHeads(one, mean_first), data()
    way = regression(model, rows, Gaussian())
    x, _ = joined(rows)
    still = with_state(model, placed(way, way.centre))
    torch.testing.assert_close(still(x)[1], model(x)[1], rtol=1e-3, atol=1e-5)  # a ridge of a millionth
    far = joined(data(seed=9))[0]
    torch.testing.assert_close(still(far)[1], model(far)[1], rtol=1e-3, atol=1e-5)
    # Elsewhere, as near as the features allow: no weights of the variance come closer on the training rows.
    drawn = moved(model)
    member = with_state(model, placed(way, drawn))
    phi = with_ones(member.body(x)).detach()
    wanted = model(x)[1].log().detach()
    best = torch.linalg.lstsq(phi, wanted).solution
    torch.testing.assert_close(member(x)[1].log().detach(), phi @ best, rtol=1e-3, atol=1e-3)


def test_statistics_of_batchnorm_belong_to_the_member() -> None:
    model, rows = TwoHeads(norm=True), data()
    model.train()
    for x, _ in rows * 5:
        model(x)
    way, drawn = regression(model.eval(), rows, Gaussian()), moved(model)
    state = placed(way, drawn)
    member = with_state(model, state)
    assert (member.body[1].running_mean - model.body[1].running_mean).abs().max() > 1e-3
    x, y = joined(rows)
    phi, v = with_ones(member.body(x)).detach(), model(x)[1].detach()
    A = phi.T @ (phi / v) + way.precisions[0] * torch.eye(7)
    torch.testing.assert_close(member(x)[0].detach(), phi @ torch.linalg.solve(A, phi.T @ (y / v)))
    still = with_state(model, placed(way, {}))
    assert torch.equal(still.body(x), model.body(x))  # nothing was drawn: nothing moves but the head


@pytest.mark.parametrize("kind", [HeadRegression, NetworkRegression])
def test_the_size_of_batches_says_nothing(kind: type[Regression]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    single = [(row[None], value[None]) for row, value in zip(*joined(data()), strict=True)]
    ways = {}
    for name, rows in (("small", single), ("large", data())):
        replay = Replay(copy.deepcopy(model), rows, 40).at_once()
        head = find_head(replay.model, (rows[0][0],), {}, SquaredError((0.1,)), None)
        ways[name] = kind(replay, head, SquaredError((0.1,)), moved(model, 0)).with_precision_at(moved(model, 0))
    assert len(ways["small"].replay.data) == 1
    small, large = (placed(way, moved(model), 1.0) for way in ways.values())
    for key, value in large.items():
        torch.testing.assert_close(small[key], value, rtol=1e-6, atol=1e-8)


def test_batchnorm_keeps_the_batches_that_its_statistics_are_taken_of() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)).double().eval()
    replay = Replay(model, data(), 40)
    assert replay.at_once() is replay


def test_pixels_are_rows() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 1).double()
    x = torch.randn(6, 2, 3, 4, dtype=torch.float64)
    y = torch.cat([x, x[:, :1]], 1) + 0.1 * torch.randn(6, 3, 3, 4, dtype=torch.float64)
    way = regression(model, [(x, y)], SquaredError(variance=(0.1, 0.1, 0.1)))
    phi, targets = with_ones(x.movedim(1, -1).reshape(-1, 2)), y.movedim(1, -1).reshape(-1, 3)
    assert way.rows == 3 * 72
    for k, fit in enumerate(way.fitted({}).fits):
        expected = Ridge(alpha=way.precisions[k] * 0.1, fit_intercept=False).fit(phi.numpy(), targets[:, k].numpy())
        torch.testing.assert_close(fit.mean, torch.from_numpy(expected.coef_))
        assert fit.rows == 72


class Squeezed(nn.Module):
    """A layer without the axis of its single output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out.squeeze(-1 if isinstance(self.layer, nn.Linear) else 1)


@pytest.mark.parametrize("kind", [HeadRegression, NetworkRegression])
@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("name", ["pixels", "signals", "tokens"])
def test_positions_of_several_outputs_are_rows_in_their_own_order(
    name: str, squeezed: bool, kind: type[Regression], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tradi.posterior.linearised.CHUNK", 8 * 100)  # a few samples at a time
    torch.manual_seed(0)
    outputs = 1 if squeezed else 3
    layer: Any = {
        "pixels": nn.Conv2d(2, outputs, 1),
        "signals": nn.Conv1d(2, outputs, 1),
        "tokens": nn.Linear(2, outputs),
    }[name].double()
    x = torch.randn(7, 2, 3, 4, dtype=torch.float64)
    x = x.flatten(2) if name == "signals" else x
    phi = x.movedim(1, -1).reshape(-1, 2)
    if name == "tokens":
        x = x.flatten(2).mT
        phi = x.reshape(-1, 2)
    y = layer(x).detach() + torch.randn(layer(x).shape, dtype=torch.float64) * torch.tensor(0.3)
    targets = y.reshape(-1, outputs) if name == "tokens" else y.movedim(1, -1).reshape(-1, outputs)
    model = Squeezed(layer) if squeezed else layer
    y = y.reshape(model(x).shape)
    way = regression(model, [(x[:4], y[:4]), (x[4:], y[4:])], SquaredError(variance=(0.5,)), kind)
    fits = way.fitted(moved(model)).fits
    found = torch.stack([fit.mean for fit in fits]) if kind is HeadRegression else _as_matrix(fits[0].mean, outputs)
    for k in range(outputs):
        alpha = way.precisions[k if kind is HeadRegression else 0] * 0.5
        expected = Ridge(alpha=alpha, fit_intercept=False).fit(with_ones(phi).numpy(), targets[:, k].numpy())
        torch.testing.assert_close(found[k], torch.from_numpy(expected.coef_))


def _as_matrix(theta: Tensor, outputs: int) -> Tensor:
    """Weights of all parameters in a row, weight before bias, as (outputs, inputs and 1)."""
    return torch.cat([theta[:-outputs].view(outputs, 2), theta[-outputs:, None]], 1)


@pytest.mark.parametrize("kind", [HeadRegression, NetworkRegression])
def test_rows_that_were_left_out_count_as_if_they_were_like_those_kept(kind: type[Regression]) -> None:
    model, rows, task = nn.Linear(4, 1).double(), data(), SquaredError(variance=(0.09,))
    thrice = regression(model, rows, task, kind, total=120)
    repeated = regression(model, rows * 3, task, kind)
    (ours,), (theirs,) = thrice.fitted({**thrice.centre}).fits, repeated.fitted({**repeated.centre}).fits
    torch.testing.assert_close(ours.factor, theirs.factor)
    torch.testing.assert_close(ours.mean, theirs.mean)
    assert ours.log_evidence == pytest.approx(theirs.log_evidence)
    assert thrice.rows == repeated.rows == 120
    few = thrice.thinned(13)  # every fourth of 40
    assert sum(len(y) for _, y in few.replay.data) == 10
    assert few.rows == 120
    assert few.precisions == thrice.precisions
    assert thrice.thinned(40) is thrice
    more = thrice.joined_by(data(seed=1))
    assert more.rows == 160
    assert sum(len(y) for _, y in more.replay.data) == 80


@pytest.mark.parametrize("outputs", [1, 2])
def test_jacobians_are_those_of_autograd(outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    rows, task = data(outputs), SquaredError(variance=(0.09,) * outputs)
    monkeypatch.setattr("tradi.posterior.linearised.CHUNK", 2000)  # a few rows at a time
    way: Any = regression(model, rows, task, NetworkRegression)
    point = moved(model)
    member = with_state(model, point)
    x, y = joined(rows)
    outputs_there = member(x).reshape(-1)
    J = torch.stack(
        [
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(out, list(member.parameters()), retain_graph=True)])
            for out in outputs_there
        ]
    )
    torch.testing.assert_close(way._derivatives(point, x, y), J)
    theta = torch.cat([value.reshape(-1) for value in point.values()])
    (found,) = way.sums(point)
    expected = Sums.of(J, y.reshape(-1) - outputs_there.detach() + J @ theta, torch.full((40 * outputs,), 0.09))
    torch.testing.assert_close(found.precision, expected.precision)
    torch.testing.assert_close(found.target, expected.target)
    assert found.square == pytest.approx(expected.square)
    # A member's mean is f + J (theta - point), at the most probable theta the regularised least squares.
    (kappa,) = way.precisions
    A = J.T @ J / 0.09 + kappa * torch.eye(len(theta))
    best = torch.linalg.solve(A, J.T @ (y.reshape(-1) - outputs_there.detach() + J @ theta) / 0.09)
    linear = with_state(way.module(copy.deepcopy(model)), placed(way, point))
    torch.testing.assert_close(linear(x).reshape(-1), outputs_there + J @ (best - theta))


def test_how_a_network_is_conditioned_depends_on_its_task_its_size_and_its_layers() -> None:
    def kinds(model: nn.Module, task: Likelihood, rows: Data) -> list[str]:
        centre = {name: p.detach() for name, p in model.double().named_parameters()}
        found: Any = conditioned(Runner(model).replay(rows, 40), task, centre, None)
        return [type(one).__name__ for one in (found if isinstance(found, list) else [found])]

    task, rows = SquaredError(variance=(1.0,)), data()
    small, large = (
        nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(4, 300), nn.Linear(300, 1)),
    )
    assert kinds(small, task, rows) == ["NetworkRegression", "HeadRegression"]
    assert kinds(large, task, rows) == ["HeadRegression"]
    assert kinds(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1)), task, rows) == ["HeadRegression"]
    assert kinds(TwoHeads(), Gaussian(), rows) == ["NetworkRegression", "HeadRegression"]
    labels = [(x, (y[:, 0] > 0).long()) for x, y in rows]
    assert kinds(nn.Linear(4, 2), tradi.likelihoods.Classification(), labels) == ["LaplaceHead"]

    with pytest.raises(TypeError, match=r"cannot be conditioned: choose the scale alone, with choose_scale"):
        kinds(small, Custom(lambda output, y: output * y), rows)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(1, 5, batch_first=True), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x[..., None])[0][:, -1])


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh() * (2.0 if x.sum().item() > 0 else 1.0))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", [Recurrent, Branching])
def test_a_network_that_torch_cannot_linearise_is_conditioned_by_its_last_layer_and_says_so(
    kind: type[nn.Module],
) -> None:
    model, rows = kind(), [(x.float(), y.float()) for x, y in data()]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    for x, y in rows * 5:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    before = snapshot(model)
    with pytest.warns(UserWarning, match="only the last layer is conditioned, as all weights cannot be"):
        posterior = tracker.posterior().fit(rows, [(x.float(), y.float()) for x, y in data(seed=1)], passes=10)
    assert "last layer conditioned" in repr(posterior)
    assert posterior.sample(3).predict(rows[0][0]).mean.isfinite().all()
    assert same(before, snapshot(model))
