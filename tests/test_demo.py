from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tradi
from tests.browser import WIDTHS, browser, opened, overflowing
from tradi.cli.main import main

FIGURES = {"digits-ranked.png", "toy-band.png"}


def test_the_demo_prints_its_tables_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    main(["demo", "--seeds", "0", "1", "--out", str(tmp_path / "new" / "folder")])
    printed = capsys.readouterr().out
    written = {path.name: path.read_bytes() for path in (tmp_path / "new" / "folder").iterdir()}
    record = json.loads(written.pop("demo.json"))
    assert record["versions"]["tradi"] == tradi.__version__
    assert record["command"] == "tradi demo --seeds 0 1"
    page = written.pop("demo.html").decode()
    assert written.keys() == FIGURES
    assert all(data.startswith(b"\x89PNG") for data in written.values())
    for expected in ("Single network", "TRADI", "Exact GP", "AUC", "validation NLL", "demo.html", "most in doubt"):
        assert expected in printed
    assert shown == [], "nobody is looking"
    assert page.count("<svg class=drawing") == 5
    assert page.count("class=unknown") >= 10, "what was never seen is ranked high"
    assert "http" not in page.replace("http-equiv", ""), "nothing is fetched"
    digits = list(record["tables"].values())[1]
    single, ours = (digits[name]["inverted images: AUC % by confidence"] for name in ("Single network", "TRADI"))
    assert len(ours) == 2
    assert all(b > a for a, b in zip(single, ours, strict=True))  # what the demo is there to show
    single, ours = (digits[name]["accuracy %"] for name in ("Single network", "TRADI"))
    assert all(abs(a - b) < 1 for a, b in zip(single, ours, strict=True))


@pytest.mark.parametrize(
    ("terminal", "display", "arguments", "opens"),
    [(True, ":0", [], True), (False, ":0", [], False), (True, "", [], False), (True, ":0", ["--no-open"], False)],
)
def test_the_page_is_opened_only_where_somebody_can_see_it(
    terminal: bool, display: str, arguments: list[str], opens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    monkeypatch.setattr("tradi.demo.run", lambda out, seeds: [])
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    main(["demo", "--out", str(tmp_path), *arguments])
    assert shown == ([(tmp_path / "demo.html").resolve().as_uri()] if opens else [])


@pytest.mark.parametrize(("width", "scheme"), [(WIDTHS[0], "light"), (WIDTHS[1], "dark")])
def test_the_committed_page_fits_its_window(width: int, scheme: str) -> None:
    page = Path(__file__).parents[1] / "results" / "demo" / "demo.html"
    with browser() as chromium, opened(chromium, page, width, scheme) as tab:
        assert overflowing(tab) <= 0
        assert tab.locator("svg.drawing").count() == 5
        assert tab.locator(".ranked img").first.is_visible()


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
