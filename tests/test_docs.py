"""Every code block of the README and of the docs site runs, and every method has its section."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

import tradi.methods
from tests.browser import PATIENCE, WIDTHS, browser, overflowing
from tradi.bench.cases import Options
from tradi.bench.results import read_results
from tradi.bench.runner import run
from tradi.report.page import write_tables

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SYBIL = Sybil([PythonCodeBlockParser(), SkipParser()])
PAGES = {
    str(page.relative_to(ROOT)): page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    if "```python" in page.read_text()
}


def executed(page: Path) -> dict[str, Any]:
    """What the page's code defines, run from top to bottom as a reader would; hidden blocks prepare what it uses."""
    document = SYBIL.parse(page)
    for example in document.examples():
        example.evaluate()
    found: dict[str, Any] = document.namespace
    return found


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("CONTRIBUTING.md", "docs/methods.md")])
@pytest.mark.filterwarnings("ignore")  # of Lightning about workers, and of few validation rows
def test_the_code_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # files that it writes go there
    assert executed(PAGES[name])


def test_no_code_is_left_out() -> None:
    """What is marked as Python runs, whole; what is not is output, a shell's lines, or plain text."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]:
        text = page.read_text()
        fences = re.findall(r"^ *```(\w*)", text, re.MULTILINE)
        assert set(fences) <= {"", "python", "sh", "text"}, page
        hidden = len(re.findall(r"^<!--- invisible-code-block: python", text, re.MULTILINE))
        assert len(list(SYBIL.parse(page).examples())) == fences.count("python") + hidden, page
        assert "<!--- skip" not in text, page


def test_the_first_page_shows_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    executed(DOCS / "index.md")
    shown = [line for line in (DOCS / "index.md").read_text().splitlines() if line.startswith("ClassPrediction(")]
    printed = capsys.readouterr().out.splitlines()
    for ours, theirs in zip(printed, shown, strict=True):
        numbers = [[float(number) for number in re.findall(r"[\d.]+", line)] for line in (ours, theirs)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.03)  # other processors round otherwise


def test_every_method_has_a_section_with_code_that_runs() -> None:
    page = DOCS / "methods.md"
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    titles = {section.split("\n")[0] for section in sections[1:]}
    assert titles == {*tradi.methods.__all__, "Other scores and rivals"}
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
    text = write_tables(tmp_path, tmp_path / "tables.md").read_text()
    assert "### noise: sgd\n" in text
    assert "### noise: sgd, against far away\n" in text
    assert text.count("| Last |") == text.count("| lowest confidence % |") == 2


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning, such as of a link that leads nowhere, fails."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    assert "does not contain an anchor" not in built.stderr, built.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert "mutual_information" in (site / "api" / "predictions" / "index.html").read_text()


def test_pages_of_the_site_fit_a_phone_and_ask_no_other_host(site: Path) -> None:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server, browser() as chromium:
        Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        tab = chromium.new_page(viewport={"width": WIDTHS[1], "height": 900})
        tab.set_default_timeout(PATIENCE)
        asked: list[str] = []
        tab.on("request", lambda request: asked.append(request.url))
        for page in ("", "method/", "results/", "api/posterior/", "api/metrics/"):
            tab.goto(home + page, wait_until="load")
            tab.wait_for_function("!document.querySelector('article table:not([class])')?.closest('article > table')")
            assert overflowing(tab) <= 0, page
        server.shutdown()
    assert [url for url in asked if not url.startswith((home, "data:", "blob:"))] == []


# The columns of the table in choose.md: benchmark, variant, metric of one network, metric of ensembles, factor, digits.
FAR, LEFT_OUT = "notMNIST/{}/auroc", "held-out digits/{}/auroc"
COLUMNS = {
    "NLL, concrete": ("uci", "concrete", "nll", "nll", 1, 3),
    "NLL, energy": ("uci", "energy", "nll", "nll", 1, 3),
    "AUC %, MNIST against notMNIST": ("mnist-ood", "sgd", FAR, FAR, 100, 1),
    "AUC %, digits left out of training": ("mnist-near", "sgd", LEFT_OUT, LEFT_OUT, 100, 1),
    "NLL, MNIST without these": ("mnist-near", "sgd", "nll", "nll", 1, 4),
}


def measured() -> list[list[str]]:
    """The cells of that table, row by row."""
    section = (DOCS / "choose.md").read_text().split("## What we measured")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|") and "---" not in line]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


def test_the_table_for_choosing_is_that_of_the_result_files() -> None:
    header, *rows = ([cell.strip("*") for cell in row] for row in measured())
    assert header[2:] == list(COLUMNS)
    for method, runs, *cells in rows:
        assert runs == (re.findall(r" of (\d+)$", method) or ["1"])[0]
        for cell, (benchmark, variant, one, several, factor, digits) in zip(cells, COLUMNS.values(), strict=True):
            score = one.format("confidence") if method == "Single network" else several.format("information")
            results = read_results(ROOT / "results" / benchmark)
            values = [r.metrics[score] for r in results if (r.key.variant, r.key.method) == (variant, method)]
            assert cell == f"{factor * statistics.fmean(values):.{digits}f}", (method, score)


def test_the_best_of_a_column_for_choosing_is_bold() -> None:
    for name, *cells in list(zip(*measured(), strict=True))[2:]:
        figures = [float(cell.strip("*")) for cell in cells]
        best = max(figures) if name.startswith("AUC") else min(figures)
        assert [cell.startswith("**") for cell in cells] == [figure == best for figure in figures], name
