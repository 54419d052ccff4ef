"""Conformal libraries take the estimators and the serving module as they are; their sets cover what they promise."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
from sklearn.datasets import load_digits

from tests.test_examples import example

pytest.importorskip("mapie", reason="a conformal library")

# Of MAPIE and TorchCP, about their own ways.
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore:.*scale")]


def test_sets_and_intervals_cover_what_was_promised(capsys: pytest.CaptureFixture[str]) -> None:
    example("conformal").main(steps=60)
    lines = capsys.readouterr().out.splitlines()
    covered = {line[:40].strip(): float(line[40:].split()[0]) for line in lines[1:]}
    assert {"digits, MAPIE lac", "digits, MAPIE aps", "diabetes, MAPIE residuals over our std"} <= covered.keys()
    for what, share in covered.items():
        if "own quantiles" not in what:
            assert share >= 80, what  # 90 were promised; three standard errors with 111 rows are 9


@pytest.fixture
def torchcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchCP asks for torchsort when it is imported, which is compiled against torch, and sets have no use for."""
    if find_spec("torchsort") is None:
        stand_in: Any = ModuleType("torchsort")
        stand_in.soft_rank = stand_in.soft_sort = None
        monkeypatch.setitem(sys.modules, "torchsort", stand_in)
    pytest.importorskip("torchcp.classification.score", reason="tests/oracles.txt is not installed")


@pytest.mark.usefixtures("torchcp")
def test_torchcp_gives_the_sets_that_mapie_gives(capsys: pytest.CaptureFixture[str]) -> None:
    code = example("conformal")
    parts = code.parts(*load_digits(return_X_y=True), 0)
    train, calibrate, test, y_train, y_calibrate, y_test = parts
    model = code.TRADIClassifier(steps=60, random_state=0).fit(train, y_train)
    code.with_torchcp(model, calibrate, test, y_calibrate, y_test)
    conformal = code.SplitConformalClassifier(model, code.LEVEL, conformity_score="lac")
    _, sets = conformal.conformalize(calibrate, y_calibrate).predict_set(test)
    covered = 100 * sets[range(len(test)), y_test, 0].mean()
    assert f"{covered:>10.1f}{sets.sum() / len(test):>11.2f}" in capsys.readouterr().out
