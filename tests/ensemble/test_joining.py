from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tradi.ensemble.joining import concatenated, joined


@pytest.mark.parametrize(
    ("one", "other"), [(0.5, 0.25), ("text", "other"), (True, False), (3, 4), (math.nan, 0.0), (0.0, math.nan)]
)
def test_constants_in_outputs_must_be_the_same_in_all_batches(one: Any, other: Any) -> None:
    same = joined(concatenated, [{"x": torch.ones(2), "c": 3}] * 2)
    assert same["c"] == 3
    assert len(same["x"]) == 4
    with pytest.raises(TypeError, match=f"an output of type {type(one).__name__} cannot be joined"):
        joined(concatenated, [{"c": one}, {"c": other}])
