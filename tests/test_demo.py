from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tradi
from tradi.cli.main import main

FIGURES = {"digits-confidence.png", "digits-accuracy-confidence.png", "toy-band.png"}


def test_the_demo_prints_its_tables_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--seeds", "0", "1", "--out", str(tmp_path / "new" / "folder")])
    printed = capsys.readouterr().out
    written = {path.name: path.read_bytes() for path in (tmp_path / "new" / "folder").iterdir()}
    record = json.loads(written.pop("demo.json"))
    assert record["versions"]["tradi"] == tradi.__version__
    assert record["command"] == "tradi demo --seeds 0 1"
    assert written.keys() == FIGURES
    assert all(data.startswith(b"\x89PNG") for data in written.values())
    for expected in ("Single network", "TRADI", "Exact GP", "AUROC", "validation NLL", "toy-band.png"):
        assert expected in printed
    digits = next(iter(record["tables"].values()))
    single, ours = (digits[name]["inverted images: AUROC % by confidence"] for name in ("Single network", "TRADI"))
    assert len(ours) == 2
    assert all(b > a for a, b in zip(single, ours, strict=True))  # what the demo is there to show
    single, ours = (digits[name]["accuracy %"] for name in ("Single network", "TRADI"))
    assert all(abs(a - b) < 1 for a, b in zip(single, ours, strict=True))


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert tradi.__version__ in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([])


def test_a_missing_extra_is_one_line_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="1"):
        main(["demo", "--out", str(tmp_path)])
    assert "pip install 'tradi[demo]'" in capsys.readouterr().err
