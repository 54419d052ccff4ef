from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tradi.storage.states import read_state, write_state
from tradi.storage.tensors import write_tensors

STATE: dict[Any, Any] = {
    "steps": 3,
    "taken": {10: 1, 2: 2},
    "options": {"rate": 0.1, "joint": False, "kind": "é", "most": float("-inf"), "drift": float("nan")},
    "weights": {"b/c": {"d": torch.ones(2, dtype=torch.bfloat16)}, "b": {"c/d": torch.tensor(1e-30)}},
    "empty": {},
}


def test_a_state_is_the_same_after_reading_it(tmp_path: Path) -> None:
    write_state(tmp_path / "state", STATE)
    found = read_state(tmp_path / "state")
    assert repr(found) == repr(STATE)
    assert found["weights"]["b"]["c/d"].item() == torch.tensor(1e-30).item()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1]}, "got list at /a"),
        ({"a": {None: 1}}, r"keys must be .* got \[None\] at /a"),
    ],
)
def test_what_no_state_holds_is_an_error(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        write_state(tmp_path / "state", state)
    assert not (tmp_path / "state").exists()


def test_other_files_and_changed_ones_are_errors_that_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_tensors(path, {}, {"holds": "something else"})
    with pytest.raises(ValueError, match=r"state cannot be loaded: it is not a training state"):
        read_state(path)
    write_state(path, STATE)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="state cannot be loaded: its contents were changed"):
        read_state(path)
