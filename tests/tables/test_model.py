"""Fitting, predicting, and the folder in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tables.samples import classed, file_of, fitted, houses, priced
from tradi.tables.findings import Findings
from tradi.tables.frames import TableError, read
from tradi.tables.model import CLOUD, ENSEMBLE, MODEL, REPORT, TableModel, load
from tradi.tables.page import page

NUMBERS = ["prediction", "std", *(f"{end}_{p}" for p in (50, 90, 95) for end in ("lower", "upper"))]

Fitted = tuple[TableModel, Findings]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def price(room: Path) -> Fitted:
    return priced(room)


@pytest.fixture(scope="module")
def dear(room: Path) -> Fitted:
    return classed(room)


def new_rows(room: Path, rows: int = 200) -> Any:
    return read(file_of(houses(rows, seed=1), room / "new.parquet"))


def test_numbers_come_with_error_bars_and_quantiles_in_order(price: Fitted, room: Path) -> None:
    found, unseen = price[0].predict(new_rows(room))
    assert list(found.columns) == [*NUMBERS, "ood_score", "is_ood"]
    assert unseen == {}
    ordered = found[["lower_95", "lower_90", "lower_50", "prediction", "upper_50", "upper_90", "upper_95"]].to_numpy()
    assert (np.diff(ordered, axis=1) > 0).all()
    truth = houses(200, seed=1)["price"]
    assert np.abs(found["prediction"] - truth).mean() < 40  # always guessing the mean: 100
    assert ((found["lower_90"] < truth) & (truth < found["upper_90"])).mean() > 0.75


def test_classes_come_with_probabilities(dear: Fitted, room: Path) -> None:
    found, _ = dear[0].predict(new_rows(room))
    assert list(found.columns) == ["prediction", "p_no", "p_yes", "entropy", "ood_score", "is_ood"]
    assert np.allclose(found["p_no"] + found["p_yes"], 1)
    assert (found["prediction"] == houses(200, seed=1)["dear"]).mean() > 0.9
    assert (found["prediction"] == np.where(found["p_yes"] > 0.5, "yes", "no")).all()


@pytest.mark.parametrize("target", ["price", "dear"])
def test_rows_far_outside_are_flagged_and_good_ones_are_not(
    target: str, room: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(target)[0]
    good = new_rows(room)
    assert model.predict(good)[0]["is_ood"].mean() < 0.1
    for column, value in (("size", 600.0), ("rooms", -15.0), ("town", "Atlantis")):
        assert model.predict(good.assign(**{column: value}))[0]["is_ood"].mean() > 0.9, column
    small_with_many_rooms = good.assign(size=25.0, rooms=8.0)  # each by itself inside its range
    assert model.predict(small_with_many_rooms)[0]["is_ood"].mean() > 0.9


def test_unseen_categories_and_gaps_are_counted(price: Fitted, room: Path) -> None:
    rows = new_rows(room)
    rows.loc[:4, "town"] = "Atlantis"
    rows.loc[:2, "size"] = np.nan
    assert price[0].predict(rows)[1] == {"size": 3, "town": 5}


def test_chunks_make_no_difference(price: Fitted, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = new_rows(room)
    whole = price[0].predict(rows)[0]
    monkeypatch.setattr("tradi.tables.model.CHUNK", 64)
    assert np.allclose(price[0].predict(rows)[0].to_numpy(dtype=float), whole.to_numpy(dtype=float))


def test_the_same_rows_and_seed_give_the_same_folder(room: Path) -> None:
    bytes_of = []
    for name in ("a", "b"):
        model, findings = fitted(houses(60), room, "price", steps=50, seed=3)
        model.save(room / name, page(findings))
        bytes_of.append({path.name: path.read_bytes() for path in (room / name).iterdir()})
    assert bytes_of[0] == bytes_of[1]
    other = fitted(houses(60), room, "price", steps=50, seed=4)[0]
    assert other.description.limits != model.description.limits


@pytest.mark.parametrize("target", ["price", "dear"])
def test_a_loaded_model_predicts_the_same(target: str, room: Path, request: pytest.FixtureRequest) -> None:
    model, findings = request.getfixturevalue(target)
    model.save(room / "model", page(findings))
    model.save(room / "model", page(findings))  # in the place of the older one
    again = load(room / "model")
    assert again.description == model.description
    rows = new_rows(room)
    assert again.predict(rows)[0].equals(model.predict(rows)[0])
    assert sorted(path.name for path in room.glob(".*")) == []


def test_twenty_rows_are_enough_to_fit(room: Path) -> None:
    model, findings = fitted(houses(20), room, "price", steps=50)
    assert model.description.rows == {"training": 15, "held out": 5, "test": 0, "without a target": 0}
    assert not findings.tested
    assert "too few rows for a test" in page(findings)
    assert model.predict(new_rows(room))[0]["is_ood"].mean() < 0.5


def test_a_folder_of_something_else_is_left_alone(price: Fitted, room: Path) -> None:
    folder = room / "photos"
    folder.mkdir()
    (folder / "cat.jpg").touch()
    with pytest.raises(FileExistsError, match=r"holds 'cat.jpg', which would be lost"):
        price[0].save(folder, "")
    assert [path.name for path in folder.iterdir()] == ["cat.jpg"]
    with pytest.raises(FileNotFoundError, match="does not exist"):
        price[0].save(room / "nowhere" / "model", "")


def test_a_disk_that_is_full_leaves_the_older_model(price: Fitted, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, findings = price
    model.save(room / "kept", page(findings))
    before = {path.name: path.read_bytes() for path in (room / "kept").iterdir()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("tradi.tables.model.write_tensors", full)
    with pytest.raises(OSError, match="no space"):
        model.save(room / "kept", "other")
    assert {path.name: path.read_bytes() for path in (room / "kept").iterdir()} == before
    assert sorted(path.name for path in room.glob(".*")) == []


def edited(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        about = json.loads((folder / MODEL).read_text())
        change(about)
        (folder / MODEL).write_text(json.dumps(about))

    return edit


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no model": (lambda folder: (folder / MODEL).unlink(), "is not a model: it has no model.json"),
    "no ensemble": (lambda folder: (folder / ENSEMBLE).unlink(), "is not whole: ensemble.safetensors is missing"),
    "another ensemble": (lambda folder: (folder / ENSEMBLE).write_bytes(b"x"), "copy the whole folder"),
    "another cloud": (lambda folder: (folder / CLOUD).write_bytes(b"x"), "copy the whole folder"),
    "no JSON": (lambda folder: (folder / MODEL).write_text("{"), "its JSON is damaged"),
    "no text": (lambda folder: (folder / MODEL).write_bytes(b"\xff"), "cannot be used"),
    "a list": (lambda folder: (folder / MODEL).write_text("[]"), "of format version None"),
    "the future": (edited(lambda a: a.update(version=2)), "of format version 2"),
    "a text for a number": (edited(lambda a: a["model"]["limits"].update(threshold="1")), "finite number, got '1'"),
    "a negative limit": (edited(lambda a: a["model"]["limits"].update(distance=-1)), "must not be negative"),
    "one class": (edited(lambda a: a["model"]["target"].update(classes=["a"])), "at least 2"),
    "fewer columns": (edited(lambda a: a["model"]["columns"].pop()), "cannot be used"),
    "no columns": (edited(lambda a: a["model"].update(columns=[])), "no columns to predict from"),
    "a huge network": (edited(lambda a: a["model"].update(hidden=[1 << 40])), "hidden must be"),
    "another network": (edited(lambda a: a["model"].update(hidden=[7])), "cannot be used"),
    "something more": (edited(lambda a: a["model"].update(more=1)), "too much"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused_in_plain_words(damage: str, price: Fitted, tmp_path: Path) -> None:
    price[0].save(tmp_path / "model", "")
    change, message = DAMAGE[damage]
    change(tmp_path / "model")
    with pytest.raises(TableError, match=message):
        load(tmp_path / "model")


@pytest.mark.parametrize(
    ("target", "words", "drawn"), [("price", ("RMSE", "CRPS", "inside the 90% interval"), 3), ("dear", ("ECE",), 2)]
)
def test_the_page_says_what_was_done_and_needs_nothing_else(
    target: str, words: tuple[str, ...], drawn: int, request: pytest.FixtureRequest
) -> None:
    model, findings = request.getfixturevalue(target)
    text = page(findings)
    for word in (*words, "NLL", "flagged as OOD", "rows were kept for this page", "Most surprising rows"):
        assert word in text, word
    assert text.count("<svg") == drawn
    assert all(word in text for word in ("color-scheme:light dark", "width=device-width", "currentColor"))
    assert not any(word in text for word in ("#010203", "src=", "<link", "@import"))
    assert f"{model.description.limits.threshold:.3f}" in text


def test_names_from_the_table_are_escaped(room: Path) -> None:
    table = houses(60).rename(columns={"size": "<script>", "price": "<b>price"})
    text = page(fitted(table, room, "<b>price", steps=50)[1])
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "<b>price" not in text


def test_a_report_has_a_name_and_no_other_files_are_written(price: Fitted, tmp_path: Path) -> None:
    price[0].save(tmp_path / "model", "page")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == sorted([MODEL, ENSEMBLE, CLOUD, REPORT])
    assert (tmp_path / "model" / REPORT).read_text() == "page"
