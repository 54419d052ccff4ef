from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tradi.cli.main import main
from tradi.data.catalogue import CATALOGUE


def test_the_list_names_every_set_with_its_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "list", "--data", str(tmp_path)])
    printed = capsys.readouterr().out
    for entry in CATALOGUE.values():
        assert f"0 of {len(entry.parts)} parts" in printed
        for download in entry.downloads:
            assert f"{download.url} -> {download.path}" in printed


def test_the_list_needs_rich_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(SystemExit) as exit_:
        main(["data", "list", "--data", str(tmp_path)])
    assert exit_.value.code == 1
    assert "pip install 'tradi[progress]'" in capsys.readouterr().err


def test_a_check_of_nothing_fails_and_names_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["data", "check", "mnist", "--data", str(tmp_path)])
    assert exit_.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["missing"] * 4
    for line, part in zip(lines, CATALOGUE["mnist"].parts, strict=True):
        assert str(tmp_path / part.paths[0]) in line


def test_a_check_of_the_real_data_passes(data_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "check", "mnist", "uci", "--data", str(data_root)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 22


def test_a_set_of_which_only_a_part_is_here_is_called_partial(
    data_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (data_root / "cifar-10-batches-bin/test_batch.bin").stat().st_size == 10_000 * 3073:
        pytest.skip("CIFAR-10 is complete here")
    with pytest.raises(SystemExit):
        main(["data", "check", "cifar10", "--data", str(data_root)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["partial"] * 6
    assert all("2,000 of 10,000 images" in line for line in lines)


def test_a_fetch_of_what_is_there_downloads_nothing(
    data_root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRADI_DATA", str(data_root))
    monkeypatch.setattr("tradi.data.fetch.urlopen", None)
    main(["data", "fetch", "mnist"])
    assert capsys.readouterr().out.count("ok ") == 4


def test_a_fetch_that_fails_says_so_of_every_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("tradi.data.fetch.urlopen", unreachable)
    with pytest.raises(SystemExit) as exit_:
        main(["data", "fetch", "--data", str(tmp_path)])
    assert exit_.value.code == 1
    printed = capsys.readouterr().out
    for entry in CATALOGUE.values():
        for download in entry.downloads:
            cause = f"{download.url} is for registered users only" if download.by_hand else "no network"
            assert f"failed     {tmp_path / download.path}: {cause}" in printed
            assert download.by_hand or f"download {download.url} by other means" in printed


def test_an_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="unknown data set cifar: choose from mnist, notmnist, uci"):
        main(["data", "check", "mnist", "cifar"])
    assert capsys.readouterr().out == ""
