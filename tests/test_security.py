"""What SECURITY.md promises of the source: no pickle, no evaluated text, no shell, no network unless asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tradi

SOURCE = Path(tradi.__file__).parent
FORBIDDEN = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "execfile", "input"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "pty", "commands", "requests"}
# Each where it is needed, and nowhere else.
ALLOWED = {
    "subprocess": {"bench/results.py"},
    "urllib.request": {"data/fetch.py"},
    "socket": set[str](),
}


def places() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            yield path.relative_to(SOURCE).as_posix(), node


def wrong(name: str, node: ast.AST) -> str | None:
    """What a node does that SECURITY.md says nobody does."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for module in modules:
            if module.split(".")[0] in FORBIDDEN_MODULES:
                return f"imports {module}"
            if name not in ALLOWED.get(module, {name}):
                return f"imports {module}"
        return None
    if not isinstance(node, ast.Call):
        return None
    called, given = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
    if called in FORBIDDEN or called.startswith("os.exec") or called.startswith("os.spawn"):
        return f"calls {called}"
    if given.get("shell", "False") != "False" or given.get("allow_pickle", "False") != "False":
        return f"calls {called} with {given}"
    if called == "torch.load" and given.get("weights_only") != "True":
        return "calls torch.load without weights_only=True"
    return None


def test_the_source_does_nothing_that_it_promises_not_to_do() -> None:
    found = [f"{name}:{node.lineno} {said}" for name, node in places() if (said := wrong(name, node))]  # type: ignore[attr-defined]
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        *(
            "import pickle",
            "from pickle import loads",
            "import subprocess",
            "eval('1')",
            "exec('1')",
            "os.system('ls')",
        ),
        *("run('ls', shell=True)", "torch.load(path)", "torch.load(path, weights_only=False)"),
        *("np.load(path, allow_pickle=True)", "import urllib.request", "from urllib.request import urlopen"),
    ],
)
def test_what_is_looked_for_is_found(code: str) -> None:
    assert any(wrong("some.py", node) for node in ast.walk(ast.parse(code)))


def test_importing_and_using_tradi_opens_no_connection() -> None:
    code = """
import socket
def refuse(*arguments, **options): raise AssertionError("a connection")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import torch, tradi
from tradi.cli.main import main
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
tracker = tradi.TRADI(model, optimizer)
model(torch.randn(4, 2)).sum().backward()
optimizer.step()
print(tuple(tracker.posterior().sample(3)(torch.randn(5, 2)).shape))
"""
    assert (
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "(3, 5, 2)\n"
    )
