"""`fit` and what it promises, end to end, for every task."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tests.training import same, snapshot
from tradi.likelihoods import Bernoulli, Classification, Gaussian, Likelihood, SquaredError, Tokens
from tradi.methods import LastLayerLaplace, SingleNetwork
from tradi.posterior import conditions, laplace
from tradi.posterior.activations import Activations
from tradi.posterior.laplace import LaplaceHead
from tradi.posterior.loudness import Averaged
from tradi.posterior.scale_search import sample_losses

Data = list[tuple[Any, Any]]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class MeanVariance(nn.Module):
    """A mean and a variance, from two layers or from one."""

    def __init__(self, one: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.heads = nn.ModuleList([nn.Linear(8, 2)] if one else [nn.Linear(8, 1), nn.Linear(8, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        mean, raw = self.heads[0](h).split(1, 1) if len(self.heads) == 1 else (head(h) for head in self.heads)
        return mean, F.softplus(raw) + 1e-3


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 8), nn.Linear(8, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def sequence(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


def mlp(outputs: int, *more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, outputs), *more)


def segmentation() -> nn.Module:
    down = nn.Conv2d(2, 6, 3, stride=2, padding=1)
    return nn.Sequential(down, nn.BatchNorm2d(6), nn.ReLU(), nn.ConvTranspose2d(6, 3, 2, stride=2))


def tokens(samples: int, seed: int) -> Data:
    """Every token is the one before plus one, mostly; 0 is padding at the end."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(0, 5, (samples, 1), generator=generator)
    text = (start + torch.arange(7)) % 5 + 1
    text = torch.where(torch.rand(samples, 7, generator=generator) < 0.1, 1, text)
    text[::3, 5:] = 0
    return [(part, part) for part in text.split(32)]


def points(target: Callable[[Tensor, Tensor], Tensor], *shape: int) -> Callable[[int, int], Data]:
    def made(samples: int, seed: int) -> Data:
        x = normal(samples, *(shape or (4,)), seed=seed)
        return list(zip(x.split(32), target(x, normal(samples, 3, seed=seed + 1000)).split(32), strict=True))

    return made


def scenes(x: Tensor, _: Tensor) -> Tensor:
    label = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    label[:, :2] = -100
    return label


class InDict(nn.Module):
    """A network that returns its output, or the parts of a pair, by name."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        output = self.network(x)
        return dict(zip(("mean", "variance"), output, strict=True)) if isinstance(output, tuple) else {"logits": output}


def _gaussian_loss(output: Any, y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(output[0], y, output[1])


# name -> network, data, loss, likelihood if it has to be given, the one that is found
Task = tuple[Callable[[], nn.Module], Callable[[int, int], Data], Any, Likelihood | None, type[Likelihood]]
TASKS: dict[str, Task] = {
    "classes": (
        lambda: mlp(3),
        points(lambda x, e: (x[:, :3] + 0.5 * e).argmax(1)),
        F.cross_entropy,
        None,
        Classification,
    ),
    "pixels": (segmentation, points(scenes, 2, 8, 8), F.cross_entropy, None, Classification),
    "tokens": (
        Language,
        tokens,
        lambda out, y: F.cross_entropy(out[:, :-1].movedim(-1, 1), y[:, 1:]),
        Tokens(padding=0),
        Tokens,
    ),
    "one logit": (
        lambda: mlp(1),
        points(lambda x, e: (x[:, :1] + 0.5 * e[:, :1] > 0).float()),
        F.binary_cross_entropy_with_logits,
        Bernoulli(),
        Bernoulli,
    ),
    "labels": (
        lambda: mlp(3),
        points(lambda x, e: (x[:, :3] + 0.5 * e > 0).float()),
        F.binary_cross_entropy_with_logits,
        Bernoulli(),
        Bernoulli,
    ),
    "mask": (
        lambda: nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 1)),
        points(lambda x, _: (x[:, :1] > 0).float(), 2, 8, 8),
        F.binary_cross_entropy_with_logits,
        Bernoulli(),
        Bernoulli,
    ),
    "numbers": (lambda: mlp(1), points(lambda x, e: x[:, :1] + 0.3 * e[:, :1]), F.mse_loss, None, SquaredError),
    "several numbers": (lambda: mlp(3), points(lambda x, e: x[:, :3] + 0.3 * e), F.mse_loss, None, SquaredError),
    "numbers with noise": (
        MeanVariance,
        points(lambda x, e: x[:, :1] + 0.3 * e[:, :1]),
        _gaussian_loss,
        None,
        Gaussian,
    ),
    "numbers with noise from one layer": (
        lambda: MeanVariance(one=True),
        points(lambda x, e: x[:, :1] + 0.3 * e[:, :1]),
        _gaussian_loss,
        None,
        Gaussian,
    ),
    "numbers in a dict": (
        lambda: InDict(mlp(1)),
        points(lambda x, e: x[:, :1] + 0.3 * e[:, :1]),
        lambda output, y: F.mse_loss(output["logits"], y),
        None,
        SquaredError,
    ),
    "numbers with noise in a dict": (
        lambda: InDict(MeanVariance()),
        points(lambda x, e: x[:, :1] + 0.3 * e[:, :1]),
        lambda output, y: _gaussian_loss((output["mean"], output["variance"]), y),
        Gaussian(),
        Gaussian,
    ),
    "numbers in half precision": (
        lambda: mlp(1).bfloat16(),
        points(lambda x, e: (x[:, :1] + 0.3 * e[:, :1]).bfloat16()),
        F.mse_loss,
        None,
        SquaredError,
    ),
    "classes in half precision": (
        lambda: mlp(3).bfloat16(),
        points(lambda x, e: (x[:, :3] + 0.5 * e).argmax(1)),
        F.cross_entropy,
        None,
        Classification,
    ),
}
every_task = pytest.mark.parametrize("name", TASKS)
NUMBERS = (SquaredError, Gaussian)
WITHOUT_VALIDATION = (
    "^without validation data the noise is chosen on the training data, and error bars are too small where the network "
    "overfits: pass data that was not trained on$"
)
LAST = ("2", "3", "head", "heads")  # names of last layers


def in_type(name: str, data: Data) -> Data:
    """Inputs in the network's own type."""
    return [(x.bfloat16(), y) for x, y in data] if "half" in name else data


