"""Small tables, and models of them that are trained in a second."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tradi.tables.findings import Findings
from tradi.tables.fitting import Settings, fit
from tradi.tables.frames import read
from tradi.tables.model import TableModel


def houses(rows: int = 300, seed: int = 0) -> Any:
    """Every kind of column, a price to predict, and a class."""
    generator = np.random.default_rng(seed)
    size = generator.uniform(20, 200, rows)
    town = generator.choice(["Metz", "Nancy", "Paris"], rows)
    rooms = (size / 25 + generator.normal(0, 0.5, rows)).round()
    table = pd.DataFrame(
        {
            "number": np.arange(1, rows + 1),
            "size": size.round(2),
            "rooms": np.where(generator.random(rows) < 0.1, np.nan, rooms),
            "town": np.where(generator.random(rows) < 0.05, np.array(None), town),
            "garden": generator.random(rows) < 0.3,
            "built": pd.date_range("1990-01-01", periods=rows).astype(str),
            "owner": [f"owner {i}" for i in range(rows)],
            "country": "France",
        }
    )
    table["price"] = (2 * size + 100 * (town == "Paris") + generator.normal(0, 15, rows)).round(2)
    table["dear"] = np.where(table["price"] > 300, "yes", "no")
    return table


def file_of(table: Any, path: Path) -> Path:
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path)
    return path


def fitted(table: Any, folder: Path, target: str, **options: Any) -> tuple[TableModel, Findings]:
    """A model of the table as it comes out of a CSV file."""
    settings = Settings(target, **{"steps": 300, "members": 5} | options)
    return fit(read(file_of(table, folder / "table.csv")), settings, "a test")


@cache
def priced(folder: Path) -> tuple[TableModel, Findings]:
    return fitted(houses(), folder, "price", exclude=("dear",))


@cache
def classed(folder: Path) -> tuple[TableModel, Findings]:
    return fitted(houses(), folder, "dear", exclude=("price",))
