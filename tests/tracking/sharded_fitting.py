"""Run by test_sharded.py, in every process: a sharded posterior is fitted as one process fits it to the same data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

import tradi
from tests.tracking.sharded_worker import Batch, Net, adam, batches, equal, gathered, inputs, mesh, normed, whole


class Tagger(nn.Module):
    """Tokens, ten of each sample: an embedding, a layer of which the diagonal alone is kept, a normed one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.up = nn.Embedding(7, 4), nn.Linear(4, 600)
        self.down, self.last = nn.Linear(600, 5), nn.Linear(5, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.down(torch.tanh(self.up(self.words(x))))))


class Pixels(nn.Module):
    """Maps of sixteen places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(2, 6, 3, padding=1, groups=2)
        self.back, self.last = nn.ConvTranspose2d(6, 5, 3, padding=1), nn.Conv2d(5, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.back(F.gelu(self.first(x)))))


class Heads(nn.Module):
    """Mean and variance by layers of their own, and more weights than are conditioned together."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 30), nn.Tanh())
        self.mean, self.variance = nn.Linear(30, 1), nn.Linear(30, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.mean(h), F.softplus(self.variance(h)) + 0.05


def normed_numbers() -> nn.Module:
    """A network with BatchNorm that predicts two numbers."""
    return nn.Sequential(*normed().children(), nn.GELU(), nn.Linear(3, 2))


@dataclass
class Case:
    """A network, its data made of four random numbers a sample, its loss, and what `fit` is told."""

    network: Callable[[], nn.Module]
    batch: Callable[[Tensor], tuple[Tensor, Tensor]]
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy
    options: dict[str, Any] = field(default_factory=dict)


def _labels(x: Tensor) -> Batch:
    return x, x[:, :3].argmax(1)


def _tokens(x: Tensor) -> Batch:
    words = (x.repeat(1, 3)[:, :10] * 3).long().abs() % 7
    return words, (words + words.roll(1, 1)) % 3


def _pixels(x: Tensor) -> Batch:
    maps = torch.einsum("ni,nj->nij", x, x)[:, None]
    return torch.cat([maps, maps.roll(1, 3)], 1), (maps[:, 0] > 0).long() + (maps[:, 0] > 1)


def _numbers(x: Tensor) -> Batch:
    return x, x[:, :1].sin() + 0.3 * x[:, 1:2] * x[:, 2:3]


def _pairs(x: Tensor) -> Batch:
    return x, torch.cat([x[:, :1].sin(), x[:, 1:2] * x[:, 2:3]], 1)


CASES = {
    "labels": Case(Net, _labels),
    "tokens": Case(
        Tagger,
        _tokens,
        lambda output, y: F.cross_entropy(output.flatten(0, 1), y.flatten()),
        {"likelihood": tradi.likelihoods.Classification(class_axis=-1)},
    ),
    "pixels": Case(Pixels, _pixels),
    "mean and variance": Case(Heads, _numbers, lambda output, y: F.gaussian_nll_loss(output[0], y, output[1])),
    "normed": Case(normed_numbers, _pairs, F.mse_loss),
}

FEW = ("normed",)  # which is enough for four processes, beside the labels of `check_meshes_of_fitting`


def data_of(case: Case, steps: int, shift: float = 0.0) -> list[Batch]:
    return [case.batch(x + shift) for x, _ in batches(steps)]


def trained(case: Case, data: list[Batch], **options: Any) -> tuple[Any, torch.optim.Optimizer, tradi.TRADI]:
    """Trained on the same batches by every process: what counts is what comes afterwards."""
    model: Any = case.network()
    fully_shard(next(model.children()), mesh=mesh(), **options)
    fully_shard(model, mesh=mesh(), **options)
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    train(case, model, optimizer, data)
    return model, optimizer, tracker


def train(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Batch]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        case.loss(model(x), y).backward()
        optimizer.step()


def own_part(data: list[Batch]) -> tradi.gathered:
    """What this process loads of it, in the order in which all batches are then seen."""
    return tradi.gathered(data[distributed.get_rank() :: distributed.get_world_size()])


def saved_in(folder: Path, name: str, posterior: tradi.Posterior, network: Callable[[], nn.Module]) -> tradi.Posterior:
    """What one process loads of the file that all have written."""
    path = folder / f"{name}-of-{distributed.get_world_size()}.safetensors"
    posterior.save(path)
    distributed.barrier()
    return tradi.load_posterior(path, network())


def same(ours: Any, one: Any, x: Tensor) -> None:
    """The same answers, and members."""
    same_answers(ours, one)
    same_members(ours, one, x)


def same_answers(ours: Any, one: Any) -> None:
    """The same scale, likelihood and conditioning."""
    assert ours.scale == one.scale
    assert ours.scale_search.nll.keys() == one.scale_search.nll.keys()
    for scale, nll in one.scale_search.nll.items():
        assert ours.scale_search.nll[scale] == pytest.approx(nll, rel=1e-4, abs=1e-5)
    assert str(ours.conditioning) == str(one.conditioning)
    assert numbers_of(ours.likelihood) == pytest.approx(numbers_of(one.likelihood), rel=1e-4)


def same_members(ours: tradi.Posterior, one: tradi.Posterior, x: Tensor, **sampling: Any) -> None:
    """Members with the same outputs, to rounding."""
    for found, expected in zip(outputs_of(ours, x, **sampling), outputs_of(one, x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        assert expected.std(0).max() > 1e-4


def numbers_of(likelihood: Any) -> list[float]:
    return torch.tensor([list(likelihood.options().values())[-1]]).flatten().tolist()


def outputs_of(posterior: tradi.Posterior, x: Tensor, **sampling: Any) -> list[Tensor]:
    output = posterior.sample(3, seed=1, **sampling)(x)
    return [*map(whole, output)] if isinstance(output, tuple) else [whole(output)]


def check_fitting(folder: Path) -> None:
    """Conditioned and scaled on the parts that all processes load, it is what one process makes of all the data."""
    for name, case in CASES.items():
        if distributed.get_world_size() > 2 and name not in FEW:
            continue
        data, validation = data_of(case, 7), data_of(case, 5, 0.3)  # some processes have more turns than others
        model, optimizer, tracker = trained(case, data)
        posterior = tracker.posterior()
        one = saved_in(folder, name, posterior, case.network).fit(data, validation, **case.options)
        before = gathered(dict(model.named_parameters()))
        ours = posterior.fit(own_part(data), own_part(validation), **case.options)
        assert model.training
        assert equal(gathered(dict(model.named_parameters())), before)
        train(case, model, optimizer, data[:2])  # which changes nothing in what was fitted
        x = case.batch(inputs())[0]
        same(ours, one, x)
        again = saved_in(folder, f"fitted-{name}", ours, case.network)
        same_members(again, one, x, refresh=[*data, *validation])


def check_policies(folder: Path) -> None:
    """Fitted under mixed precision whose outputs are float32, with offloaded weights and whole-model checkpointing."""
    case = CASES["labels"]
    data = data_of(case, 3)
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32)
    ways: list[dict[str, Any]] = [{"mp_policy": policy}, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}]
    for options in ways:
        _, _, tracker = trained(Case(lambda: checkpoint_wrapper(Net()), _labels), data, **options)
        assert list(tracker.selected)[:2] == ["first.weight", "first.bias"]
        posterior = tracker.posterior()
        one = saved_in(folder, "policy", posterior, Net).fit(data, data, passes=10)
        ours = posterior.fit(data, data, passes=10, layer="last")  # fewer batches than turns, the same on each process
        assert ours.scale == one.scale
        rounding = 0.05 if "mp_policy" in options else 1e-4
        for found, expected in zip(outputs_of(ours, inputs()), outputs_of(one, inputs()), strict=True):
            torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)
        assert posterior.condition(data).conditioning is not None  # which finds the last layer by itself