def made(name: str, samples: int, seed: int) -> Data:
    return in_type(name, TASKS[name][1](samples, seed))


def tracked(name: str, steps: int = 40) -> tuple[nn.Module, tradi.TRADI, Data]:
    build, make, loss, *_ = TASKS[name]
    torch.manual_seed(0)
    model, data = build(), in_type(name, make(128, 0))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    for i in range(steps):
        x, y = data[i % len(data)]
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model, tracker, data


def fitted(name: str, **options: Any) -> tuple[tradi.Posterior, Data, Data]:
    _, tracker, data = tracked(name)
    validation = made(name, 96, 1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scale 0|no noise up to")
        return tracker.posterior().fit(data, validation, **{"likelihood": TASKS[name][3], **options}), data, validation


def nll(posterior: tradi.Posterior, data: Data) -> float:
    assert posterior.likelihood is not None
    return sample_losses(posterior.sample(10), posterior.likelihood, data).nanmean().item()


@every_task
def test_fit_conditions_chooses_and_predicts(name: str) -> None:
    posterior, *_ = fitted(name)
    task = TASKS[name][4]
    assert isinstance(posterior.likelihood, task)
    assert isinstance(posterior.conditioning, Averaged if task in NUMBERS else LaplaceHead)
    assert posterior.covariance == (tradi.Independent() if task in NUMBERS else Activations())
    assert posterior.scale_search is not None
    assert posterior.scale == posterior.scale_search.scale
    assert "conditioned" in repr(posterior)
    assert posterior.scale_search.samples == 96
    assert "(chosen on 96 validation samples)" in repr(posterior)
    assert posterior.refresh is not None
    fresh = made(name, 200, 2)
    single = SingleNetwork(tracked(name)[0])
    single.likelihood = posterior.likelihood
    assert nll(posterior, fresh) < nll(single, fresh) + 0.02
    ensemble = posterior.sample(4, seed=2)
    x = fresh[0][0]
    assert torch.equal(first(ensemble(x)), first(posterior.sample(4, seed=2)(x)))
    assert torch.equal(first(ensemble(x))[:2], first(posterior.sample(2, seed=2)(x)))


def first(output: Any) -> Tensor:
    parts = tuple(output.values()) if isinstance(output, dict) else output
    return parts[0] if isinstance(parts, tuple) else parts


@every_task
def test_fit_needs_no_validation_data(name: str) -> None:
    _, tracker, data = tracked(name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scale 0|no noise up to")
        with pytest.warns(UserWarning, match=WITHOUT_VALIDATION) as caught:
            posterior = tracker.posterior().fit(data, likelihood=TASKS[name][3])
    assert {one.filename for one in caught} == {__file__}
    assert posterior.conditioning is not None
    assert posterior.scale_search is not None
    assert posterior.scale_search.samples == 0
    assert "(chosen on the training data alone)" in repr(posterior)
    assert math.isfinite(nll(posterior, made(name, 64, 2)))


@every_task
def test_fit_leaves_the_model_and_the_posterior_alone(name: str) -> None:
    model, tracker, data = tracked(name)
    posterior = tracker.posterior()
    before, mean, was = snapshot(model), dict(posterior.mean), repr(posterior)
    training = model.training
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scale 0|no noise up to")
        fitted = posterior.fit(data, made(name, 64, 1), likelihood=TASKS[name][3], passes=12)
        fitted.sample(3).predict(data)
    assert torch.equal(torch.rand(3), expected)  # no global random number is drawn
    assert same(before, snapshot(model))
    assert model.training == training
    assert same(mean, posterior.mean)
    assert repr(posterior) == was


@every_task
@pytest.mark.parametrize("passes", [1, 12])
def test_passes_bound_the_search(name: str, passes: int) -> None:
    posterior, *_ = fitted(name, passes=passes)
    assert posterior.scale_search is not None
    # One scale is looked at in any case, by 5 members; of labels two are, 0 and 1, and two networks without noise.
    assert posterior.scale_search.passes <= max(passes, 5 if isinstance(posterior.likelihood, NUMBERS) else 12)


@pytest.mark.parametrize("name", [name for name in TASKS if "half" not in name])  # of which numpy knows nothing
def test_batches_may_be_arrays(name: str) -> None:
    _, tracker, data = tracked(name)
    validation = made(name, 96, 1)
    arrays, more = ([(x.numpy(), y.numpy()) for x, y in part] for part in (data, validation))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scale 0|no noise up to")
        ours, theirs = (
            tracker.posterior().fit(a, b, likelihood=TASKS[name][3], passes=12)
            for a, b in ((arrays, more), (data, validation))
        )
    x = data[0][0]
    assert torch.equal(first(ours.sample(3)(x)), first(theirs.sample(3)(x)))
    prediction = ours.sample(3).predict(np.asarray(x))
    assert type(prediction) is type(theirs.sample(3).predict(x))


@pytest.mark.parametrize("name", ["classes", "pixels", "tokens", "one logit", "labels"])
def test_a_temperature_is_found_where_it_is_asked_for(name: str) -> None:
    plain, *_ = fitted(name)
    warm, _, validation = fitted(name, temperature=True)
    assert plain.scale_search is not None
    assert warm.scale_search is not None
    assert warm.likelihood is not None
    assert plain.scale_search.temperature is None
    found = warm.scale_search.temperature
    assert found is not None
    assert warm.likelihood.options()["temperature"] == found != 1
    assert warm.scale == plain.scale
    assert nll(warm, validation) < nll(plain, validation) + 0.005


@every_task
def test_last_layer_laplace_fits_every_task(name: str) -> None:
    model, _, data = tracked(name)
    validation = made(name, 96, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = LastLayerLaplace(model).fit(data, validation, likelihood=TASKS[name][3])
    assert posterior.scale_search is not None
    still = posterior.scale_search.head == 0  # of numbers it is None
    assert [str(one.message).partition(":")[0] for one in caught] == ["all members are the trained network"] * still
    assert all(one.filename == __file__ for one in caught)
    ensemble = posterior.sample(5, seed=1)
    x = data[0][0]
    assert first(ensemble(x)).shape[0] == 5
    for member in ensemble:
        moved = {key for key, value in snapshot(member).items() if not torch.equal(value, snapshot(model.eval())[key])}
        assert all(key.removeprefix("network.").partition(".")[0] in LAST for key in moved)
    assert math.isfinite(nll(posterior, validation))


def test_a_network_that_ends_in_log_softmax_names_its_layer() -> None:
    torch.manual_seed(0)
    model, data = mlp(3, nn.LogSoftmax(1)), TASKS["classes"][1](128, 0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer)
    for x, y in data * 10:
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
        optimizer.step()
    with pytest.raises(ValueError, match=r"no linear layer gives.*by layer=.*linear layers are \['0', '2'\]$"):
        tracker.posterior().fit(data)
    with pytest.raises(ValueError, match=r"layer= must be the name of a linear layer, one of \['0', '2'\], got '1'"):
        tracker.posterior().condition(data, layer="1")
    posterior = tracker.posterior().fit(data, TASKS["classes"][1](500, 1), layer="2")
    assert isinstance(posterior.conditioning, LaplaceHead)
    assert posterior.conditioning.head.name == "2"
    torch.testing.assert_close(posterior.sample(3)(data[0][0]).exp().sum(2), torch.ones(3, 32))


def test_a_network_without_any_linear_layer_is_an_error() -> None:
    model = nn.Sequential(nn.PReLU(4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    x = normal(16, 4)
    F.cross_entropy(model(x), x.argmax(1)).backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"no linear layer gives.*linear layers are \[\]$"):
        tracker.posterior().fit([(x, x.argmax(1))])
    chosen = tracker.posterior().rescaled(0.1)  # and whoever wants the noise alone takes it
    assert chosen.sample(2)(x).shape == (2, 16, 4)


def test_bad_input_names_cause_and_remedy() -> None:
    _, tracker, data = tracked("classes")
    posterior = tracker.posterior()
    with pytest.raises(TypeError, match="train must be iterable more than once"):
        posterior.fit(iter(data))
    with pytest.raises(ValueError, match="train gave no batches"):
        posterior.fit([])
    with pytest.raises(ValueError, match="targets are needed"):
        posterior.fit([x for x, _ in data])
    with pytest.raises(TypeError, match=r"likelihood must be one of tradi\.likelihoods"):
        posterior.fit(data, likelihood="classification")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="passes must be at least 1, got 0"):
        posterior.fit(data, data, passes=0)
    with pytest.raises(ValueError, match="class targets must be below 3, got 255; negative ones are ignored"):
        posterior.fit([(x, torch.full_like(y, 255)) for x, y in data])
    with pytest.raises(ValueError, match="class targets must be below 3, got 255; negative ones are ignored"):
        posterior.fit(data, [(x, torch.full_like(y, 255)) for x, y in data])
    _, numbers, rows = tracked("numbers")
    with pytest.raises(ValueError, match="look for NaN in the validation inputs and targets"):
        numbers.posterior().fit(rows, [(x, math.nan * y) for x, y in rows])
    with pytest.raises(ValueError, match="outputs or targets of this data are not finite"):
        numbers.posterior().fit([(x, math.nan * y) for x, y in rows])
    with pytest.raises(ValueError, match="no label of this data counts"):
        posterior.fit([(x, torch.full_like(y, -100)) for x, y in data])


def test_fewer_rows_than_weights_leave_room_for_noise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 1))
    x = normal(220, 4)
    y = x[:, :1].sin() + 0.1 * normal(220, 1, seed=1)
    posterior = LastLayerLaplace(model).fit([(x[:15], y[:15])], [(x[15:20], y[15:20])])
    prediction: tradi.GaussianMixture = posterior.sample(20).predict(x[20:])
    # Among 15 points the answer is hardly known; without room for noise this is some ten thousand nats.
    assert -prediction.log_prob(y[20:]).mean() < 3


def test_the_trained_network_keeps_its_own_noise(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 1))
    x = normal(300, 4)
    train, validation = [(x[:200], x[:200, :1])], [(x[200:], x[200:, :1])]
    posterior = LastLayerLaplace(model).fit(train, validation)  # which mends what was never trained
    left = (model(x[:200]) - x[:200, :1]).square().mean().item()
    for one in (posterior, _through_a_file(posterior, model, tmp_path)):
        assert isinstance(one.likelihood, SquaredError)
        assert one.likelihood.variance is not None
        assert one.likelihood.variance[0] < 0.1 * left
        assert one.final().predict(x).variance[0].item() == pytest.approx(left, rel=1e-3)


