"""The rooms of the house: imports run downwards only, without cycles, and every module is known."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import tradi

SOURCE = Path(tradi.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"

# From the ground up: a room may import those before it, and itself.
ROOMS = (
    *("_torch", "sharding", "extras", "progress", "storage"),
    *("filter", "prediction", "likelihoods", "ensemble", "posterior", "hub", "tracking"),
    *(
        "costs",
        "methods",
        "inspection",
        "detection",
        "acquisition",
        "metrics",
        "data",
        "models",
        "tables",
        "bench",
        "report",
        "integrations",
    ),
)
TOP = ("demo", "cli")  # these also read the version from the package itself


def modules() -> dict[str, Path]:
    paths = (path for path in SOURCE.rglob("*.py"))
    return {_dotted(path): path for path in paths}


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of tradi that a file imports, those for types and those inside functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in full if name in known} or {node.module}
    return {name for name in found if name in known}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_module_is_in_a_known_room() -> None:
    assert {room(name) for name in modules()} == {"", *ROOMS, *TOP}


def test_imports_run_downwards_only() -> None:
    order = {name: place for place, name in enumerate((*ROOMS, *TOP))}
    known = modules()
    wrong = []
    for name, path in known.items():
        if name == "tradi":
            continue
        for other in imports(path, known):
            recorded = room(name) in ("bench", "data", "tables", *TOP)  # the version, in what these write
            version = other == "tradi" and recorded
            if not version and (other == "tradi" or order[room(other)] > order[room(name)]):
                wrong.append(f"{name} imports {other}")
    assert not wrong


def test_no_module_imports_itself_by_way_of_others() -> None:
    known = modules()
    graph = {name: imports(path, known) - {"tradi"} for name, path in known.items()}

    def cycle(name: str, way: tuple[str, ...]) -> tuple[str, ...] | None:
        if name in way:
            return (*way[way.index(name) :], name)
        for other in graph[name]:
            if other != name and other not in done:
                found = cycle(other, (*way, name))
                if found:
                    return found
        done.add(name)
        return None

    done: set[str] = set()
    for name in graph:
        assert cycle(name, ()) is None


def test_private_torch_names_live_in_one_place() -> None:
    private = re.compile(r"torch(\.\w+)*\._[a-z]|_NormBase|_DropoutNd|_ConvNd|\._orig_mod|import _pytree")
    found = [
        f"{name}: {line.strip()}"
        for name, path in modules().items()
        if name != "tradi._torch"
        for line in path.read_text().splitlines()
        if private.search(line)
    ]
    assert not found


def test_the_map_for_contributors_lists_every_room() -> None:
    listed = set(re.findall(r"^\| `(\w+)(?:/|\.py)` \|", CONTRIBUTING.read_text(), re.MULTILINE))
    assert listed == {*ROOMS, *TOP}


def test_every_room_says_what_enters_what_leaves_and_who_may_call_it() -> None:
    for name in ("filter", "tracking", "posterior", "ensemble", "prediction", "acquisition", "cli"):
        text = ast.get_docstring(ast.parse((SOURCE / name / "__init__.py").read_text())) or ""
        assert all(word in text for word in ("Enters:", "Leaves:", "Who may call it:")), name
