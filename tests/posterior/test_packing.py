"""What is in a posterior's file; plain posteriors are tested in test_posterior.py and methods/test_conformance.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import tradi
from tests.fitted import TRAIN, TRAIN_NUMBERS, VALIDATION, X, classifier, plain, regressor, small, tracked
from tests.training import network, same
from tradi.methods import LastLayerLaplace
from tradi.posterior import laplace
from tradi.posterior.activations import Activations
from tradi.posterior.laplace import Full, Kronecker, LaplaceHead


def again(posterior: tradi.Posterior, model: nn.Module, folder: Path) -> tradi.Posterior:
    posterior.save(folder / "posterior")
    return tradi.load_posterior(folder / "posterior", model)


def test_a_conditioned_classifier_is_saved_whole(tmp_path: Path) -> None:
    posterior = classifier()
    assert isinstance(posterior.conditioning, LaplaceHead)
    assert isinstance(posterior.conditioning.root, Full)
    assert posterior.conditioning.root.factors.is_contiguous()  # as it is in a file
    posterior = posterior._changed(conditioning=posterior.conditioning.with_spread(0.7))
    loaded = again(posterior, network(seed=5), tmp_path)
    assert posterior.covariance == loaded.covariance == Activations()
    assert repr(loaded).partition(", BatchNorm")[0] == repr(posterior).partition(", BatchNorm")[0]
    for i in range(3):
        assert same(loaded.draw(i, seed=2), posterior.draw(i, seed=2))
    ours, theirs = (p.sample(3, refresh=TRAIN).predict(X) for p in (posterior, loaded))
    assert torch.equal(ours.probs, theirs.probs)
    assert same(again(loaded, network(), tmp_path).draw(1), posterior.draw(1))
    assert same(loaded.rescaled(3.0).draw(1), posterior.rescaled(3.0).draw(1))


def test_kronecker_factors_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace, "MAX_BYTES", 0)
    posterior = tracked(plain(40), TRAIN, nn.functional.cross_entropy).fit(TRAIN, VALIDATION)
    assert isinstance(posterior.conditioning, LaplaceHead)
    assert isinstance(posterior.conditioning.root, Kronecker)
    assert all(t.is_contiguous() for t in (*posterior.conditioning.root.inputs, *posterior.conditioning.root.outputs))
    noisy = posterior._changed(conditioning=posterior.conditioning.with_spread(0.7))
    loaded = again(noisy, plain(40, seed=5), tmp_path)
    assert isinstance(loaded.conditioning, LaplaceHead)
    assert loaded.conditioning.spread == 0.7
    assert loaded.conditioning.precision == posterior.conditioning.precision
    for i in range(3):
        assert same(loaded.draw(i), noisy.draw(i))


@pytest.mark.parametrize("likelihood", [tradi.likelihoods.Classification(), tradi.likelihoods.Bernoulli()])
def test_a_head_alone_is_saved_even_where_it_is_the_whole_network(
    likelihood: tradi.likelihoods.Likelihood, tmp_path: Path
) -> None:
    labels = [
        (x, y if isinstance(likelihood, tradi.likelihoods.Classification) else (x[:, :3] > 0).long()) for x, y in TRAIN
    ]
    torch.manual_seed(0)
    posterior = LastLayerLaplace(nn.Linear(4, 3)).condition(labels, likelihood=likelihood)
    loaded = again(posterior, nn.Linear(4, 3), tmp_path)
    assert loaded.likelihood == likelihood
    assert not same(posterior.draw(0), posterior.draw(1))
    assert same(loaded.draw(1), posterior.draw(1))


def test_moments_of_convolutions_and_embeddings_are_saved(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 6)
            self.grouped = nn.Conv1d(6, 4, 3, groups=2, padding=1)
            self.up = nn.ConvTranspose1d(4, 4, 2, stride=2)
            self.norm = nn.LayerNorm(4)
            self.head = nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.up(self.grouped(self.table(tokens).mT)).mean(2)
            return self.head(self.norm(x))

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(7, (4, 16, 5), generator=generator)
    data = [(one, one[:, 0] % 3) for one in tokens]
    posterior = tracked(Mixed(), data, nn.functional.cross_entropy, select="*")
    with pytest.warns(UserWarning, match="without validation data"):
        posterior = posterior.fit(data)
    loaded = again(posterior, Mixed(), tmp_path)
    kinds = [layer.moments.form.kind for layer in loaded._parts.layers if layer.moments]
    assert kinds == ["embedding", "convolution", "transposed", "linear"]
    for ours, theirs in zip(posterior._parts.layers, loaded._parts.layers, strict=True):
        assert ours.gradient == theirs.gradient is not None
        assert ours.reach == theirs.reach is not None
    assert same(loaded.noise(1), posterior.noise(1))
    assert same(loaded.draw(1), posterior.draw(1))


@pytest.mark.parametrize("make", [classifier, lambda: regressor(small)], ids=["labels", "numbers"])
def test_no_row_of_the_data_is_in_a_file(make: Any, tmp_path: Path) -> None:
    make().save(tmp_path / "p")
    rows = {tuple(row) for x, _ in (*TRAIN, *TRAIN_NUMBERS) for row in x.tolist()}
    values = {value for row in rows for value in row} | {v for _, y in TRAIN_NUMBERS for v in y.flatten().tolist()}
    with safe_open(tmp_path / "p", framework="pt") as file:
        saved = {value for key in file.keys() for value in file.get_tensor(key).flatten().tolist()}  # noqa: SIM118
        assert not values & saved
        assert len(json.dumps(file.metadata())) < 10_000


def test_a_temperature_is_saved(tmp_path: Path) -> None:
    posterior = tracked(network(), TRAIN, nn.functional.cross_entropy).fit(TRAIN, VALIDATION, temperature=True)
    loaded = again(posterior, network(), tmp_path)
    assert loaded.likelihood == posterior.likelihood != tradi.likelihoods.Classification()
    assert loaded.scale_search == posterior.scale_search


def test_a_conditioned_head_of_another_shape_is_an_error(tmp_path: Path) -> None:
    classifier().save(tmp_path / "p")
    with pytest.raises(ValueError, match="the file is of another architecture"):
        tradi.load_posterior(tmp_path / "p", plain())
    with pytest.raises(ValueError, match=r"not an ensemble.*it is a posterior, which tradi.load_posterior reads"):
        tradi.load_ensemble(tmp_path / "p", network())