def _through_a_file(posterior: tradi.Posterior, model: nn.Module, folder: Path) -> tradi.Posterior:
    posterior.save(folder / "posterior")
    return tradi.load_posterior(folder / "posterior", model)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_network_that_ends_in_a_sigmoid_is_an_error(shape: tuple[int, ...]) -> None:
    x = normal(4, 4)
    end = nn.Flatten(0) if shape == (4,) else nn.Identity()
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Sigmoid(), end)
    tracker = tradi.TRADI(model, optimizer := torch.optim.SGD(model.parameters(), 0.1))
    model(x).sum().backward()
    optimizer.step()
    data = [(x, (x[:, 0] > 0).long().reshape(shape))]
    calls: tuple[Any, ...] = (tracker.posterior().fit, tracker.posterior().choose_scale)
    for call in calls:
        with pytest.raises(ValueError, match="outputs are probabilities, and logits are needed: leave out its sigmoid"):
            call(data)


def test_a_frozen_head_is_conditioned_like_any_other(tmp_path: Path) -> None:
    x = normal(300, 4)
    y = x[:, :3].argmax(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model[2].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    tracker = tradi.TRADI(model, optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x[:200]), y[:200]).backward()
        optimizer.step()
    posterior = tracker.posterior().condition([(x[:200], y[:200])])
    one, other = (posterior.draw(i)["2.weight"] for i in (0, 1))
    assert not torch.equal(one, other)
    assert torch.equal(_through_a_file(posterior, model, tmp_path).draw(1)["2.weight"], other)
    assert torch.equal(posterior.final()(x)[0], model.eval()(x))


