from __future__ import annotations

import math
from collections import UserDict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from tradi.ensemble.joining import appended, concatenated, joined, put, room, stacked


@pytest.mark.parametrize(
    ("one", "other"), [(0.5, 0.25), ("text", "other"), (True, False), (3, 4), (math.nan, 0.0), (0.0, math.nan)]
)
def test_constants_in_outputs_must_be_the_same_in_all_batches(one: Any, other: Any) -> None:
    same = joined(concatenated, [{"x": torch.ones(2), "c": 3}] * 2)
    assert same["c"] == 3
    assert len(same["x"]) == 4
    with pytest.raises(TypeError, match=f"an output of type {type(one).__name__} cannot be joined"):
        joined(concatenated, [{"c": one}, {"c": other}])


@dataclass(frozen=True)
class Found:
    """Boxes that a network returns, and how many classes it knows."""

    boxes: Tensor
    classes: int
    area: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.boxes.prod(1))


def test_dataclasses_and_mappings_keep_their_form() -> None:
    parts = [Found(torch.full((2, 2), float(i)), 3) for i in (1, 2)]
    whole = joined(concatenated, parts)
    assert (whole.classes, whole.area.tolist()) == (3, [1, 1, 4, 4])
    mapped = joined(concatenated, [UserDict(x=part.boxes, none=None) for part in parts])
    assert isinstance(mapped, UserDict)
    assert (len(mapped["x"]), mapped["none"]) == (4, None)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"x": torch.ones(1)}, {"y": torch.ones(1)}, "outputs differ in form"),
        (UserDict(x=torch.ones(1)), UserDict(y=torch.ones(1)), r"outputs differ in form: keys .*'x'.*'y'"),
        ((torch.ones(1),), (torch.ones(1),) * 2, "outputs differ in form"),
        (torch.ones(1), [torch.ones(1)], r"outputs differ in form: \['Tensor', 'list'\]"),
        (object(), object(), "an output of type object cannot be joined .* or call predict"),
    ],
)
def test_outputs_of_several_forms_are_an_error(one: Any, other: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        joined(concatenated, [one, other])


def test_shapes_must_agree_beside_the_axis_that_is_joined() -> None:
    assert stacked([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    assert appended([torch.ones(3, 2, 5), torch.ones(3, 4, 5)]).shape == (3, 6, 5)
    with pytest.raises(TypeError, match=r"differ in shape beside their first axis, \[\(4,\), \(5,\)\]$"):
        appended([torch.ones(3, 2, 5), torch.ones(3, 2, 4)])
    with pytest.raises(TypeError, match="pad all batches to one length"):
        concatenated([torch.ones(2, 5), torch.ones(2, 4)])
    with pytest.raises(TypeError, match="returns a single number, such as a loss"):
        concatenated([torch.ones(2), torch.tensor(1.0)])


def test_members_fill_a_room_one_by_one_and_must_be_of_one_form() -> None:
    rows = room(3, [torch.ones(2, 4)])
    for i in range(3):
        assert put(i, (rows, torch.full((2, 4), float(i)))).data_ptr() == rows[i].data_ptr()
    assert rows[:, 0, 0].tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match=r"\(2, 4\), torch.float32 of member 0 and \(2, 3\), torch.float32 of member 1"):
        put(1, (rows, torch.ones(2, 3)))
    with pytest.raises(TypeError, match=r"torch.float64 of member 2"):
        put(2, (rows, torch.ones(2, 4, dtype=torch.float64)))
