"""The OOD score on real tables: what is like the training rows passes, and what is not is flagged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.tables.samples import fitted
from tradi.data.uci import place, read_table


def table_of(name: str, root: Path) -> np.ndarray:
    """Columns of inputs, and the target last."""
    return read_table(root / place(name) / "data.txt").numpy()


@pytest.mark.parametrize(("name", "task"), [("concrete", "regression"), ("wine-quality-red", "classes")])
def test_strange_rows_of_a_real_table_are_flagged(name: str, task: str, data_root: Path, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    table = generator.permutation(table_of(name, data_root))
    names = [f"column {i}" for i in range(table.shape[1])]
    known, x = pd.DataFrame(table[:800], columns=names), table[800:, :-1]
    model, _ = fitted(known, tmp_path, names[-1], task=task)

    def flagged(rows: np.ndarray) -> float:
        return float(model.predict(pd.DataFrame(rows, columns=names[:-1]))[0]["is_ood"].mean())

    low, high, std = (f(table[:800, :-1], axis=0) for f in (np.min, np.max, np.std))
    column = generator.integers(0, x.shape[1], len(x))
    beyond = x.copy()
    beyond[np.arange(len(x)), column] = (2 * high - low)[column]
    other = table_of("bostonHousing", data_root)[:, : x.shape[1]]
    assert flagged(x) < 0.06
    assert flagged(beyond) > 0.9  # one column in each row, one range above its largest value
    assert flagged(x + 5 * std) > 0.9
    assert flagged(np.pad(other, ((0, 0), (0, x.shape[1] - other.shape[1])))) > 0.9
