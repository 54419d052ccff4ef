from __future__ import annotations

from pathlib import Path

import pytest

from tradi.data import data_root
from tradi.data.root import cache_folder, find


def test_what_is_given_goes_before_the_variable_and_that_before_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert data_root() == Path("/caches/tradi")
    monkeypatch.setenv("TRADI_DATA", "/variable")
    assert data_root() == Path("/variable")
    assert data_root("/given") == data_root(Path("/given")) == Path("/given")
    monkeypatch.setenv("TRADI_DATA", "")
    assert data_root() == Path("/caches/tradi")


def test_the_home_folder_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("TRADI_DATA", "~/sets")
    assert data_root() == Path("/home/somebody/sets")


@pytest.mark.parametrize("folder", [None, "", "relative/caches"])
def test_the_cache_is_below_the_home_folder_where_xdg_names_no_absolute_path(
    monkeypatch: pytest.MonkeyPatch, folder: str | None
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME")
    if folder is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
    assert cache_folder() == Path("/home/somebody/.cache/tradi")


def test_the_first_path_that_exists_is_found_and_else_all_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"a\.gz or .*/a is missing: `tradi data fetch letters --data"):
        find(tmp_path, ("a.gz", "a"), "letters")
    (tmp_path / "a").touch()
    assert find(tmp_path, ("a.gz", "a"), "letters") == tmp_path / "a"
    (tmp_path / "a.gz").touch()
    assert find(tmp_path, ("a.gz", "a"), "letters") == tmp_path / "a.gz"
