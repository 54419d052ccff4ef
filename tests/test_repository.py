"""The files that other tools read parse, and name what is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="comes with mkdocs")

ROOT = Path(__file__).parents[1]
FILES = [ROOT / ".pre-commit-config.yaml", *sorted((ROOT / ".github").rglob("*.yml"))]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def parsed(*path: str) -> Any:
    return yaml.safe_load(ROOT.joinpath(*path).read_text())


def texts(part: Any) -> Iterator[str]:
    """All text in a file that was parsed."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from texts(inner)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_parses_and_names_targets_that_there_are(path: Path) -> None:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    for text in texts(found):
        for target in re.findall(r"\bmake ([a-z]+)", text):
            assert target in TARGETS, text
        for tool in re.findall(r"\.venv/bin/(\w+)", text):
            assert f"$(BIN)/{tool} " in (ROOT / "Makefile").read_text(), text


def test_ci_runs_the_tests_on_the_oldest_python_that_is_promised() -> None:
    job = parsed(".github", "workflows", "ci.yml")["jobs"]["test"]
    assert any(step.get("run", "").startswith("make test") for step in job["steps"])
    promised = re.findall(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"][:1] == promised


def test_a_release_is_tested_first_and_needs_no_token() -> None:
    workflow = parsed(".github", "workflows", "release.yml")
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert any(step.get("run", "").startswith("make test") for step in build["steps"])
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert not any("secrets." in text for text in texts(workflow))


def test_issue_forms_have_what_github_asks_for() -> None:
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= form.keys()
        assert len({field["id"] for field in form["body"]}) == len(form["body"])
