"""CSV and Parquet files as data frames, and back."""

from __future__ import annotations

import codecs
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tradi.extras import require
from tradi.storage.atomic import write_whole

Frame = Any  # a pandas.DataFrame; pandas has no types
Series = Any
Numbers = NDArray[np.float64]

SEPARATORS = ",;\t"
LOOKED_AT = 1 << 16  # bytes at the start of a file
TRUTH = {"true": "1", "false": "0"}
NAMELESS = re.compile(r"\(column \d+\)")  # what columns of a CSV file without a name are called
COMMA = r"[+-]?\d+,\d+"  # a number with a decimal comma, or with one of thousands
DECIMAL = r"[+-]?(?:\d+,(?:\d{1,2}|\d{4,})|(?:0|\d{4,}),\d+)"  # where it cannot be one of thousands
SHOWN = 8  # names in a message


class TableError(ValueError):
    """A table, or the folder of a model, cannot be used; the message says why and what to do."""


def read(path: Path) -> Frame:
    """The table in a file, its rows numbered from 0.

    All columns of a CSV file are text; they are separated by commas, semicolons or tabs, whichever its first line has
    most of. Decimal commas become points where commas do not separate. Those of a Parquet file are as they are.

    Raises:
        TableError: if it is neither CSV nor Parquet, is damaged or empty, or names a column twice.
        OSError: if there is no file, or it cannot be read.
    """
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix.lower() not in readers:
        raise TableError(f"{path} is neither .csv nor .parquet: give the table as one of these")
    with path.open("rb") as file:
        start = file.read(LOOKED_AT)
    if not start.strip():
        raise TableError(f"{path} is empty")
    frame = readers[path.suffix.lower()](path, start)
    if not len(frame):
        raise TableError(f"{path} has column names and no rows")
    return frame.apply(_tidy)


def check_writable(path: Path) -> None:
    """Raise before any work is done if no table can be written there.

    Raises:
        TableError: if the name ends neither in .csv nor in .parquet.
        OSError: if the folder does not exist, or may not be written to.
    """
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise TableError(f"--out must end in .csv or .parquet, got {path}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder: give --out the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: make it, or give --out another")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {path.parent} may not be written to: give --out another")


def write(frame: Frame, path: Path) -> None:
    """Write a table, in one go, as its name says.

    Raises:
        TableError, OSError: as `check_writable` and `write_whole` do.
    """
    check_writable(path)
    content = io.BytesIO()
    if path.suffix.lower() == ".csv":
        frame.to_csv(content, index=False, lineterminator="\n")
    else:
        frame.to_parquet(content, index=False)
    write_whole(path, content.getvalue())


def is_text(column: Series) -> bool:
    """Whether a column may hold anything but numbers and true or false."""
    types = require("pandas", "tables").api.types
    return not (types.is_numeric_dtype(column.dtype) or types.is_bool_dtype(column.dtype))


def numbers(column: Series) -> tuple[Numbers, NDArray[np.bool_]]:
    """A column as numbers, NaN where there is none, and which of its values are there and are none.

    True and false are 1 and 0. What is not finite is missing.
    """
    values = column
    if is_text(column):
        text = column.astype("string")
        text = text.str.lower().map(TRUTH).fillna(text)
        values = require("pandas", "tables").to_numeric(text, errors="coerce")
    found = values.to_numpy(dtype=np.float64, na_value=np.nan).copy()
    wrong = np.isnan(found) & column.notna().to_numpy()
    found[~np.isfinite(found)] = np.nan
    return found, cast(NDArray[np.bool_], wrong)


def texts(column: Series) -> list[str | None]:
    """A column as text, None where nothing is there."""
    return [value if there else None for value, there in zip(column.astype("string"), column.notna(), strict=True)]


def listed(names: list[str]) -> str:
    """Some names for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


def _tidy(column: Series) -> Series:
    """Text without blanks around it, missing where nothing is left."""
    if require("pandas", "tables").api.types.infer_dtype(column, skipna=True) != "string":
        return column
    stripped = column.str.strip()
    return stripped.mask(stripped == "")


def _read_csv(path: Path, start: bytes) -> Frame:
    pandas = require("pandas", "tables")
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise TableError(f"{path} is UTF-16 text: save it as UTF-8")
    if b"\0" in start:
        raise TableError(f"{path} is not a CSV file: it does not hold text")
    first = start.decode("utf-8-sig", "replace").lstrip().splitlines()[0]
    separator = max(SEPARATORS, key=first.count)
    options = {"sep": separator, "dtype": str, "encoding": "utf-8-sig", "skipinitialspace": True, "index_col": False}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            names = pandas.read_csv(path, header=None, nrows=1, keep_default_na=False, **options).iloc[0]
            frame = pandas.read_csv(path, **options)
    except UnicodeDecodeError as error:
        raise TableError(f"{path} is not UTF-8 text ({error.reason}): save it as UTF-8") from error
    except (ValueError, pandas.errors.ParserWarning) as error:  # of pandas: rows of other lengths, open quotes
        raise TableError(f"{path} cannot be read as CSV: {' '.join(str(error).split())}") from error
    frame.columns = _checked([str(name).strip() or f"(column {place})" for place, name in enumerate(names, 1)], path)
    return frame if separator == "," else frame.apply(_with_points)


def _with_points(column: Series) -> Series:
    """Decimal commas as points, in a column of which some number shows that its commas are not those of thousands."""
    text = column.str.strip()
    if not text.str.fullmatch(DECIMAL, na=False).any():
        return column
    return column.mask(text.str.fullmatch(COMMA, na=False), text.str.replace(",", "."))


def _read_parquet(path: Path, start: bytes) -> Frame:
    del start
    pandas, parquet = require("pandas", "tables"), require("pyarrow.parquet", "tables")
    try:
        names = _checked(parquet.read_schema(path).names, path)
        frame = pandas.read_parquet(path).reset_index(drop=True)
        return frame[[name for name in names if name in frame.columns]]
    except TableError:
        raise
    except Exception as error:  # whatever a decoder may say of a damaged file
        raise TableError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from error


def _checked(names: list[str], path: Path) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TableError(f"{path} has several columns of the same name: {listed(twice)}; rename them")
    if "" in names:
        raise TableError(f"column {names.index('') + 1} of {path} has no name: give it one")
    return names
