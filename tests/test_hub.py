"""Folders for the Hub: written whole, read back the same, and a card that the Hub's own library understands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tradi
from tests.fitted import TRAIN, X, classifier, trained

METRICS = {"nll": 0.25, "ece": 0.0123456}


def ensemble() -> tradi.Ensemble:
    posterior = tradi.methods.GaussianPerturbation(trained(), 0.3).refreshing(TRAIN)
    return posterior.sample(3, likelihood=tradi.likelihoods.Classification())


def test_an_ensemble_comes_back_the_same(tmp_path: Path) -> None:
    ours = ensemble()
    folder = tradi.save_pretrained(ours, tmp_path / "digits", metrics=METRICS, data="MNIST's test images")
    assert folder == tmp_path / "digits"
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "ensemble.safetensors", "tradi_config.json"]
    loaded = tradi.load_pretrained(folder, trained())
    assert isinstance(loaded, tradi.Ensemble)
    assert torch.equal(loaded.predict(X).probs, ours.predict(X).probs)
    config = json.loads((folder / "tradi_config.json").read_text())
    assert config == {
        "version": 1,
        "holds": "ensemble",
        "likelihood": "Classification",
        "members": 3,
        "metrics": METRICS,
    }


def test_a_posterior_comes_back_the_same(tmp_path: Path) -> None:
    (tmp_path / "posterior").mkdir()  # an empty folder may be there
    ours = classifier()
    loaded = tradi.load_pretrained(tradi.save_pretrained(ours, tmp_path / "posterior"), trained())
    assert isinstance(loaded, tradi.Posterior)
    assert (tmp_path / "posterior" / "posterior.safetensors").exists()
    probs = [posterior.sample(2, refresh=TRAIN).predict(X).probs for posterior in (ours, loaded)]
    assert torch.equal(*probs)
    assert "No metrics were given." in (tmp_path / "posterior" / "README.md").read_text()


def test_frozen_weights_are_in_the_folder_unless_they_are_left_out(tmp_path: Path) -> None:
    model, other = trained(), trained()
    for network in (model, other):
        network[0].requires_grad_(False)
    with torch.no_grad():
        other[0].weight.add_(1)  # not the frozen weights that the members were drawn around
    posterior = tradi.methods.GaussianPerturbation(model, 0.3).refreshing(TRAIN)
    ours = posterior.sample(2, likelihood=tradi.likelihoods.Classification())
    loaded = tradi.load_pretrained(tradi.save_pretrained(ours, tmp_path / "whole"), other)
    assert isinstance(loaded, tradi.Ensemble)
    assert torch.equal(loaded.predict(X).probs, ours.predict(X).probs)
    torch.testing.assert_close(ours.as_module()(X)["probs"], ours.predict(X).probs)
    tradi.save_pretrained(ours, tmp_path / "part", whole=False)
    with pytest.raises(ValueError, match="frozen"):
        tradi.load_pretrained(tmp_path / "part", other)


def test_the_hub_understands_the_card(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="comes with tradi[transformers]")
    folder = tradi.save_pretrained(ensemble(), tmp_path / "digits", metrics=METRICS, data="MNIST: test")
    card = hub.ModelCard.load(folder / "README.md")
    assert card.data.library_name == "tradi"
    assert {result.metric_type: result.metric_value for result in card.data.eval_results} == METRICS
    assert {result.dataset_name for result in card.data.eval_results} == {"MNIST: test"}
    assert "| ece | 0.0123456 |" in card.text


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    dropout = tradi.methods.MCDropout(trained()).sample(2)
    with pytest.raises(ValueError, match="cannot be saved"):
        tradi.save_pretrained(dropout, tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="remove it, or save elsewhere"):
        tradi.save_pretrained(ensemble(), tmp_path / "digits")
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["notes.txt"]


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="metric 'nll' must be finite, got nan"):
        tradi.save_pretrained(ensemble(), tmp_path / "digits", metrics={"nll": float("nan")})
    with pytest.raises(TypeError, match=r"only a Posterior or an Ensemble.*got Sequential"):
        tradi.save_pretrained(trained(), tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "it is of version 2"),
        ({"holds": "../posterior"}, "it holds '../posterior'"),
        ({"members": "three"}, "members must be"),
        ({"more": 1}, "more"),
    ],
)
def test_a_forged_configuration_is_an_error(change: dict[str, object], message: str, tmp_path: Path) -> None:
    folder = tradi.save_pretrained(ensemble(), tmp_path / "digits")
    path = folder / "tradi_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=rf"tradi_config.json cannot be loaded: .*{message}"):
        tradi.load_pretrained(folder, trained())


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="tradi_config"):
        tradi.load_pretrained(tmp_path / "nothing", trained())
