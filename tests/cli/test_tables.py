"""`tradi fit` and `tradi predict`, as a user types them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.tables.samples import file_of, houses
from tradi.cli.main import main

QUICK = ("--steps", "50", "--members", "3")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    table = houses(200)
    table.loc[:3, "price"] = None
    command("fit", file_of(table, folder / "houses.csv"), "--target", "price", "--out", folder / "model", *QUICK)
    return folder


def command(*words: object) -> None:
    main([str(word) for word in words])


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command says that exits with code 2."""
    with pytest.raises(SystemExit) as stopped:
        command(*words)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(("source", "out"), [("new.csv", "out.parquet"), ("new.parquet", "out.csv")])
def test_from_a_file_to_predictions(room: Path, source: str, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = houses(30, seed=1).drop(columns="price")
    rows.loc[0, "town"] = "Atlantis"
    command("predict", room / "model", file_of(rows, room / source), "--out", room / out)
    said = capsys.readouterr().out
    assert "30 rows" in said
    assert "'town': 1 of 30 rows have a value, or a gap, that no training row has" in said
    found = pd.read_csv(room / out) if out.endswith(".csv") else pd.read_parquet(room / out)
    assert len(found) == 30
    assert {"prediction", "lower_95", "ood_score", "is_ood"} <= set(found.columns)
    assert found["is_ood"].dtype == bool


def test_fit_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(houses(200), tmp_path / "houses.parquet")
    words = ("--target", "dear", "--out", tmp_path / "model", "--exclude", "price", "--exclude", "rooms", "--seed", "1")
    command("fit", path, *words, *QUICK)
    said = capsys.readouterr().out
    for part in (
        "dear: 2 classes: 'no', 'yes', from 3 columns",
        "'price': excluded as asked",
        "'owner': it has 200 different texts",
        "rows: 160 training, 20 held out, 20 test",
        "accuracy",
        "report.html",
    ):
        assert part in said, part
    assert (tmp_path / "model" / "report.html").stat().st_size > 0


def table(**columns: Any) -> Any:
    return pd.DataFrame({"a": range(30), "b": [0.5, 2, 7] * 10, "y": [i / 7 for i in range(30)]} | columns)


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (table(), ("--target", "z"), "there is no column 'z'"),
        (table(y=1), ("--target", "y"), "nothing to predict"),
        (table(y=None), ("--target", "y"), "0 of 30 rows have a value of 'y'"),
        (table()[:0], ("--target", "y"), "no rows"),
        (table(), ("--target", "y", "--exclude", "b"), "no column is left to predict 'y' from"),
        (table(), ("--target", "y", "--exclude", "c"), "not there: 'c'"),
        (table(), ("--target", "y", "--exclude", "y"), "cannot be excluded"),
        (table(), ("--target", "y", "--members", "0"), "members must be at least 1"),
        (table(), ("--target", "y", "--seed", "-1"), "seed must be"),
        (table(y=list("ab") * 15), ("--target", "y", "--task", "regression"), "'a' among numbers, in row 1"),
        (table(), ("--target", "y", "--task", "classes"), "30 different values in 30 rows"),
        (table().rename(columns={"a": "b"}), ("--target", "y"), "several columns of the same name"),
    ],
)
def test_a_table_that_cannot_be_fitted_is_refused(
    tmp_path: Path, content: Any, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(content, tmp_path / "t.csv")
    assert message in refused(capsys, "fit", path, *words, "--out", tmp_path / "model")
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_a_place_that_cannot_be_written_is_refused_before_training(
    room: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tradi.tables.fitting.fit", lambda *_: pytest.fail("it trained"))
    words = ("fit", room / "houses.csv", "--target", "price", "--out")
    assert "does not exist" in refused(capsys, *words, room / "nowhere" / "model")
    assert "is no folder" in refused(capsys, *words, room / "houses.csv")
    assert "would be lost" in refused(capsys, *words, room)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns=["size", "town"]), "columns are missing: 'size', 'town'"),
        (lambda rows: rows.assign(size="big"), "'size' holds numbers in the training rows, and 'big' in row 1"),
        (lambda rows: rows[:0], "no rows"),
        (lambda rows: rows.rename(columns={"owner": "town"}), "several columns of the same name: 'town'"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused(
    room: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(change(houses(30)), room / "wrong.csv")
    assert message in refused(capsys, "predict", room / "model", path, "--out", room / "wrong-out.csv")
    assert not (room / "wrong-out.csv").exists()


def test_other_mistakes_are_named(room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = file_of(houses(30), tmp_path / "rows.csv")
    text = tmp_path / "rows.txt"
    text.write_text("hello")
    out = tmp_path / "out.csv"
    assert "neither .csv nor .parquet" in refused(capsys, "predict", room / "model", text, "--out", out)
    assert "No such file" in refused(capsys, "predict", room / "model", tmp_path / "none.csv", "--out", out)
    assert "is not a model" in refused(capsys, "predict", tmp_path, rows, "--out", out)
    assert "must end in .csv" in refused(capsys, "predict", room / "model", rows, "--out", tmp_path / "out.xls")
    assert "does not exist" in refused(capsys, "predict", room / "model", rows, "--out", tmp_path / "no" / "out.csv")


@pytest.mark.parametrize("words", [("fit", "t.csv", "--target", "y"), ("predict", "model", "t.csv")])
def test_a_missing_extra_is_named(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install 'tradi[tables]'" in refused(capsys, *words, "--out", "out.csv")