def test_conditioning_reads_the_loader_once_and_keeps_no_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tracker, data = tracked("numbers")

    class Loader:
        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            return iter(data)

    loader = Loader()
    posterior = tracker.posterior().condition(loader)
    assert loader.passes == 1
    assert isinstance(posterior.conditioning, Averaged)
    monkeypatch.setattr("tradi.posterior.conditions.KEPT_BYTES", 2 * sum(t.nbytes for t in data[0]))
    part = tracker.posterior().condition(loader).conditioning
    assert isinstance(part, Averaged)
    (way, *_) = (one.conditioning for one in part.components)
    assert [len(x) for x, _ in way.replay.data] == [2 * len(data[0][0])]  # two of the batches, joined
    assert way.rows == 128  # they stand for four


def stepped(model: nn.Module, x: Tensor) -> tradi.Posterior:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tracker = tradi.TRADI(model, optimizer)
    model(x).square().mean().backward()
    optimizer.step()
    return tracker.posterior()


def test_outputs_that_are_probabilities_are_an_error() -> None:
    data = made("classes", 64, 0)
    for options in ({}, {"layer": "2"}, {"likelihood": Classification()}):
        with pytest.raises(ValueError, match=r"^the network's outputs are probabilities, and logits are needed"):
            stepped(mlp(3, nn.Softmax(1)), data[0][0]).fit(data, data, **options)
    pixels = made("pixels", 8, 0)
    with pytest.raises(ValueError, match="the network's outputs are probabilities"):
        stepped(nn.Sequential(nn.Conv2d(2, 3, 1), nn.Softmax(1)), pixels[0][0]).choose_scale(pixels)


