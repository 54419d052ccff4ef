"""Predictions for tokens: measured one by one and line by line, and shown in the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tests.report.made import result
from tradi import metrics
from tradi.bench.evaluate import evaluate
from tradi.bench.text import TextData, predicted
from tradi.bench.tokens import TOKENS, load
from tradi.data.docstrings import CHARACTERS
from tradi.methods import DeepEnsemble, SingleNetwork
from tradi.models import LanguageModel
from tradi.report.page import page


@pytest.fixture(scope="module")
def data() -> TextData:
    generator = torch.Generator().manual_seed(0)
    lines = [torch.randint(96, (6, 9), generator=generator) for _ in range(4)]
    pairs = [(x, x) for x in lines[:3]]
    return TextData(pairs[0], pairs[1], pairs[2], {"other": lines[3]}, at_once=4, characters=CHARACTERS)


def networks(count: int) -> list[LanguageModel]:
    torch.manual_seed(0)
    return [LanguageModel(96, 9, width=8, layers=1).eval() for _ in range(count)]


def test_every_next_token_is_predicted_by_the_mean_of_the_members(data: TextData) -> None:
    models = networks(3)
    found, labels = predicted(DeepEnsemble(models).sample(), data.test[0], data)
    with torch.no_grad():
        probs = torch.stack([model(data.test[0])[:, :-1].softmax(2) for model in models]).mean(0).flatten(0, 1)
    torch.testing.assert_close(found.probs, probs)
    assert torch.equal(labels, data.test[0][:, 1:].flatten())
    numbers = evaluate(DeepEnsemble(models).sample(), data).metrics
    assert numbers["nll"] == pytest.approx(F.nll_loss(probs.log(), labels).item(), rel=1e-4)


def test_lines_are_told_apart_by_the_mean_of_their_tokens(data: TextData) -> None:
    ensemble = DeepEnsemble(networks(3)).sample()
    found = evaluate(ensemble, data)
    scores = [
        predicted(ensemble, x, data)[0].mutual_information.view(6, 8).mean(1) for x in (data.test[0], data.ood["other"])
    ]
    expected = metrics.auroc(torch.cat(scores), torch.arange(12) >= 6)
    assert found.metrics["other/line/information"] == pytest.approx(expected)
    assert {"other/confidence/auroc", "other/line/entropy", "ece"} <= found.metrics.keys()
    shown = found.curves["other/by_token"]
    assert [len(line) for line in shown["text"]] == [9, 9]
    assert [len(line) for line in shown["information"]] == [8, 8]


def test_one_network_cannot_disagree_with_itself(data: TextData) -> None:
    found = evaluate(SingleNetwork(networks(1)[0]).sample(1), data)
    assert not [name for name in (*found.metrics, *found.curves) if "information" in name or "by_token" in name]


def test_the_report_shows_tokens_in_ink(tmp_path: Path) -> None:
    curve = {"text": ["a<b\n", "cdef"], "information": [[0.0, 0.1, 0.2], [0.0, 0.0, 0.05]]}
    one = replace(
        result("TRADI", benchmark="tokens", variant="docstrings", accuracy=0.5), curves={"code/by_token": curve}
    )
    written = page([one], {"tokens": TOKENS.declaration()}, tmp_path)
    assert "Mutual information of each token, of the first lines and seed, with code" in written
    assert "0.00)'>&lt;</span><span style='background:rgba(213,94,0,0.50)'>b</span>" in written
    assert "1.00)'>↵</span>" in written
    assert "The darkest token has 0.20 nats." in written


def test_lines_of_the_benchmark_depend_on_the_seed_and_can_be_kept_in_json(tmp_path: Path) -> None:
    one, other = (load(tmp_path, 0, seed) for seed in (0, 1))
    assert one.train[0].shape == other.train[0].shape
    assert not torch.equal(one.train[0], other.train[0])
    assert set(one.ood) == {"code", "shuffled words", "shuffled letters", "base64"}
    assert json.dumps(one.first(3).about)
