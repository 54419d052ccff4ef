from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.bench.test_runner import BLOBS, METHODS, done, load
from tradi.bench.cases import Options
from tradi.bench.ivon import Ivon, Variational
from tradi.bench.recipe import Recipe
from tradi.bench.results import read_results
from tradi.bench.training import train
from tradi.models import mlp

ROW = Ivon(members=4)
RECIPE = ROW.recipe(Recipe("adam", 1e-3, epochs=3, batch=32))
with_ivon: dict[str, Any] = {**METHODS, "IVON": ROW}
DRAWS = 2000
blobs = replace(BLOBS, methods=with_ivon)


def test_without_the_package_its_row_alone_fails_and_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ivon", None)
    _, (failure,) = done(blobs, Options(tmp_path, tmp_path, seeds=(0,), splits=(0,)))
    assert failure.method == "IVON"
    assert "pip install 'tradi[speed]'" in failure.error
    assert {result.key.method for result in read_results(tmp_path)} == METHODS.keys()


def test_settings_are_the_published_ones() -> None:
    ivon = pytest.importorskip("ivon")
    defaults = {name: one.default for name, one in inspect.signature(ivon.IVON).parameters.items()}
    assert (RECIPE.weight_decay, RECIPE.momentum) == (defaults["weight_decay"], defaults["beta1"])
    (group,) = RECIPE.build(mlp(2, [3], 2), 200).param_groups
    assert (group["lr"], group["ess"]) == (0.1, 200)
    assert all(group[name] == defaults[name] for name in group.keys() & defaults.keys() - {"params", "lr", "ess"})


def test_members_are_drawn_from_its_posterior() -> None:
    ivon = pytest.importorskip("ivon")
    torch.manual_seed(0)
    model = mlp(2, [4], 3, batchnorm=True)
    seen: dict[str, Any] = {}

    def build(model: nn.Module, optimizer: Any, steps: int, recipe: Recipe) -> Variational:
        seen["optimizer"] = optimizer
        return Variational(model, optimizer)

    run = train(model, load(Path(), 0, 0), RECIPE, {"IVON": build})
    optimizer = seen["optimizer"]
    assert isinstance(optimizer, ivon.IVON)
    assert run.steps == 3 * 7
    posterior, theirs = run.posteriors["IVON"], []
    for _ in range(DRAWS):
        with optimizer.sampled_params():
            theirs.append({name: weight.detach().clone() for name, weight in model.named_parameters()})
    ours = [posterior.draw(member) for member in range(DRAWS)]
    assert posterior.variance.keys() == theirs[0].keys()
    for name, variance in posterior.variance.items():
        torch.testing.assert_close(posterior.mean[name], model.get_parameter(name).detach())
        for draws in (ours, theirs):
            drawn = torch.stack([one[name] for one in draws])
            # Standard errors of a mean and of a variance: six of them are not reached by chance.
            assert ((drawn.mean(0) - posterior.mean[name]).abs() < 6 * (variance / DRAWS).sqrt()).all()
            assert ((drawn.var(0) / variance - 1).abs() < 6 * (2 / DRAWS) ** 0.5).all()


def test_it_trains_by_itself_and_leaves_other_rows_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("ivon")
    options = Options(tmp_path, tmp_path / "with", seeds=(0,), splits=(0,))
    _, failures = done(blobs, options)
    assert failures == []
    done(BLOBS, replace(options, out=tmp_path / "without"))
    found = {result.key.method: result for result in read_results(tmp_path / "with")}
    for result in read_results(tmp_path / "without"):
        assert found[result.key.method].metrics == result.metrics
    assert "optimizer='ivon', lr=0.1" in found["IVON"].settings["recipe"]
    assert "optimizer='sgd'" in found["TRADI"].settings["recipe"]
    assert found["IVON"].notes["steps"] == [7 * 12]
    assert found["IVON"].metrics["accuracy"] > 0.6
    assert found["IVON"].made_by["ivon-opt"]
