"""The code in the docs runs, and every method has its section."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import torch

import tradi.methods
from tradi.bench.cases import Options
from tradi.bench.runner import run
from tradi.report.page import write_report

ROOT = Path(__file__).parents[1]


def executed(page: Path) -> dict[str, Any]:
    """What the page's examples define, run one after another as a reader would."""
    found: dict[str, Any] = {"torch": torch}
    for block in re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(textwrap.dedent(block), str(page), "exec"), found)
    return found


def test_every_method_has_a_section_with_code_that_runs() -> None:
    page = ROOT / "docs" / "methods.md"
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    titles = {section.split("\n")[0] for section in sections[1:]}
    assert titles == {*tradi.methods.__all__, "Beside the methods"}
    for section in sections[1:-1]:
        assert all(part in section for part in ("**Use it**", "**Cost**", "**Reference**", "```python")), section
    found = executed(page)
    assert found["ensemble"](found["x"]).shape == (1, 32, 3)
    assert [score.shape for score in found["scores"]] == [(32,)] * 3


def test_the_recipes_for_contributors_run_up_to_the_report(tmp_path: Path) -> None:
    found = executed(ROOT / "CONTRIBUTING.md")
    options = Options(tmp_path, tmp_path, methods=("Single network", "Last"), seeds=(0,))
    for _, failures in run(found["NOISE"], options):
        assert failures == []
    write_report(tmp_path, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "### noise: sgd\n" in text
    assert "### noise: sgd, against far away\n" in text
    assert text.count("| Last |") == text.count("| lowest confidence % |") == 2
