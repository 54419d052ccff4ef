"""The README's figures are those of the result files, and it stays a front door."""

from __future__ import annotations

import re
import runpy
import statistics
from pathlib import Path

import matplotlib
import pytest

from tradi.bench.results import read_results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FAR, TURNED, HELD_OUT = "notMNIST", "rotated digits", "held-out digits"

# First words of a row: benchmark, variant, metric of one network, metric of ensembles, factor and digits.
ROWS = {
    "UCI concrete": ("uci", "concrete", "nll", "nll", 1, 3),
    "UCI energy": ("uci", "energy", "nll", "nll", 1, 3),
    "MNIST against notMNIST": ("mnist-ood", "sgd", f"{FAR}/confidence/auroc", f"{FAR}/information/auroc", 100, 1),
    "MNIST without two digits, against": (
        *("mnist-near", "sgd", f"{HELD_OUT}/confidence/auroc", f"{HELD_OUT}/information/auroc", 100, 1),
    ),
    "MNIST without two digits: NLL": ("mnist-near", "sgd", "nll", "nll", 1, 4),
}


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("row", ROWS)
def test_headline_figures_are_those_of_the_result_files(row: str) -> None:
    benchmark, variant, single, several, factor, digits = ROWS[row]
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {row}")]
    shown = [re.findall(r"[\d.]+", cell)[0] for cell in line.split("|")[2:5]]
    runs = re.findall(r"\((\d) runs\)", line)[0]
    results = read_results(ROOT / "results" / benchmark)
    methods = {"Single network": single, "TRADI": several, f"Deep Ensemble of {runs}": several}
    for cell, (method, metric) in zip(shown, methods.items(), strict=True):
        values = [r.metrics[metric] for r in results if (r.key.variant, r.key.method) == (variant, method)]
        assert cell == f"{factor * statistics.fmean(values):.{digits}f}", method


def test_it_shows_what_the_example_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    runpy.run_path(str(ROOT / "examples" / "digits.py"))
    printed = capsys.readouterr().out.splitlines()
    shown = [line for line in README.splitlines() if "ClassPrediction(" in line]
    assert len(printed) == len(shown) == 2
    for ours, theirs in zip(printed, shown, strict=True):
        numbers = [[float(number) for number in re.findall(r"[\d.]+", line)] for line in (ours, theirs)]
        assert re.sub(r"\d\.\d+", "", ours) == re.sub(r"\d\.\d+", "", theirs)
        assert numbers[0] == pytest.approx(numbers[1], abs=0.03)  # other processors round otherwise
    assert (tmp_path / "digits.png").stat().st_size > 10_000


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
