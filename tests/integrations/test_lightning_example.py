"""The example of Lightning runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import ROOT

lightning = pytest.importorskip("lightning", reason="needs tradi[lightning]")

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning itself, about workers and loggers


def example() -> Any:
    path = ROOT / "examples" / "lightning_digits.py"
    spec = importlib.util.spec_from_file_location("lightning_digits", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    example().main(epochs=2)
    printed = capsys.readouterr().out
    assert "tradi/mutual_information" in printed
    *_, learnt, never_seen = (line.split() for line in printed.splitlines())
    assert (learnt[-3], never_seen[-3]) == ("1434", "363")
    assert float(learnt[-2]) > float(never_seen[-2]), "more confident of what it has learnt"
