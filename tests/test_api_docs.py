"""Whatever the API pages show says what its arguments are, and what it raises."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# The interfaces of integrations are those of their hosts.
PAGES = [page for page in sorted((ROOT / "docs" / "api").glob("*.md")) if page.stem != "integrations"]
HIDDEN = re.compile("|".join(re.findall(r'- "!(.*)"', (ROOT / "mkdocs.yml").read_text())))
ELSEWHERE = re.compile(r"arguments are those of `\w+(\.\w+)?`|, as `Posterior.save` does", re.IGNORECASE)

NOTHING = ("None", "NoReturn", inspect.Signature.empty)


def shown() -> Iterator[tuple[str, Any]]:
    """Classes, their own methods, and functions, by name."""
    for page in PAGES:
        for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            thing = pkgutil.resolve_name(name)
            names = [f"{name}.{part}" for part in thing.__all__] if inspect.ismodule(thing) else [name]
            for key in names:
                yield key, (found := getattr(thing, key.rpartition(".")[2]) if key != name else thing)
                for part in vars(found) if inspect.isclass(found) else ():
                    method = getattr(found, part)
                    if not HIDDEN.search(part) and (inspect.isfunction(method) or inspect.ismethod(method)):
                        yield f"{key}.{part}", method


SHOWN = dict(shown())


def test_pages_show_what_is_there() -> None:
    assert {"tradi.Posterior.fit", "tradi.TRADI", "tradi.metrics.auroc", "tradi.TRADI.paper"} <= SHOWN.keys()


@pytest.mark.parametrize("name", SHOWN)
def test_arguments_and_errors_are_documented(name: str) -> None:
    thing = SHOWN[name]
    text = inspect.getdoc(thing) or ""
    assert text
    arguments = [one for one in inspect.signature(thing).parameters if one != "self" and not one.startswith("_")]
    listed = text.partition("Args:")[2].partition("Raises:")[0]
    missing = [one for one in arguments if not re.search(rf"^ +([\w, *]+, )?\**{one}\b.*:", listed, re.MULTILINE)]
    assert not missing or ELSEWHERE.search(text)
    if inspect.isroutine(thing) and inspect.signature(thing).return_annotation not in NOTHING:
        assert re.search("(Returns|Yields):", text) or ELSEWHERE.search(text)
    if inspect.isfunction(thing) and re.search(r"^ +raise \w+Error", inspect.getsource(thing), re.MULTILINE):
        assert "Raises:" in text
