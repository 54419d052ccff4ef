from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import optimize
from torch import Tensor, nn
from torch.nn import functional as F

from tests.training import same
from tradi.likelihoods import Bernoulli, Classification, Likelihood, Tokens
from tradi.posterior import laplace as room
from tradi.posterior.conditioning import Replay
from tradi.posterior.head import find_head
from tradi.posterior.laplace import SPREADS, Full, Kronecker, LaplaceHead, Rows, best_spread, head_rows


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).cumsum(1).tanh())


def case(name: str) -> tuple[nn.Module, Likelihood, list[tuple[Tensor, Tensor]]]:
    """A network, its task, and two batches of training data."""
    torch.manual_seed(0)
    model: nn.Module
    task: Likelihood
    x, pixels = normal(30, 4), normal(6, 2, 3, 4)
    integers = torch.Generator().manual_seed(1)
    if name == "softmax":
        model, task, y = (
            nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
            Classification(),
            x[:, :3].argmax(1),
        )
    elif name == "void":
        model, task, y = nn.Sequential(nn.Tanh(), nn.Linear(4, 3, bias=False)), Classification(), x[:, :3].argmax(1)
        y = torch.where(x[:, 3] > 1, -100, y)
    elif name == "one logit":
        model, task, y = nn.Sequential(nn.Tanh(), nn.Linear(4, 1)), Bernoulli(), (x[:, :1] > 0).double()
    elif name == "labels":
        model, task, y = nn.Sequential(nn.Tanh(), nn.Linear(4, 3)), Bernoulli(), (x[:, :3] > 0).double()
    elif name == "unknown labels":
        y = (x[:, :3] > 0).double()
        y[5:20, 1] = y[7, :] = math.nan
        model, task = nn.Sequential(nn.Tanh(), nn.Linear(4, 3)), Bernoulli()
    elif name in ("mask", "masks"):
        x, width = pixels, 1 if name == "mask" else 2
        model, task = nn.Sequential(nn.Tanh(), nn.Conv2d(2, width, 3, padding=1)), Bernoulli()
        y = (x[:, :width] > 0.3).double()
        y[:, :, 0] = math.nan
    elif name == "labels of tokens":
        x = normal(8, 5, 4)
        model, task, y = nn.Sequential(nn.Tanh(), nn.Linear(4, 2)), Bernoulli(), (x[:, :, :2] > 0).double()
    elif name == "pixels":
        x, y = pixels, torch.randint(-1, 3, (6, 3, 4), generator=integers)
        model, task = nn.Sequential(nn.Tanh(), nn.Conv2d(2, 3, 3, padding=1)), Classification()
    elif name == "decoder":
        x, y = pixels, torch.randint(-1, 3, (6, 6, 8), generator=integers)
        model, task = nn.Sequential(nn.Tanh(), nn.ConvTranspose2d(2, 3, 2, stride=2)), Classification()
    elif name == "tagger":
        x, y = normal(8, 5, 4), torch.randint(-1, 3, (8, 5), generator=integers)
        model, task = nn.Sequential(nn.Tanh(), nn.Linear(4, 3)), Classification(class_axis=-1)
    else:
        x = y = torch.randint(0, 5, (9, 6), generator=integers)
        model, task = Text(), Tokens(padding=0)
    half = len(x) // 2
    return model.double().eval(), task, [(x[:half], y[:half]), (x[half:], y[half:])]


SOFTMAX = ("softmax", "void", "pixels", "decoder", "tagger", "tokens")
CASES = (*SOFTMAX, "one logit", "labels", "unknown labels", "mask", "masks", "labels of tokens")
every_case = pytest.mark.parametrize("name", CASES)


def laplace(
    name: str, total: int | None = None
) -> tuple[LaplaceHead, nn.Module, Likelihood, list[tuple[Tensor, Tensor]]]:
    model, task, data = case(name)
    replay = Replay(copy.deepcopy(model), data, sum(len(x) for x, _ in data) if total is None else total)
    head = find_head(replay.model, (data[0][0],), {}, task, None)
    return LaplaceHead.of(replay, head, task), model, task, data


