"""Result files: one JSON file a method, problem, split and seed, with all that is needed to make it again."""

from __future__ import annotations

import io
import json
import platform
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from tradi import __version__
from tradi.bench.evaluation import Pictures
from tradi.bench.files import folder_name, is_of_a_quick_run
from tradi.storage.atomic import write_whole
from tradi.storage.typed import built

UNPACKED = 16 << 20  # bytes of pictures in one file, at the most; the largest under results/ has 350 kB


@dataclass(frozen=True)
class Key:
    """What a result is of."""

    benchmark: str
    variant: str
    method: str
    seed: int
    split: int

    def path(self, out: Path) -> Path:
        """Where it is kept."""
        place = map(folder_name, (self.benchmark, self.variant, self.method))
        return out.joinpath(*place) / f"seed-{self.seed}-split-{self.split}.json"

    def is_done(self, out: Path) -> bool:
        """Whether the result is there, and whole."""
        try:
            read_result(self.path(out))
        except (OSError, ValueError):
            return False
        return True


@dataclass(frozen=True)
class Result:
    """What came out of one method on one problem.

    Args:
        key: what it is of.
        metrics: numbers, by name.
        curves: what the figures are drawn from.
        settings: everything that was chosen before.
        notes: what the method has to say, such as the scale it chose.
        seconds: training (all its runs and its own tracking), tracking, preparing (scale, refresh), predicting.
        peak_memory_mb: of the process while it ran it, with the training runs that it was the first to need.
        made_by: command, versions and commit.
    """

    key: Key
    metrics: dict[str, float]
    curves: dict[str, Any]
    settings: dict[str, Any]
    notes: dict[str, Any]
    seconds: dict[str, float]
    peak_memory_mb: float
    made_by: dict[str, Any]

    def write(self, out: Path) -> Path:
        """Put the file in its place."""
        return write_whole(self.key.path(out), json.dumps(asdict(self), separators=(",", ":")) + "\n")


def read_result(path: Path) -> Result:
    """The result in a file, or an error that says what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        metrics = content.get("metrics")
        result = built(Result, content | {"metrics": {}}, "it")  # metrics may be infinite, or no number at all
        if not isinstance(metrics, dict) or not all(type(number) in (int, float) for number in metrics.values()):
            raise TypeError("its metrics are not all numbers")
        return replace(result, metrics=metrics)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a result file: {error}; run the benchmark again to replace it") from error


def read_results(out: Path) -> list[Result]:
    """All results in a folder, in the order of their paths; those of quick runs lie in a folder of their own."""
    if not out.is_dir():
        raise FileNotFoundError(f"{out} is not a folder of results: run `tradi bench NAME --out {out}` first")
    paths = sorted(path for path in out.rglob("seed-*.json") if not is_of_a_quick_run(path, out))
    return [read_result(path) for path in paths]


def write_pictures(key: Key, out: Path, pictures: Pictures) -> Path:
    """Keep what pictures are drawn from beside the result: predictions only, never images of the data set."""
    content = io.BytesIO()
    np.savez_compressed(content, **pictures)  # type: ignore[arg-type]
    return write_whole(key.path(out).with_suffix(".npz"), content.getvalue())


def read_pictures(key: Key, out: Path) -> Pictures | None:
    """What `write_pictures` kept of a result, if it did."""
    path = key.path(out).with_suffix(".npz")
    if not path.exists():
        return None
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            size = sum(entry.file_size for entry in file.zip.infolist())
            if size > UNPACKED:
                raise ValueError(f"it would unpack to {size:,} bytes, and pictures have {UNPACKED:,} at the most")
            return dict(file)
    except Exception as error:  # whatever a decoder may say of a damaged file
        raise ValueError(
            f"{path} cannot be read ({error}): delete it, and its result too to make both again"
        ) from error


def forget_peak_memory() -> None:
    """Let `peak_memory_mb` count from here, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> float:
    """Largest resident size of this process since `forget_peak_memory`; where that cannot be had, since its start."""
    with suppress(OSError, ValueError):
        (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return int(peak) / 1024
    import resource  # not on Windows, where results can still be read

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


@cache
def made_by() -> dict[str, Any]:
    """Versions and commit of what runs here."""
    return {
        "tradi": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "numpy", "torchmetrics", "scikit-learn", "ivon-opt")},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Commit that this package is of, marked if files of it were changed since; None for an installed one."""
    here = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, check=True, capture_output=True, text=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")  # not somebody's repository around an installed package
        changed = git("status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "HEAD") + ("-changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
