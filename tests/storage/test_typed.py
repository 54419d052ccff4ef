from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tradi.storage.typed import built, parsed


@dataclass(frozen=True)
class Inner:
    size: int
    ratio: float | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    on: bool
    inner: Inner
    pairs: tuple[tuple[str, float], ...] = ()
    more: dict[str, Inner] | None = None

    def __post_init__(self) -> None:
        if self.name == "refused":
            raise ValueError("no such name")


GOOD: dict[str, Any] = {"name": "a", "on": True, "inner": {"size": 3}, "pairs": [["x", 1]]}


def test_json_becomes_what_the_types_say() -> None:
    found = built(Outer, GOOD | {"more": {"k": {"size": 1, "ratio": 0.5}}}, "it")
    assert found == Outer("a", True, Inner(3), (("x", 1),), {"k": Inner(1, 0.5)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 1}, r"it\.name must be text, got 1"),
        ({"name": "refused"}, "it cannot be used: no such name"),
        ({"on": 1}, r"it\.on must be true or false, got 1"),
        ({"inner": {"size": True}}, r"it\.inner\.size must be a whole number within 2\^53, got True"),
        ({"inner": {"size": 2**63}}, r"it\.inner\.size must be a whole number"),
        ({"inner": {"size": 1.0}}, r"it\.inner\.size must be a whole number"),
        ({"inner": {"size": 1, "ratio": 10**400}}, r"it\.inner\.ratio must be a finite number"),
        ({"inner": {"size": 1, "ratio": float("inf")}}, r"it\.inner\.ratio must be a finite number, got inf"),
        ({"inner": {}}, r"it\.inner lacks \['size'\]"),
        ({"inner": {"size": 1, "z": 2}}, r"it\.inner lacks \[\] and has \['z'\] too much"),
        ({"inner": []}, r"it\.inner must be an object, got \[\]"),
        ({"pairs": [["x"]]}, r"it\.pairs\[0\] must have 2 entries, got 1"),
        ({"pairs": [["x", None]]}, r"it\.pairs\[0\]\[1\] must be a finite number, got None"),
        ({"pairs": {}}, r"it\.pairs must be a list"),
        ({"more": {"k": None}}, r"it\.more\['k'\] must be an object"),
    ],
)
def test_anything_else_is_an_error_that_names_the_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(Outer, GOOD | change, "it")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ('{"a": NaN}', "holds NaN"),
        ('{"a": 1, "a": 2}', "a key twice"),
        ("[" * 200_000, "nested too deeply"),
        ("1" * 5000, "digits"),
    ],
)
def test_text_that_is_no_json_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed(text)


def test_a_type_that_json_has_nothing_for_is_a_mistake_of_the_declaration() -> None:
    with pytest.raises(TypeError, match=r"it is declared as <class 'complex'>, which JSON has nothing for"):
        built(complex, 1, "it")