def log_likelihood(
    model: nn.Module, head: Any, task: Likelihood, data: list[tuple[Tensor, Tensor]], theta: Tensor
) -> Tensor:
    """Of all targets that count, as a function of the head's weights."""
    own = {name: p.detach() for name, p in model.named_parameters()}
    state = own | head.with_theta(theta)
    found = torch.zeros((), dtype=torch.float64)
    for x, y in data:
        values = task.log_prob(torch.func.functional_call(model, state, (x,)), y)
        found = found + values.double().nan_to_num(nan=0.0).sum()  # log_prob is NaN where a target does not count
    return found


class WithTheta:
    """`Head.with_theta` in operations that torch.func can differentiate: by the derivative of its own, linear, form."""

    def __init__(self, head: Any) -> None:
        self._head = head

    def with_theta(self, theta: Tensor) -> dict[str, Tensor]:
        unit = torch.eye(theta.numel(), dtype=torch.float64)
        columns = [self._head.with_theta(one.view_as(theta)) for one in unit]
        return {
            name: torch.einsum("p,p...->...", theta.reshape(-1), torch.stack([column[name] for column in columns]))
            for name in columns[0]
        }


def hessian(way: LaplaceHead, model: nn.Module, task: Likelihood, data: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Second derivatives of the training loss by the head's weights, (outputs * inputs, ...), by brute force."""
    head = WithTheta(way.head)
    found: Any = torch.func.hessian(lambda theta: -log_likelihood(model, head, task, data, theta))(way.theta)
    return found.reshape(way.theta.numel(), -1)


def covariance_of(root: Any, like: Tensor) -> Tensor:
    """Of what a root makes of standard normal numbers."""
    columns = torch.stack([root(one.view_as(like)).reshape(-1) for one in torch.eye(like.numel(), dtype=torch.float64)])
    return columns.T @ columns


@pytest.mark.parametrize("task", [Classification(), Bernoulli()])
def test_a_map_that_is_resized_is_conditioned_at_its_own_positions(task: Likelihood) -> None:
    """With labels that are copied as the logits are, it makes no difference."""
    torch.manual_seed(0)
    head = nn.Conv2d(2, 3, 1)
    x, integers = normal(6, 2, 3, 4), torch.Generator().manual_seed(1)
    if isinstance(task, Classification):
        y = torch.randint(-1, 3, (6, 3, 4), generator=integers)
    else:
        y = torch.randint(0, 2, (6, 3, 3, 4), generator=integers).double()
        y[:, 1, 0] = math.nan
    ways = []
    for model, labels in (
        (nn.Sequential(nn.Tanh(), head), y),
        (
            nn.Sequential(nn.Tanh(), head, nn.Upsample(scale_factor=2)),
            y.repeat_interleave(2, -1).repeat_interleave(2, -2),
        ),
    ):
        replay = Replay(copy.deepcopy(model).double().eval(), [(x[:2], labels[:2]), (x[2:], labels[2:])], 6)
        ways.append(LaplaceHead.of(replay, find_head(replay.model, (x,), {}, task, None), task))
    assert ways[0].precision == pytest.approx(ways[1].precision)
    assert isinstance(ways[0].root, Full)
    assert isinstance(ways[1].root, Full)
    torch.testing.assert_close(ways[0].root.factors, ways[1].root.factors)


@every_case
def test_the_covariance_is_the_inverse_of_the_hessian_of_the_loss_and_the_prior(name: str) -> None:
    way, model, task, data = laplace(name)
    assert isinstance(way.root, Full)
    H = hessian(way, model, task, data)
    expected = torch.linalg.inv(H + way.precision * torch.eye(len(H)))
    # The likelihoods compute in float32.
    torch.testing.assert_close(
        covariance_of(way.root, way.theta), expected, rtol=1e-4, atol=1e-4 * expected.abs().max()
    )


@every_case
def test_samples_that_were_left_out_count_as_if_they_were_like_those_kept(name: str) -> None:
    way, model, task, data = laplace(name)
    thrice, *_ = laplace(name, total=3 * sum(len(x) for x, _ in data))
    H = 3 * hessian(way, model, task, data)
    expected = torch.linalg.inv(H + thrice.precision * torch.eye(len(H)))
    torch.testing.assert_close(
        covariance_of(thrice.root, way.theta), expected, rtol=1e-4, atol=1e-4 * expected.abs().max()
    )


def test_drawn_heads_have_that_covariance_around_the_trained_one() -> None:
    way, model, *_ = laplace("softmax")
    n = 3000
    heads = [way.with_spread(0.5).weights(lambda scale: {}, 1.0, seed=3, member=i) for i in range(n)]
    drawn = torch.stack([torch.cat([one["2.weight"], one["2.bias"][:, None]], 1).reshape(-1) for one in heads])
    trained: Any = model[2]  # type: ignore[index]
    mean = torch.cat([trained.weight, trained.bias[:, None]], 1).reshape(-1).detach()
    covariance = 0.25 * covariance_of(way.root, way.theta)
    deviation = covariance.diagonal().sqrt()
    # Five standard errors, of a mean and of a covariance.
    assert ((drawn.mean(0) - mean).abs() < 5 * deviation / math.sqrt(n)).all()
    error = (deviation[:, None] * deviation).square().add(covariance.square()).div(n).sqrt()
    assert ((drawn.T.cov() - covariance).abs() < 5 * error).all()


def test_members_are_functions_of_seed_and_number_and_a_still_head_is_the_trained_one() -> None:
    way, model, *_ = laplace("softmax")
    drawn = {"0.weight": torch.ones(5, 4)}

    def member(way: LaplaceHead, seed: int, number: int) -> dict[str, Tensor]:
        return way.weights(lambda scale: {name: scale * value for name, value in drawn.items()}, 2.0, seed, number)

    assert same(member(way, 1, 4), member(way, 1, 4))
    assert not same(member(way, 1, 4), member(way, 1, 5))
    assert not same(member(way, 1, 4), member(way, 2, 4))
    still = member(way.with_spread(0.0), 1, 4)
    assert torch.equal(still["0.weight"], 2 * torch.ones(5, 4))  # what is drawn for other layers, at the scale
    trained = dict(model.named_parameters())
    assert torch.equal(still["2.weight"], trained["2.weight"])
    assert torch.equal(still["2.bias"], trained["2.bias"])


def rows_of(name: str, most: int = room.ROWS, total: int | None = None) -> Rows:
    model, task, data = case(name)
    replay = Replay(copy.deepcopy(model), data, sum(len(x) for x, _ in data) if total is None else total)
    return head_rows(replay, find_head(replay.model, (data[0][0],), {}, task, None), task, most)


@pytest.mark.parametrize("name", ["softmax", "labels"])
def test_kronecker_factors_are_exact_for_one_row_and_near_for_many(name: str) -> None:
    whole = rows_of(name)
    one = replace(whole, features=whole.features[:1], logits=whole.logits[:1], labels=whole.labels[:1], weight=7.0)
    like = torch.zeros(3, whole.features.shape[1], dtype=torch.float64)
    for rows, exact in ((one, True), (whole, False)):
        full = Full.of(rows, rows.curvature, 0.3)
        kronecker = replace(Kronecker.of(rows, rows.curvature.mean(0)), precision=0.3)
        ours, theirs = covariance_of(kronecker, like), covariance_of(full, like)
        if exact:
            torch.testing.assert_close(ours, theirs)
        else:
            assert 0.5 < (ours.diagonal() / theirs.diagonal()).min() <= (ours.diagonal() / theirs.diagonal()).max() < 2


def test_wide_heads_get_kronecker_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("softmax", "labels"):
        full, *_ = laplace(name)
        size = 8 * full.theta.numel() ** 2 // (3 if name == "labels" else 1)  # of matrices for each of three labels
        monkeypatch.setattr(room, "MAX_BYTES", size)
        assert isinstance(laplace(name)[0].root, Full)
        monkeypatch.setattr(room, "MAX_BYTES", size - 1)
        wide, *_ = laplace(name)
        assert isinstance(wide.root, Kronecker)
        assert wide.root.precision == wide.precision == full.precision
        monkeypatch.undo()


@every_case
def test_the_prior_precision_has_the_highest_evidence(name: str) -> None:
    way, *_ = laplace(name)
    rows = rows_of(name)
    kronecker = Kronecker.of(rows, rows.curvature.mean(0))
    # The factors as a dense matrix, and its determinant by torch.
    middle = rows.curvature.mean(0)
    A = rows.weight * rows.features.T.double() @ rows.features.double()
    H = torch.kron(middle.diag() if middle.ndim == 1 else middle, A)

    def loss(log_precision: float) -> float:
        k = math.exp(log_precision)
        prior = len(H) * log_precision - k * way.theta.square().sum().item()
        return torch.linalg.slogdet(H + k * torch.eye(len(H)))[1].item() - prior

    best = optimize.minimize_scalar(loss, bounds=(-12, 12), method="bounded", options={"xatol": 1e-8})
    # Golden sections of 40 nats: 0.618^24 of them.
    assert math.log(way.precision) == pytest.approx(best.x, abs=1e-3)
    assert kronecker.most_probable_precision(way.theta) == way.precision


@every_case
def test_rows_are_the_heads_features_logits_and_labels_that_count(name: str) -> None:
    model, task, data = case(name)
    rows = rows_of(name)
    values = torch.cat([task.log_prob(model(x), y) for x, y in data])
    known = ~values.isnan()
    if rows.independent:  # outputs of a position together
        axis = 1 if "mask" in name else -1
        values, known = values.nansum(axis), known.any(axis)
    torch.testing.assert_close(rows.losses(rows.logits[None]).float(), -values[known].float())
    assert len(rows.features) == known.sum()
    assert rows.weight == 1


def test_losses_are_those_of_the_ensembles_average_probability() -> None:
    logits = normal(4, 9, 3)
    labels = torch.randint(0, 3, (9,), generator=torch.Generator().manual_seed(0))
    rows = Rows(torch.zeros(9, 1), logits[0], labels, 1.0)
    expected = F.nll_loss(logits.softmax(2).mean(0).log(), labels, reduction="none")
    torch.testing.assert_close(rows.losses(logits), expected)
    binary = torch.tensor([[1.0, 0.0, -1.0]]).expand(9, 3)  # the third is not known
    probs = logits.sigmoid().mean(0)
    torch.testing.assert_close(
        replace(rows, labels=binary).losses(logits), -(probs[:, 0].log() + (1 - probs[:, 1]).log())
    )


@pytest.mark.parametrize("most", [7, 20, 61])
def test_no_more_rows_are_taken_than_asked_for_spread_over_all_samples(most: int) -> None:
    model, _, _ = case("pixels")
    x = normal(20, 2, 3, 4)
    y = torch.arange(20)[:, None, None].expand(20, 3, 4) // 7  # sorted
    y = torch.where(x[:, 0] > 1.5, -1, y)
    data = [(x[:13], y[:13]), (x[13:], y[13:])]
    replay = Replay(copy.deepcopy(model), data, 60)
    rows = head_rows(replay, find_head(replay.model, (x,), {}, Classification(), None), Classification(), most)
    assert most / 2.5 <= len(rows.labels) <= most
    assert rows.weight * len(rows.labels) == pytest.approx(3 * (y >= 0).sum().item())
    assert rows.labels.bincount(minlength=3).min() > 0
    assert (rows.labels >= 0).all()


@pytest.mark.parametrize("labelled", [1.0, 0.25])
def test_samples_without_a_row_of_their_own_do_not_run(labelled: float) -> None:
    model, x = nn.Sequential(nn.Tanh(), nn.Linear(4, 3)).double(), normal(400, 4)
    y = torch.where(torch.arange(400) < 400 * labelled, x[:, :3].argmax(1), -100)
    ran: list[int] = []
    model[0].register_forward_hook(lambda module, inputs, output: ran.append(len(output)))
    replay = Replay(model, list(zip(x.split(40), y.split(40), strict=True)), 800)
    head = find_head(model, (x[:1],), {}, Classification(), None)
    ran.clear()
    rows = head_rows(replay, head, Classification(), 100)
    step = 4 if labelled == 1 else 1
    assert sum(ran) == 400 // step
    expected = model[0](x[: int(400 * labelled)])[::step]
    assert torch.equal(rows.features[:, :4], expected)
    assert rows.weight * len(rows.features) == pytest.approx(800 * labelled)


def test_labels_that_do_not_fit_are_an_error() -> None:
    model, task, data = case("softmax")
    replay = Replay(copy.deepcopy(model), [(x, torch.full((len(x),), -100)) for x, _ in data], 30)
    head = find_head(replay.model, (data[0][0],), {}, task, None)
    with pytest.raises(ValueError, match="no label of this data counts"):
        head_rows(replay, head, task)
    replay = Replay(copy.deepcopy(model), [(x, torch.zeros(len(x), 2, dtype=torch.int64)) for x, _ in data], 30)
    with pytest.raises(ValueError, match="the head gives 1 positions of a sample, and targets have 2: pass layer="):
        head_rows(replay, head, task)


def sure(rows: int, wrong: float, seed: int = 0) -> tuple[LaplaceHead, Rows]:
    """A head of two classes that is sure by 4 nats, on rows of which a share has the other label."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    theta = torch.zeros(2, 6, dtype=torch.float64)
    theta[0, 0] = 4.0
    logits = features @ theta.T
    labels = (logits[:, 0] < 0).long() ^ (torch.rand(rows, generator=generator) < wrong).long()
    found = Rows(features, logits, labels, 1.0)
    few = replace(found, features=features[:8], logits=logits[:8])
    head: Any = type("Named", (), {"name": "head"})()
    return LaplaceHead(head, theta, Full.of(few, few.curvature, 1.0), 1.0), found


def test_the_spread_has_the_lowest_validation_loss() -> None:
    for wrong in (0.0, 0.1, 0.3):
        way, rows = sure(2000, wrong)
        noise = torch.stack([way.noise(5, i) for i in range(room.JUDGES)])
        moved = torch.einsum("rd,mcd->mrc", rows.features, noise)
        losses = {r: rows.losses(rows.logits + r * moved).mean().item() for r in (0.0, *SPREADS)}
        assert best_spread([way], [rows], 5)[0] == min(losses, key=losses.__getitem__)
    assert best_spread([way], [rows], 5)[0] > 1  # a third of the labels are wrong: less sure by far


@pytest.mark.parametrize("seed", range(5))
def test_few_rows_choose_no_noise_unless_it_helps_a_lot(seed: int) -> None:
    for size in (1, 2, 5):
        way, right = sure(size, wrong=0.0, seed=seed)
        assert best_spread([way], [right], 1)[0] == 0
    way, right = sure(1, wrong=1.0, seed=seed)
    assert best_spread([way], [right], 1)[0] == 0  # of one row nobody knows the spread of losses
    for wrong, helps in ((0.0, False), (0.15, True)):
        way, many = sure(2000, wrong, seed)
        assert (best_spread([way], [many], 1)[0] > min(SPREADS)) == helps


def test_the_fewer_rows_the_more_noise_must_help() -> None:
    chosen = []
    for seed in range(20):
        way, rows = sure(30, wrong=0.3, seed=seed)
        noise = torch.stack([way.noise(5, i) for i in range(room.JUDGES)])
        moved = torch.einsum("rd,mcd->mrc", rows.features, noise)
        excess = {r: (rows.losses(rows.logits + r * moved) - rows.losses(rows.logits[None])).numpy() for r in SPREADS}
        price = {r: d.mean() + (1 + 20 / 30) * 5 * d.std(ddof=1) / 30 for r, d in excess.items()} | {0.0: 0.0}
        chosen.append(best_spread([way], [rows], 5)[0])
        assert chosen[-1] == min(price, key=lambda r: price[r])
    assert 0 < sum(r > 0 for r in chosen) < 20
    way, rows = sure(12, wrong=0.3, seed=9)
    assert best_spread([way], [rows], 5)[0] == 0  # though the mean loss is lower


@pytest.mark.parametrize("name", ["softmax", "labels"])
def test_the_average_curvature_is_that_of_the_rows(name: str) -> None:
    model, task, data = case(name)
    replay = Replay(model, data, 30)
    rows = head_rows(replay, find_head(model, (data[0][0],), {}, task, None), task)
    torch.testing.assert_close(rows.mean_curvature, rows.curvature.mean(0))


def test_a_head_that_is_too_wide_says_what_to_do() -> None:
    model = nn.Linear(1, room.WIDEST + 1)
    data = [(torch.ones(2, 1), torch.tensor([0, 1]))]
    head = find_head(model, (data[0][0],), {}, Classification(), None)
    with pytest.raises(ValueError, match=r"'' has 4,097 outputs.*choose_scale\(validation\)"):
        LaplaceHead.of(Replay(model, data, 2), head, Classification())
