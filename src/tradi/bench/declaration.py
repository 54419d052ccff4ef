"""What a report must know of a benchmark besides its results: one small file beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tradi.bench.files import folder_name, is_of_a_quick_run
from tradi.bench.tables import ByMethod, ByVariant, Column, Needed, Overview, Paired, Published, Table
from tradi.storage.atomic import write_whole

NAME = "benchmark.json"
KINDS: dict[str, type[Table]] = {kind.__name__: kind for kind in (ByMethod, ByVariant, Paired, Overview, Needed)}


@dataclass(frozen=True)
class Declaration:
    """A benchmark as its tables show it.

    Args:
        name: of the benchmark.
        title: of the benchmark.
        variants, methods: names, in the order of the tables.
        tables: what they show.
        published: figures to stand in tables by method.
    """

    name: str
    title: str
    variants: tuple[str, ...]
    methods: tuple[str, ...]
    tables: tuple[Table, ...]
    published: Published = field(default_factory=dict)

    def write(self, out: Path) -> Path:
        """Put the file beside the results."""
        content = asdict(self)
        content["tables"] = [{"kind": type(table).__name__} | asdict(table) for table in self.tables]
        return write_whole(declared(out, self.name), json.dumps(content, indent=1) + "\n")


def declared(out: Path, benchmark: str) -> Path:
    """Where the declaration of a benchmark lies in a folder of results."""
    return out / folder_name(benchmark) / NAME


def read_declaration(path: Path) -> Declaration:
    """The declaration in a file, or an error that says what is wrong with it."""
    try:
        content = json.loads(path.read_text())
        tables = tuple(_table(**table) for table in content.pop("tables"))
        variants, methods = (tuple(content.pop(part)) for part in ("variants", "methods"))
        return Declaration(tables=tables, variants=variants, methods=methods, **content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} does not declare a benchmark: {error}; run the benchmark to replace it") from error


def read_declarations(folder: Path, benchmarks: Iterable[str]) -> dict[str, Declaration]:
    """The declarations of these benchmarks, by name, from a folder of results.

    Raises:
        FileNotFoundError: if there is none of one of them; it names the command that writes it.
    """
    paths = (path for path in folder.rglob(NAME) if not is_of_a_quick_run(path, folder))
    found = {one.name: one for one in map(read_declaration, sorted(paths))}
    for name in benchmarks:
        if name not in found:
            raise FileNotFoundError(
                f"{declared(folder, name)} is missing, which says what the tables of {name} show: "
                f"`tradi bench {name} --out {folder}` writes it before it runs what is left to run"
            )
    return {name: found[name] for name in benchmarks}


def _table(kind: str, columns: list[dict[str, Any]], **rest: Any) -> Table:
    if "drawn" in rest:
        rest["drawn"] = tuple(tuple(Column(**column) for column in group) for group in rest["drawn"])
    if "others" in rest:
        rest["others"] = tuple(rest["others"])
    return KINDS[kind](columns=tuple(Column(**column) for column in columns), **rest)
