from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.data.samples import link, png, tar
from tradi.data import notmnist
from tradi.data.notmnist import measure


def letter(seed: int) -> Tensor:
    return torch.randint(256, (28, 28), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


# Not in the order of names, as in a tar.
FILES = {
    "J/z.png": png(letter(3)),
    "A/b.png": png(letter(1)),
    "A/a.png": png(letter(0)),
    "B/colour.png": png(letter(2), "RGB"),
    "B/readme.txt": b"no image, and not named like one",
    "K/a.png": png(letter(4)),
}
UNREADABLE = {
    "A/empty.png": b"",
    "A/text.png": b"no image",
    "B/narrow.png": png(letter(5)[:, :27]),
    "B/cut.png": png(letter(6))[:60],
    "C/jpeg.png": b"\xff\xd8\xff\xe0" + bytes(100),
}


def write_archive(root: Path, files: dict[str, bytes], prefix: str = "") -> Path:
    path = root / "notMNIST_small.tar.gz"
    path.write_bytes(tar({f"{prefix}notMNIST_small/{name}": content for name, content in files.items()}))
    return path


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / "notMNIST_small" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root / "notMNIST_small"


@pytest.mark.parametrize("packed", [True, False])
def test_letters_come_in_order_and_unreadable_files_are_counted(tmp_path: Path, packed: bool) -> None:
    (write_archive if packed else write_folder)(tmp_path, FILES | UNREADABLE)
    data = notmnist(tmp_path)
    assert torch.equal(data.images, torch.stack([letter(seed) for seed in range(4)]))
    assert data.images.dtype == torch.uint8
    assert data.labels.tolist() == [0, 0, 1, 9]
    assert data.skipped == len(UNREADABLE)


def test_contents_have_one_checksum_however_they_are_packed(tmp_path: Path) -> None:
    archive = write_archive(tmp_path, FILES, prefix="./")
    folder = write_folder(tmp_path, FILES | UNREADABLE)
    assert measure(archive) == measure(folder)
    assert measure(archive)[0] == 4
    changed = write_archive(tmp_path, FILES | {"A/a.png": png(letter(7))})
    assert measure(changed)[1] != measure(folder)[1]


def test_a_file_is_decoded_once_and_the_data_root_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for write in (write_archive, write_folder):
        root = tmp_path / write.__name__
        root.mkdir()
        write(root, FILES)
        before = sorted(root.rglob("*"))
        first = notmnist(root)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "PIL.Image", None)  # nothing can be decoded now
            again = notmnist(root)
        assert torch.equal(first.images, again.images)
        assert torch.equal(first.labels, again.labels)
        assert again.skipped == 0
        assert sorted(root.rglob("*")) == before
    assert len(list((tmp_path / "cache/tradi/decoded").iterdir())) == 2


def test_a_change_of_the_source_is_noticed(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, FILES)
    stat = (folder / "A/a.png").stat()
    assert torch.equal(notmnist(tmp_path).images[0], letter(0))
    (folder / "A/a.png").write_bytes(png(letter(8)))
    os.utime(folder / "A/a.png", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert torch.equal(notmnist(tmp_path).images[0], letter(8))
    archive = write_archive(tmp_path, {"A/a.png": png(letter(0))})
    assert torch.equal(notmnist(tmp_path).images[0], letter(0))  # the archive goes first
    stat = archive.stat()
    write_archive(tmp_path, {"A/a.png": png(letter(9))})
    os.utime(archive, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert torch.equal(notmnist(tmp_path).images[0], letter(9))


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path, {"A/a.png": png(letter(10))})
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r"pip install 'tradi\[images\]'"):
        notmnist(tmp_path)


def test_missing_empty_and_hostile_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"notMNIST_small\.tar\.gz or .*notMNIST_small is missing"):
        notmnist(tmp_path)
    path = write_archive(tmp_path, UNREADABLE)
    with pytest.raises(ValueError, match=r"notMNIST_small\.tar\.gz holds no readable 28x28 PNG"):
        notmnist(tmp_path)
    path.write_bytes(tar({}, [link("notMNIST_small/A/a.png", "/etc/passwd")]))
    with pytest.raises(ValueError, match="a link or too large"):
        notmnist(tmp_path)


def test_an_image_of_enormous_size_is_skipped_without_decoding(tmp_path: Path) -> None:
    whole = png(letter(0))
    bomb = whole[:16] + (50_000).to_bytes(4, "big") * 2 + whole[24:]  # width and height in the PNG's header
    write_archive(tmp_path, FILES | {"A/bomb.png": bomb})
    assert notmnist(tmp_path).skipped == 1


def test_the_real_notmnist(data_root: Path) -> None:
    data = notmnist(data_root)
    assert data.images.shape == (18_724, 28, 28)
    assert sorted(data.labels.bincount().tolist()) == [1872] * 6 + [1873] * 4
    assert data.images.float().std() > 50
