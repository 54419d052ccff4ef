"""A real browser for the pages that are written; tests skip where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (1400, 390)
PATIENCE = 600_000  # milliseconds: a busy machine is no failure


@contextmanager
def browser() -> Iterator[Any]:
    """Headless Chromium as the system has it, or a skipped test."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed: `apt-get install chromium` lets the tests of pages run")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def opened(chromium: Any, page: Path, width: int = WIDTHS[0], scheme: str = "light") -> Iterator[Any]:
    """A page in a window of this width; its errors, and whatever it writes to the console, fail the test."""
    tab = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab.set_default_timeout(PATIENCE)
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(page.as_uri())
    try:
        yield tab
        assert said == []
    finally:
        tab.close()


def overflowing(tab: Any) -> int:
    """By how many pixels the page is wider than the window."""
    wider: int = tab.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return wider
