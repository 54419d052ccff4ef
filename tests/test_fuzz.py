"""Damaged and forged files: each is loaded as it should be, or refused by an error that names file and cause.

5,600 files here, and a wrong value in every place; `make fuzz` tries as many as it is told, at random.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tradi
from tests.fitted import TRAIN, X, classifier, joint, narrow, regressor, small, swag, tracked
from tests.training import network
from tradi.storage.tensors import HASH, read_tensors, write_tensors

ASKED = int(os.environ.get("TRADI_FUZZ", "0"))
EXAMPLES = ASKED or 350
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=not ASKED,
    suppress_health_check=list(HealthCheck),
)

WORDS = ("", "x", "0.weight", "Independent", "LowRank", "FullCovariance", "Tokens", "full", "../../x")
EXTREME = (0, -1, 2, 3, 2**31, 2**63, 10**400, 0.5, -1.5, 1e308, float("nan"), float("inf"))
ODD: st.SearchStrategy[Any] = st.sampled_from([None, True, *EXTREME, *WORDS, [], [[]], [1], {}])
INSTEAD: tuple[Any, ...] = (None, [], {}, "x", -1, 2**63, 1e308)
TYPES = st.sampled_from([torch.float16, torch.float64, torch.int32, torch.bool, torch.uint8, torch.float8_e4m3fn])
NUMBERS = st.sampled_from([float("nan"), float("inf"), -1.0, 0.0, 1e30, -1e30])


def partly_frozen() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


def frozen() -> tradi.Posterior:
    return tracked(partly_frozen(), TRAIN, nn.functional.cross_entropy)


SAVED: dict[str, Callable[[], Any]] = {
    "labels": classifier,
    "numbers": lambda: regressor(small),
    "SWAG": swag,
    "full covariance": joint,
    "frozen": frozen,
    "frozen ensemble": lambda: frozen().sample(2),
    "ensemble": lambda: classifier().sample(2, refresh=TRAIN),
    "linearised ensemble": lambda: regressor(small).sample(2),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "labels": network,
    "numbers": small,
    "SWAG": narrow,
    "full covariance": narrow,
    "frozen": partly_frozen,
    "frozen ensemble": partly_frozen,
    "ensemble": network,
    "linearised ensemble": small,
}


@cache
def original(name: str, folder: Path) -> tuple[Path, bytes, nn.Module, Any]:
    """A file, its bytes, a model to load it into, and what it says."""
    path = folder / f"{name}.safetensors"
    SAVED[name]().save(path)
    model = MODELS[name]()
    return path, path.read_bytes(), model, outcome(load(name, path, model))


def load(name: str, path: Path, model: nn.Module) -> Any:
    return (tradi.load_ensemble if "ensemble" in name else tradi.load_posterior)(path, model)


def outcome(loaded: Any) -> Any:
    """What members are: tensors to be compared. Nothing may raise but the error that training data is missing."""
    if isinstance(loaded, tradi.Ensemble):
        return {"outputs": loaded(X)}
    repr(loaded)
    try:
        return loaded.draw(1, seed=3) | loaded.mean | loaded.variance
    except ValueError as error:
        if "which no file holds" not in str(error):
            raise
        return loaded.mean | loaded.variance


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def loaded_or_refused(name: str, path: Path, model: nn.Module) -> Any:
    before, said = copy.deepcopy(model.state_dict()), f"{path} cannot be loaded: and why"
    try:
        found = load(name, path, model)
    except ValueError as error:
        found, said = None, str(error)
    assert said.startswith(f"{path} cannot be loaded: ")
    assert len(said) < 5000
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    return found


@pytest.mark.parametrize("name", SAVED)
def test_damaged_bytes_are_noticed(name: str, folder: Path) -> None:
    path, content, model, expected = original(name, folder)
    header = 8 + int.from_bytes(content[:8], "little")
    place = st.one_of(st.integers(0, len(content) - 1), st.integers(0, header - 1), st.integers(0, 16))
    flips = st.lists(st.tuples(place, st.integers(1, 255)), min_size=1, max_size=4)
    damage = st.tuples(st.sampled_from(["flip", "cut", "insert", "lose"]), flips)

    @FUZZ
    @given(damage)
    def check(damage: tuple[str, list[tuple[int, int]]]) -> None:
        how, places = damage
        changed, (first, value) = bytearray(content), places[0]
        if how == "flip":
            for at, bits in places:
                changed[at] ^= bits
        elif how == "cut":
            del changed[first:]
        elif how == "insert":
            changed[first:first] = bytes([value]) * value
        else:
            del changed[first : first + value]
        damaged = path.with_suffix(".damaged")
        damaged.write_bytes(changed)
        found = loaded_or_refused(name, damaged, model)
        if found is not None:  # white space, perhaps
            ours = outcome(found)
            assert ours.keys() == expected.keys()
            assert all(torch.equal(ours[key], expected[key]) for key in expected)

    check()


@pytest.mark.parametrize("name", SAVED)
def test_forged_contents_with_a_hash_of_their_own_are_checked(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: None)  # which is most of the time that writing takes
    path, _, model, _ = original(name, folder)
    tensors, about = read_tensors(path)
    assert about is not None
    said = {key: value for key, value in about.items() if key != HASH}
    forged = path.with_suffix(".forged")

    @FUZZ
    @given(st.data())
    def check(data: st.DataObject) -> None:
        theirs, words = dict(tensors), copy.deepcopy(said)
        for _ in range(data.draw(st.integers(1, 2))):
            if data.draw(st.booleans()):
                forge_words(data, words)
            else:
                forge_tensors(data, theirs)
        write_tensors(forged, theirs, words)
        found = loaded_or_refused(name, forged, model)
        if found is not None:
            outcome(found)

    check()


@pytest.mark.parametrize("name", SAVED)
def test_every_word_of_a_file_is_checked(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: None)
    path, _, model, _ = original(name, folder)
    tensors, about = read_tensors(path)
    assert about is not None
    said = {key: value for key, value in about.items() if key != HASH}
    forged = path.with_suffix(".forged")
    for place in range(len(places_in(said))):
        for word in INSTEAD:
            words = copy.deepcopy(said)
            inside, key = places_in(words)[place]
            inside[key] = word
            write_tensors(forged, tensors, words)
            found = loaded_or_refused(name, forged, model)
            if found is not None:
                outcome(found)


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in nested JSON."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [pair for key in keys for pair in ((value, key), *places_in(value[key]))]


def forge_words(data: st.DataObject, words: Any) -> None:
    places = places_in(words)
    if not places:
        return
    inside, key = data.draw(st.sampled_from(places))
    how = data.draw(st.sampled_from(["replace", "replace", "replace", "delete", "add", "swap"]))
    if how == "replace":
        inside[key] = data.draw(ODD)
    elif how == "delete":
        del inside[key]
    elif how == "add" and isinstance(inside, dict):
        inside["surplus"] = data.draw(ODD)
    elif how == "add":
        inside.append(copy.deepcopy(inside[key]))
    else:
        other, place = data.draw(st.sampled_from(places))
        inside[key] = copy.deepcopy(other[place])


def forge_tensors(data: st.DataObject, tensors: dict[str, Tensor]) -> None:
    if not tensors:
        return
    names = sorted(tensors)
    name, other = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
    how = data.draw(st.sampled_from(["rename", "delete", "add", "type", "shape", "number", "swap", "move"]))
    number, kind, rest = (*name.split("/", 2), "", "")[:3]  # a name that was forged before may be short
    value = tensors[name]
    if how == "rename":
        tensors[data.draw(st.sampled_from([f"{name}x", f"9/{kind}/{rest}", f"{number}/mean/{rest}", rest]))] = (
            tensors.pop(name)
        )
    elif how == "delete":
        del tensors[name]
    elif how == "add":
        tensors[f"{number}/{kind}/surplus"] = value
    elif how == "type":
        tensors[name] = value.to(data.draw(TYPES))
    elif how == "shape":
        row = value.reshape(-1)
        tensors[name] = data.draw(st.sampled_from([value[None], row, row[:0]]))
    elif how == "number" and value.numel():
        changed = value.clone().reshape(-1)
        changed[data.draw(st.integers(0, value.numel() - 1))] = data.draw(NUMBERS) if value.is_floating_point() else 1
        tensors[name] = changed.reshape(value.shape)
    elif how == "swap":
        tensors[name], tensors[other] = tensors[other], tensors[name]
    else:
        tensors[other] = tensors.pop(name)