def test_the_likelihood_is_inferred_from_the_first_of_ten_batches_that_says_it() -> None:
    x = normal(24, 4)
    numbers, open_ones = (x[:2], x[:2, :1]), (x[:2], torch.tensor([[0.0], [1.0]]))
    posterior = stepped(mlp(1), x)
    for before in (0, 1, 9):
        assert isinstance(posterior.condition([open_ones] * before + [numbers] * 3).likelihood, SquaredError)
    with pytest.raises(TypeError, match=r"pass likelihood=tradi\.likelihoods\.Bernoulli\(\) or"):
        posterior.condition([open_ones] * 10 + [numbers])


@pytest.mark.parametrize("name", ["classes", "tokens"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_may_be_of_any_whole_type(name: str, dtype: torch.dtype) -> None:
    _, tracker, data = tracked(name)
    validation, task = made(name, 96, 1), TASKS[name][3]
    small, more = ([(x, y.to(dtype)) for x, y in part] for part in (data, validation))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "scale 0|no noise up to")
        ours, theirs = (tracker.posterior().fit(*both, likelihood=task) for both in ((small, more), (data, validation)))
    assert ours.scale_search is not None
    assert theirs.scale_search is not None
    assert (ours.scale, ours.scale_search.nll) == (theirs.scale, theirs.scale_search.nll)
    assert torch.equal(ours.sample(2)(data[0][0]), theirs.sample(2)(data[0][0]))


@pytest.mark.parametrize(("name", "task"), [("classes", Classification()), ("tokens", Tokens(0))])
def test_class_labels_that_are_no_whole_numbers_are_an_error(name: str, task: Likelihood) -> None:
    _, tracker, data = tracked(name)
    broken = [(x, y.float()) for x, y in data]
    for train, validation in ((broken, data), (data, broken)):
        with pytest.raises(TypeError, match=r"class targets must be whole numbers, got torch\.float32"):
            tracker.posterior().fit(train, validation, likelihood=task)
    with pytest.raises(TypeError, match=r"whole numbers, got torch\.float32"):
        tracker.posterior().choose_scale(broken, likelihood=task)


def test_whole_numbers_in_validation_beside_others_in_training_are_an_error() -> None:
    _, tracker, data = tracked("numbers")
    classes = [(x, (y > 0).long()) for x, y in data]
    with pytest.raises(
        TypeError, match=r"validation targets are torch\.int64, and training targets are torch\.float32"
    ):
        tracker.posterior().fit(data, classes)


def test_empty_batches_are_left_out() -> None:
    _, tracker, data = tracked("numbers")
    empty = [(x[:0], y[:0]) for x, y in data[:1]]
    ours, theirs = (tracker.posterior().fit(more + data, more + data) for more in (empty, []))
    assert torch.equal(ours.sample(2)(data[0][0]).view(-1), theirs.sample(2)(data[0][0]).view(-1))
    objects = [(x, [torch.zeros(0, 4), torch.ones(1, 4)]) for x, _ in data[:1]]  # the first image has none
    assert len(conditions.kept(objects, "train", torch.zeros(1))[0]) == 1
    with pytest.raises(ValueError, match="all batches of train are empty"):
        tracker.posterior().fit(empty, data)


def test_inputs_of_another_floating_point_type_are_named() -> None:
    _, tracker, data = tracked("numbers")
    double = [(x.double(), y) for x, y in data]
    posterior = tracker.posterior().fit(data, data)
    says = r"inputs are torch\.float64 and the model's weights torch\.float32"
    for call in (lambda: posterior.fit(double, data), lambda: posterior.sample(2).predict(double[0][0])):
        with pytest.raises(TypeError, match=says):
            call()


def test_tokens_that_were_shifted_already_are_an_error() -> None:
    _, tracker, data = tracked("tokens")
    shifted = [(x[:, :-1], x[:, 1:]) for x, _ in data]
    masked = [(x, y.masked_fill(y == 0, -100)) for x, y in shifted]
    named = [({"tokens": x}, y) for x, y in shifted]
    for train, validation in ((shifted, data), (data, shifted), (masked, data), (named, data)):
        with pytest.raises(ValueError, match="pass the inputs themselves as targets; Tokens shifts them"):
            tracker.posterior().fit(train, validation, likelihood=Tokens(padding=0))
    same = torch.full((2, 5), 3)
    for x, y in ((same, same), (data[0][0], data[0][0].fliplr()), (data[0][0], torch.full_like(data[0][0], -100))):
        Tokens().check_not_shifted(x, y)


def test_nan_in_the_inputs_of_a_classifier_is_an_error() -> None:
    _, tracker, data = tracked("classes")
    broken = [(x.clone(), y) for x, y in data]
    broken[1][0][3, 2] = math.nan
    for name, train, validation in (("training", broken, data), ("validation", data, broken)):
        with pytest.raises(ValueError, match=f"features of the {name} data are NaN or infinite: look for NaN in its"):
            tracker.posterior().fit(train, validation)


def test_members_in_half_precision_survive_a_file(tmp_path: Path) -> None:
    posterior, data, validation = fitted("numbers in half precision")
    posterior.save(tmp_path / "p")
    loaded = tradi.load_posterior(tmp_path / "p", TASKS["numbers in half precision"][0]())
    before, after = posterior.sample(4, seed=2), loaded.sample(4, seed=2, refresh=[*data, *validation])
    x = data[0][0]
    assert first(after(x)).dtype == torch.bfloat16
    torch.testing.assert_close(first(after(x)), first(before(x)), rtol=0.05, atol=0.05)
    assert after.predict(x).epistemic.min() > 0


def test_what_is_kept_and_looked_at_is_bounded() -> None:
    assert (laplace.ROWS, conditions.REFRESHED, conditions.LOOKED_AT) == (5000, 512, 10)
