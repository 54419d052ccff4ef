from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.test_runner import BLOBS
from tests.report.made import COMMITTED, full, result
from tradi.bench import BENCHMARKS
from tradi.bench.cases import Options
from tradi.bench.declaration import read_declaration
from tradi.bench.results import read_results
from tradi.bench.runner import run
from tradi.bench.toy import TOY
from tradi.cli.main import main
from tradi.report.page import page, write_report


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*/benchmark.json")), ids=lambda path: path.parent.name)
def test_the_declarations_beside_the_results_are_those_of_the_code(path: Path) -> None:
    assert read_declaration(path) == BENCHMARKS[path.parent.name].declaration()


def test_a_declaration_that_is_missing_or_none_is_named(tmp_path: Path) -> None:
    result("TRADI", benchmark="mnist", nll=1.0).write(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"benchmark\.json is missing.*`tradi bench mnist --out .*` writes it"):
        write_report(tmp_path, tmp_path)
    for content in ("{}", "[]", "{", '{"tables": [{"kind": "Magic", "columns": []}]}'):
        (tmp_path / "mnist" / "benchmark.json").write_text(content)
        with pytest.raises(ValueError, match=r"benchmark\.json does not declare a benchmark"):
            write_report(tmp_path, tmp_path)


def test_a_report_of_real_results(tmp_path: Path) -> None:
    for benchmark in (BLOBS, TOY):
        list(run(benchmark, Options(tmp_path, tmp_path / "results", seeds=(0,), splits=(0,), quick=benchmark is TOY)))
    page = write_report(tmp_path / "results", tmp_path / "report")
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["report.html"]
    written = page.read_text()
    assert "QUICK RUNS" in written
    for found in read_results(tmp_path / "results"):
        assert f"<th scope=row data-v='{found.key.method}'>" in written
    for caption in (
        "Predictions of the first seed",
        "Calibration on test data",
        "Confidence: grey",
        "Mutual information:",
    ):
        assert caption in written
    assert "http" not in re.sub(r"www\.w3\.org|http-equiv", "", written), "nothing is fetched"


@pytest.fixture(scope="module")
def committed(committed_page: Path) -> str:
    return committed_page.read_text()


def test_the_committed_results_make_a_page_under_three_megabytes(committed: str) -> None:
    assert len(committed.encode()) < 3e6
    assert committed.count("<svg class=drawing") > 100


def test_sections_are_in_the_papers_order_and_all_in_the_contents(committed: str) -> None:
    sections = re.findall(r"<section id='([^']+)'", committed)
    assert sections[0] == "summary"
    assert sections[-1] == "provenance"
    own = [name for name in BENCHMARKS if any((COMMITTED / name).rglob("seed-*.json"))]  # some are only declared yet
    assert sections[1:-1] == own
    assert re.findall(r"<li><a href='#([^']+)'", committed) == sections


def test_commands_and_commits_are_folded_away_at_the_end(committed: str) -> None:
    before, _, after = committed.partition("<section id='provenance'>")
    commits = {str(one.made_by["commit"])[:7] for one in read_results(COMMITTED)}
    assert not any(commit in before for commit in commits)
    assert all(commit in after for commit in commits)
    assert after.index("<details>") < min(after.index(commit) for commit in commits)


def test_every_figure_says_what_it_shows_and_every_picture_has_a_text(committed: str) -> None:
    drawings = re.findall(r"<svg class=drawing[^>]*>", committed)
    assert all(re.search(r"aria-label='[^']{10,}'", one) for one in drawings)
    assert all(re.search(r"alt='[^']{5,}'", one) for one in re.findall(r"<img[^>]*>", committed))


def test_figures_stand_below_the_table_of_the_same_ood_set() -> None:
    declared = {"mnist-ood": BENCHMARKS["mnist-ood"].declaration()}
    results = [full(name, seed) for name in ("Single network", "TRADI") for seed in (0, 1)]
    written = page(results, declared, COMMITTED)
    table = written.index("<h3>Adam, against notMNIST</h3>")
    for caption in (
        "Calibration, with notMNIST",
        "Mutual information: grey test data, coloured OOD data, with notMNIST",
    ):
        assert written.index(caption) > table


