from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tradi.extras import require


def test_a_module_that_is_there() -> None:
    assert require("json", "anything") is json


def test_a_missing_module_names_the_extra() -> None:
    with pytest.raises(ImportError, match=r"no_such_module.*pip install 'tradi\[metrics\]'"):
        require("no_such_module", "metrics")


def test_nothing_optional_is_imported_with_the_package() -> None:
    code = (
        "import sys, tradi.metrics, tradi.report.figures; "
        "print([m for m in ('torchmetrics', 'sklearn', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
