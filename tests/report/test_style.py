from __future__ import annotations

from itertools import combinations

import pytest

from tradi.bench import BENCHMARKS
from tradi.report.style import DARK, KNOWN, PALETTE, is_first, known, same, styles

NAMES = list(dict.fromkeys(name for one in BENCHMARKS.values() for name in one.declaration().methods))
BENCHED = [name for one in BENCHMARKS.values() if one.name != "ablation" for name in one.declaration().methods]


def luminance(colour: str) -> float:
    """Relative luminance, as the web's guidelines for contrast define it."""
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_method_of_the_benchmarks_has_a_style_of_its_own() -> None:
    assert {known(name) for name in BENCHED} <= KNOWN.keys()
    assert len(set(KNOWN.values())) == len(KNOWN)


def test_a_method_looks_the_same_whoever_is_beside_it() -> None:
    alone = {name: styles([name])[name] for name in BENCHED}
    assert styles(BENCHED) == alone


def test_sizes_of_an_ensemble_and_other_names_are_one_method() -> None:
    for name, other in (("Deep Ensemble of 3", "Deep Ensemble"), ("Deep Ensembles", "Deep Ensemble of 15")):
        assert same(name, other)
    assert same("MCP", "Single network")
    assert same("multi-TRADI of 2", "multi-TRADI of 3")
    assert not same("Deep Ensemble of 5, recalibrated", "Deep Ensemble")
    assert not same("TRADI, nothing tracked", "TRADI")
    assert [name for name in ("TRADI", "MCP", "Deep Ensemble of 5", "Laplace, last layer") if is_first(name)] == [
        *("TRADI", "MCP", "Deep Ensemble of 5")
    ]


def test_other_methods_differ_from_each_other_and_from_the_known() -> None:
    names = ["TRADI", "Single network", *(f"setting {number}" for number in range(30))]
    found = styles(names)
    assert len(set(found.values())) == len(names)


def test_names_of_many_methods_are_all_found() -> None:
    assert styles(NAMES).keys() == set(NAMES)
    assert styles([]) == {}


@pytest.mark.parametrize(("colours", "page"), [(PALETTE, "#ffffff"), (DARK, "#14181d")])
def test_colours_can_be_seen_and_told_apart(colours: tuple[str, ...], page: str) -> None:
    assert all(contrast(colour, page) >= 2 for colour in colours)
    assert len({*colours}) == len(colours)
    assert all(contrast(one, other) > 1.01 for one, other in combinations(colours, 2))