def check_one_batch(folder: Path) -> None:
    """Where there are fewer batches than processes, each has some of the samples."""
    case = CASES["labels"]
    data = data_of(case, 1)
    posterior = trained(case, data)[2].posterior()
    options: Any = {"temperature": True, "passes": 10}
    one = saved_in(folder, "one-batch", posterior, Net).fit(data, data, **options)
    assert one.likelihood.options()["temperature"] != 1  # type: ignore[union-attr]
    ours = posterior.fit(data, data, **options)
    same_answers(ours, one)
    same_members(ours.rescaled(3.0), one.rescaled(3.0), inputs())


def check_refusals_of_fitting(folder: Path) -> None:
    """What fitting cannot do is an error on every process; it names the way out."""
    case = CASES["labels"]
    data = data_of(case, 4)
    _, _, tracker = trained(case, data)
    posterior = tracker.posterior()
    rank = distributed.get_rank()
    with pytest.raises(ValueError, match=r"train gave other batches on another process.*tradi\.gathered"):
        posterior.fit(data[rank::2], data)
    with pytest.raises(ValueError, match="validation gave other batches"):
        posterior.choose_scale(data[rank::2])
    with pytest.raises(RuntimeError, match=r"all weights of a network .* one process.*posterior\.save\(path\)"):
        posterior.condition([(x, x[:, :3]) for x, _ in data])
    with pytest.raises(RuntimeError, match=r"prior_samples=.*one process"):
        posterior.with_covariance(tradi.FourierFeatures()).choose_scale(data)
    with pytest.raises(RuntimeError, match=r"several posteriors: fit: scale 1.*fit: scale 2"):
        posterior.rescaled(1.0 + rank).check_agreement("fit")


def check_meshes_of_fitting(folder: Path) -> None:
    """Replicas of shards take turns like all others; shards of some processes alone are an error."""
    case = CASES["labels"]
    data = data_of(case, 5)
    model: Any = Net()
    fully_shard(model, mesh=mesh(2, 2))
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    train(case, model, optimizer, data)
    posterior = tracker.posterior()
    one = saved_in(folder, "two-dimensions", posterior, Net).fit(data, data, passes=10)
    same(posterior.fit(own_part(data), own_part(data), passes=10), one, inputs())
    model = Net()
    fully_shard(model, mesh=mesh(2, 2)["shards"])
    optimizer = adam(model)
    tracker = tradi.TRADI(model, optimizer)
    train(case, model, optimizer, data)
    with pytest.raises(RuntimeError, match=r"2 of 4 processes hold.*one process"):
        tracker.posterior().fit(data, data)