def test_where_methods_stand_side_by_side_ours_comes_first() -> None:
    declared = {"uci": BENCHMARKS["uci"].declaration()}
    results = [
        result(name, variant="concrete", benchmark="uci", split=split, nll=nll + split, rmse=nll)
        for name, nll in (("Single network", 3.25), ("TRADI", 2.5))
        for split in (0, 1)
    ]
    table = re.search(r"<caption>UCI: NLL</caption>.*?</table>", page(results, declared, COMMITTED), re.DOTALL)
    assert table is not None
    heads = re.findall(r"<button type=button>(?:<small>paper</small> )?([^<]+)", table[0])
    assert heads[:3] == ["TRADI", "TRADI", "Single network"]
    cells = re.findall(r"data-v='([-\d.]+)'>", table[0])
    assert cells[0] == "3", "numbers move with their heads"
    assert cells[2] == "3.75"


def test_markup_in_names_is_escaped() -> None:
    declared = {"mnist-ood": BENCHMARKS["mnist-ood"].declaration()}
    results = [full("<b>'x'", seed, "<i>") for seed in (0, 1)]
    written = page(results, declared, COMMITTED)
    assert "<b>'x'" not in written
    assert "<i>, notMNIST" not in written
    assert "&lt;b&gt;&#x27;x&#x27;" in written


def test_a_panel_for_every_variant_and_a_curve_of_every_seed() -> None:
    declared = {"mnist-ood": BENCHMARKS["mnist-ood"].declaration()}
    results = [full("TRADI", seed, variant) for seed in (0, 1, 2) for variant in ("adam", "sgd")]
    written = page(results, declared, COMMITTED)
    assert re.findall(r"<div class=panel data-tab='(\w+)'>", written) == ["Adam", "SGD"]
    one = written[written.index("Calibration on test data") :]
    assert one[: one.index("</figure>")].count("class=run") == 3


def test_the_command_line_runs_lists_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tradi.bench.BENCHMARKS", {"blobs": BLOBS})
    main(["bench", "--list"])
    assert "blobs" in capsys.readouterr().out
    main(["bench", "blobs", "--out", str(tmp_path), "--seeds", "0", "--splits", "1", "--methods", "TRADI"])
    (only,) = read_results(tmp_path)
    assert (only.key.method, only.key.split) == ("TRADI", 1)
    assert only.made_by["command"].startswith("tradi bench blobs --out")
    main(["bench", "blobs", "--out", str(tmp_path), "--quick", "--methods", "TRADI"])
    assert len(read_results(tmp_path)) == 1  # what is quick is no result
    assert len(read_results(tmp_path / "quick")) == 1
    main(["report", str(tmp_path)])
    assert "report.html" in capsys.readouterr().out


def fails(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="1"):
        main(arguments)
    return capsys.readouterr().err


def test_wrong_names_and_empty_folders_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown benchmark 'magic'" in fails(["bench", "magic"], capsys)
    assert "unknown method 'magic'" in fails(["bench", "toy", "--methods", "magic", "--out", str(tmp_path)], capsys)
    assert "no results under" in fails(["report", str(tmp_path)], capsys)
    assert "leave out --seeds" in fails(["bench", "toy", "--quick", "--seeds", "1"], capsys)
    assert "--jobs must be at least 1, got 0" in fails(["bench", "toy", "--jobs", "0"], capsys)
    assert "not a folder of results" in fails(["report", str(tmp_path / "nowhere")], capsys)
    assert "nowhere is not a folder of data" in fails(["report", str(tmp_path), "--data", "nowhere"], capsys)


def test_a_failure_is_printed_and_is_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(root: Path, split: int, seed: int) -> Any:
        raise FileNotFoundError(f"{root} has no blobs")

    broken = replace(BLOBS, variants=(replace(BLOBS.variants[0], load=missing),))
    monkeypatch.setattr("tradi.bench.BENCHMARKS", {"blobs": broken})
    error = fails(["bench", "blobs", "--quick", "--out", str(tmp_path), "--data", "here"], capsys)
    assert "1 failed, see above" in error
    assert not list(tmp_path.rglob("seed-*.json"))


def test_the_tables_in_the_docs_are_those_of_the_result_files(tmp_path: Path) -> None:
    main(["report", str(COMMITTED), "--tables", str(tmp_path / "results.md")])
    assert (tmp_path / "results.md").read_text() == (COMMITTED.parent / "docs" / "results.md").read_text()
