"""The example on the page about tables, from its file to its predictions."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from tests.test_docs import DOCS, executed
from tradi.cli.main import main

PAGE = DOCS / "tables.md"


def test_the_example_runs_and_flags_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    executed(PAGE)
    fit, predict = re.findall(r"^tradi (.*)$", PAGE.read_text(), re.MULTILINE)
    main([*shlex.split(fit), "--steps", "500"])
    main(shlex.split(predict))
    assert pd.read_csv("predictions.csv")["is_ood"].tolist() == [False, False, True, True, True]
    printed = [line for line in capsys.readouterr().out.splitlines() if not re.search(r"\d[.%]", line)]
    assert len(printed) >= 6
    assert [line for line in printed if line not in PAGE.read_text()] == []
