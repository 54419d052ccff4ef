from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tradi.storage.folders import check_replaceable_folder, replacing_folder

FILES = ("weights", "readme")


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def write(path: Path, text: str) -> None:
    with replacing_folder(path, FILES) as partial:
        for name in FILES:
            (partial / name).write_text(text)


def test_a_folder_takes_the_place_of_an_older_one_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write(path, "before")
    with replacing_folder(path, FILES) as partial:
        (partial / "weights").write_text("after")
        assert contents(path) == dict.fromkeys(FILES, "before")
    assert contents(tmp_path) == {"model/weights": "after"}


def test_what_was_there_stays_if_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write(path, "before")
    with pytest.raises(TypeError, match="data must be str"):
        write(path, b"no text")  # type: ignore[arg-type]
    assert contents(tmp_path) == {f"model/{name}": "before" for name in FILES}


@pytest.mark.parametrize("before", [True, False])
def test_what_was_there_is_put_back_if_the_new_one_cannot_be_renamed(
    before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "model", Path.rename
    if before:
        write(path, "before")

    def full(self: Path, target: Any) -> Path:
        if Path(target) == path and not self.name.endswith(".old"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space left"):
        write(path, "after")
    assert contents(tmp_path) == ({f"model/{name}": "before" for name in FILES} if before else {})


def test_a_folder_that_cannot_be_written_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere does not exist: make it, or write elsewhere"):
        check_replaceable_folder(tmp_path / "nowhere" / "model", FILES)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(FileExistsError, match=f"{name} is there already and is no folder"):
            check_replaceable_folder(tmp_path / name, FILES)
    write(tmp_path / "model", "before")
    (tmp_path / "model" / "notes").write_text("mine")
    with pytest.raises(FileExistsError, match="holds 'notes', which would be lost"):
        check_replaceable_folder(tmp_path / "model", FILES)
    monkeypatch.setattr(os, "access", lambda *_: False)  # who runs the tests may be allowed to write anywhere
    with pytest.raises(PermissionError, match="may not be written to: write elsewhere"):
        check_replaceable_folder(tmp_path / "model", FILES)
