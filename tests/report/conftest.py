from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.made import COMMITTED
from tradi.report.page import write_report


@pytest.fixture(scope="session")
def committed_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the results in this repository, without any data."""
    return write_report(COMMITTED, tmp_path_factory.mktemp("report"))
