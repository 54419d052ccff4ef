from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tradi.storage.states import read_state, write_state
from tradi.storage.tensors import HASH, read_tensors, write_tensors

STATE: dict[Any, Any] = {
    "steps": 3,
    "taken": {10: 1, 2: 2},
    "options": {"rate": 0.1, "joint": False, "kind": "é", "most": float("-inf"), "drift": float("nan")},
    "weights": {"b/c": {"d": torch.ones(2, dtype=torch.bfloat16)}, "b": {"c/d": torch.tensor(1e-30)}},
    "empty": {},
}


WRONG: tuple[Any, ...] = (
    *(None, [], {}, "x", 3, [3], [[3]], [[[], 3]]),
    *({"number": "x"}, {"tensor": "x"}, {"number": None}),
)


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


def places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [pair for key in keys for pair in ((value, key), *places(value[key]))]


def test_a_forged_state_is_one_or_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, STATE)
    tensors, about = read_tensors(path)
    assert about is not None
    said = {key: value for key, value in about.items() if key != HASH}
    refused = []
    for place, word in itertools.product(range(len(places(said))), WRONG):
        forged = copy.deepcopy(said)
        inside, key = places(forged)[place]
        inside[key] = word
        write_tensors(path, tensors, forged)
        try:
            assert isinstance(read_state(path), dict)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(text.startswith(f"{path} cannot be loaded: ") for text in refused)
    del said["state"]
    write_tensors(path, tensors, said)
    with pytest.raises(ValueError, match="its state is no list of pairs"):
        read_state(path)
