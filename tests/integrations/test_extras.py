"""Where an extra is missing, its integration says how to install it."""

from __future__ import annotations

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("lightning", "lightning.pytorch"),
        ("sklearn", "sklearn"),
        ("skorch", "skorch"),
        ("transformers", "transformers"),
        ("transformers", "accelerate"),
    ],
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, name: str, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, f"tradi.integrations.{name}", raising=False)
    with pytest.raises(ImportError, match=rf"{missing} could not be imported .*pip install 'tradi\[{name}\]'"):
        importlib.import_module(f"tradi.integrations.{name}")
