"""JSON from files that may be damaged or forged, checked against the types of dataclasses before it is used."""

from __future__ import annotations

import json
import math
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

LARGEST = 1 << 53  # whole numbers beyond are no counts of anything here, and not every JSON reader keeps them
SHOWN = 80  # characters of a wrong value in a message


def parsed(text: str) -> Any:
    """What a JSON text says.

    Raises:
        ValueError: if it is not JSON, holds NaN or an infinity, names a key twice, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"its JSON is damaged: {error}") from error


def built(hint: Any, value: Any, where: str) -> Any:
    """A value of a type, made from JSON.

    Args:
        hint: a dataclass, whose fields are those of a JSON object; str, bool, int or float; a tuple, a list or a dict
            of such; one of these or None; or Any.
        value: as `json.loads` gives it.
        where: its place, for messages.

    Returns:
        The value: objects as dataclasses, lists as the tuples that the type asks for, numbers as they are.

    Raises:
        ValueError: if it is of another type, not finite or beyond 2^53, or lacks fields, or has others; or if the
            dataclass refuses it. The message names the place.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _one_of(arguments, value, where)
    if origin is dict:
        items = _of_type(dict, value, where, "an object").items()
        return {key: built(arguments[1], item, f"{where}[{_shown(key)}]") for key, item in items}
    if origin in (list, tuple):
        return _sequence(origin, arguments, value, where)
    if is_dataclass(hint):
        return _dataclass(hint, value, where)
    if hint is bool or hint is str:
        return _of_type(hint, value, where, "true or false" if hint is bool else "text")
    return _number(hint, value, where)


def _one_of(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    (only,) = (hint for hint in hints if hint is not type(None))
    return built(only, value, where)


def _sequence(origin: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    items = list(value) if isinstance(value, tuple) else _of_type(list, value, where, "a list")
    any_length = origin is list or arguments[1:] == (...,)
    hints = arguments[:1] * len(items) if any_length else arguments
    if len(items) != len(hints):
        raise ValueError(f"{where} must have {len(hints)} entries, got {len(items)}")
    return origin(built(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(hints, items, strict=True)))


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    given = _of_type(dict, value, where, "an object")
    hints, own = typing.get_type_hints(kind), [field for field in fields(kind) if field.init]
    needed = {field.name for field in own if field.default is MISSING and field.default_factory is MISSING}
    names = {field.name for field in own}
    if not needed <= given.keys() <= names:
        raise ValueError(
            f"{where} lacks {sorted(needed - given.keys())} and has {_shown(sorted(given.keys() - names))} too much"
        )
    arguments = {name: built(hints[name], item, f"{where}.{name}") for name, item in given.items()}
    try:
        return kind(**arguments)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{where} cannot be used: {error}") from error


def _number(hint: Any, value: Any, where: str) -> Any:
    if hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
    elif hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
    else:
        raise TypeError(f"{where} is declared as {hint!r}, which JSON has nothing for")
    if not fits:
        kind = "a whole number within 2^53" if hint is int else "a finite number"
        raise ValueError(f"{where} must be {kind}, got {_shown(value)}")
    return value


def _finite(value: float) -> bool:
    return abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)


def _of_type(kind: type, value: Any, where: str, what: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where} must be {what}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _refuse_constant(name: str) -> None:
    raise ValueError(f"its JSON holds {name}, which is no number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its JSON names a key twice")
    return found
