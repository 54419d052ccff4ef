"""Every example runs, at small size, and ends in what it promises."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_regression_on_a_csv_draws_its_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("regression_csv").main(steps=300)
    assert "of 89 targets are inside their 90% interval" in capsys.readouterr().out
    assert (tmp_path / "regression_csv.png").stat().st_size > 10_000


def test_segmentation_of_made_images_doubts_what_it_never_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRADI_DATA", raising=False)
    example("segmentation").main(epochs=2)
    assert "average mutual information on others" in capsys.readouterr().out
    assert (tmp_path / "segmentation.png").stat().st_size > 10_000


def test_a_detector_of_made_images_draws_boxes_and_their_ellipses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example("detection").main(epochs=4)
    assert "squares found:" in capsys.readouterr().out
    assert (tmp_path / "detection.png").stat().st_size > 10_000


def test_labels_are_asked_for_and_learning_curves_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("active_learning").main(rounds=3, epochs=10, seeds=2)
    header, *rows, _ = capsys.readouterr().out.splitlines()
    assert header.split()[-3:] == ["20", "40", "60"]
    by_chance, asked_for = ([float(figure) for figure in row.split()[-3:]] for row in rows)
    assert by_chance[0] == asked_for[0]  # the same first labels
    assert all(0 < figure <= 100 for figure in (*by_chance, *asked_for))
    assert (tmp_path / "active_learning.png").stat().st_size > 10_000


def test_characters_of_a_language_model_are_drawn_in_ink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("language_model").main(steps=20, length=24, width=8)
    _, *rows, _ = capsys.readouterr().out.splitlines()
    assert [row[:18].strip() for row in rows] == ["code", "shuffled letters", "base64", "docstrings"]
    assert all(float(figure) >= 0 for row in rows for figure in row[18:].split())
    assert (tmp_path / "language_model.png").stat().st_size > 10_000


def test_a_killed_training_ends_as_the_one_that_was_not(capsys: pytest.CaptureFixture[str]) -> None:
    example("resume_after_kill").main()
    printed = capsys.readouterr().out
    assert "ended with -9" in printed
    assert "resumed after epoch 3" in printed
    assert [line.split()[-1] for line in printed.splitlines()[-4:]] == ["True"] * 4


@pytest.mark.filterwarnings("ignore:scale 0")  # which twenty images may well ask for
def test_a_few_images_of_new_digits_are_learnt_with_and_without_a_prior(capsys: pytest.CaptureFixture[str]) -> None:
    example("transfer").main(epochs=4, images=20)
    *rows, tracker = capsys.readouterr().out.splitlines()[1:]
    assert [row[:22].strip() for row in rows] == ["the network alone", "TRADI", "TRADI with a prior"]
    assert "prior of 4 weight tensors, 2 start fresh (second.weight, second.bias)" in tracker


def test_workers_of_ray_predict_what_one_process_does() -> None:
    pytest.importorskip("ray", reason="the example needs Ray")
    env = os.environ | {"OMP_NUM_THREADS": "1", "RAY_raylet_start_wait_time_s": "300"}
    command = [sys.executable, str(EXAMPLES / "ray_inference.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1024 points by 2 workers, identical to one process: True" in done.stdout


@pytest.mark.filterwarnings("ignore:all members are the trained network")  # Laplace's, after so few epochs
def test_methods_are_compared_in_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    example("compare_methods").main(epochs=4, networks=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8
    assert all(0 <= float(figure) <= 100 for line in lines[1:] for figure in line.split()[-3:])


@pytest.mark.filterwarnings("ignore")  # of Hugging Face itself, about pinned memory and old names
def test_adapters_doubt_words_that_they_never_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("transformers_lora").main(epochs=1)
    printed = capsys.readouterr().out
    assert "tradi_mutual_information" in printed
    learnt, never_seen = (line.split() for line in printed.splitlines()[-2:])
    assert (learnt[0], learnt[-3], never_seen[-3]) == ("words", "100", "100")
    assert all(0 <= float(number) <= 1 for number in (*learnt[-2:], *never_seen[-2:]))
    assert (tmp_path / "out" / "posterior.safetensors").is_file()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_run(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # the repository keeps none
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any("image/png" in out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", []))


def test_every_example_is_on_its_page() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    assert all(f"`examples/{path.name}`" in page for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))
