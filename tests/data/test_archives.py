from __future__ import annotations

import gzip
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from tests.data.hostile import MIB, gzip_bomb, header, sparse
from tests.data.samples import link, tar
from tradi.data.archives import members

PATTERN = r"set/(\w+\.txt)"


def read(folder: Path, content: bytes) -> dict[str, bytes]:
    path = folder / "some.tar.gz"
    path.write_bytes(content)
    return {match[1]: content for match, content in members(path, PATTERN)}


def test_wanted_files_are_read_and_nothing_is_written(tmp_path: Path) -> None:
    content = tar({"set/a.txt": b"A", "set/other.png": b"", "elsewhere/b.txt": b"", "set/c.txt": b"C"})
    assert read(tmp_path, content) == {"a.txt": b"A", "c.txt": b"C"}
    assert [path.name for path in tmp_path.iterdir()] == ["some.tar.gz"]


def test_an_archive_need_not_be_packed(tmp_path: Path) -> None:
    assert read(tmp_path, gzip.decompress(tar({"set/a.txt": b"A"}))) == {"a.txt": b"A"}


@pytest.mark.parametrize("name", ["/etc/a.txt", "../a.txt", "set/../../a.txt", "set/.."])
def test_an_archive_with_a_way_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"some\.tar\.gz contains .*, which leads outside the archive"):
        read(tmp_path, tar({"set/good.txt": b"", name: b"bad"}))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_a_wanted_name_must_be_a_regular_file(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ValueError, match=r"contains 'set/a\.txt', which is a link or too large"):
        read(tmp_path, tar({}, [link("set/a.txt", str(tmp_path / "secret"), kind)]))


def test_links_that_nobody_asked_for_are_passed_over(tmp_path: Path) -> None:
    assert read(tmp_path, tar({"set/a.txt": b"A"}, [link("set/link", "/etc/passwd")])) == {"a.txt": b"A"}


def test_a_member_that_is_too_large_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tradi.data.archives.LARGEST", 10)
    assert read(tmp_path, tar({"set/a.txt": bytes(10)})) == {"a.txt": bytes(10)}
    with pytest.raises(ValueError, match="a link or too large"):
        read(tmp_path, tar({"set/a.txt": bytes(11)}))


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    whole = tar({"set/a.txt": bytes(range(256)) * 40})
    broken = {
        "cut short": whole[: len(whole) // 2],
        "last bytes missing": whole[:-1],
        "checksum wrong": whole[:-8] + bytes(4) + whole[-4:],
        "cut short and not packed": gzip.decompress(whole)[:5000],
        "no gzip": b"plainly not an archive",
        "gzip but no tar": gzip.compress(b"plainly not an archive" * 100),
        "empty": b"",
    }
    for content in broken.values():
        with pytest.raises(
            ValueError, match=r"some\.tar\.gz is damaged or not a tar archive .*: delete it and fetch it again"
        ):
            read(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (gzip_bomb(header("elsewhere.bin", 200 * MIB), 201), "unpacks to more than 16,777,216 bytes"),
        (gzip_bomb(header("set/a.txt", 0) + bytes(1024), 40), "unpacks to more than 16,777,216 bytes"),
        (gzip_bomb(header("x", 200 * MIB, tarfile.GNUTYPE_LONGNAME), 201), "has a header of more than 65,536 bytes"),
        (gzip_bomb(header("x", 200 * MIB, tarfile.XHDTYPE), 201), "has a header of more than 65,536 bytes"),
        (gzip.compress(header("x", 0) * 51), "contains more than 50 files"),
        (sparse("set/a.txt", 1 << 40), "larger than what is stored of it"),
        (gzip.compress(header("set\\..\\a.txt", 0) + bytes(1024)), "leads outside the archive"),
    ],
    ids=["a file nobody asked for", "beyond the end", "long name", "pax header", "many files", "sparse", "backslash"],
)
def test_a_bomb_is_refused_while_it_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, cause: str
) -> None:
    monkeypatch.setattr("tradi.data.archives.UNPACKED", 16 * MIB)
    monkeypatch.setattr("tradi.data.archives.MEMBERS", 50)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=rf"some\.tar\.gz .*{cause}.*: do not trust this file"):
            read(tmp_path, content)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_headers_that_were_read_are_let_go_of(tmp_path: Path) -> None:
    names = [f"set/{number:07}{'x' * 80}.txt" for number in range(3000)]
    (tmp_path / "some.tar").write_bytes(tar(dict.fromkeys(names, b"")))
    tracemalloc.start()
    try:
        seen = sum(1 for _ in members(tmp_path / "some.tar", PATTERN))
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()
    assert seen == 3000


def test_many_long_names_are_no_bomb(tmp_path: Path) -> None:
    names = [f"set/{'x' * 5000}{number}.txt" for number in range(20)]
    assert len(read(tmp_path, tar(dict.fromkeys(names, b"a")))) == 20
