from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Read before the tests change the environment.
ROOT = Path(os.environ.get("TRADI_DATA") or Path(__file__).parents[2] / "shared" / "data")
NEEDED = ("mnist", "notMNIST_small.tar.gz", "UCI_Datasets", "cifar-10-batches-bin", "CamVid")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The real data, where it is to be had."""
    missing = [name for name in NEEDED if not (ROOT / name).exists()]
    if missing:
        pytest.skip(f"no {', '.join(missing)} in {ROOT}: set TRADI_DATA to a folder with the real data")
    return ROOT


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees or fills the user's own cache, or depends on where the user's data lies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("TRADI_DATA", raising=False)
        yield
