"""Text that every Python has: docstrings and code of the standard library that runs, character by character.

It is read where Python is installed and never copied; Python's own licence (PSF) is that of the text. Another version
of Python has another text.
"""

from __future__ import annotations

import ast
import base64
import random
import re
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # by number; whatever is none of them becomes a question mark
SHARES = 0.8, 0.1  # of the modules, for training and for validation


@dataclass(frozen=True)
class Texts:
    """Docstrings in three parts, of different modules, and text of other kinds.

    Args:
        train: docstrings.
        validation: those of other modules.
        test: those of others again.
        ood: text that is no docstring, by name; what can be is made of the test part.
    """

    train: str
    validation: str
    test: str
    ood: dict[str, str]


def docstrings(folder: Path | None = None, seed: int = 0) -> Texts:
    """Docstrings of the modules directly in a folder, by default the standard library's.

    The OOD texts are the code of the test modules without docstrings, the test part with the words of each line in
    another order, the same with the letters of each word, and the same in base64.

    Args:
        folder: of Python files.
        seed: which modules are in which part, and of what is shuffled.

    Returns:
        all texts; the same ones for a version of Python and a seed.

    Raises:
        FileNotFoundError: if there are fewer than three modules with docstrings.
    """
    folder = Path(sysconfig.get_paths()["stdlib"]) if folder is None else folder
    modules = [part for path in sorted(folder.glob("*.py")) if (part := _read(path))[0]]
    if len(modules) < 3:
        raise FileNotFoundError(f"{folder} has {len(modules)} modules with docstrings, and three are needed")
    generator = random.Random(seed)
    generator.shuffle(modules)
    first = max(1, round(SHARES[0] * len(modules)))
    second = max(first + 1, round((SHARES[0] + SHARES[1]) * len(modules)))
    parts = (modules[:first], modules[first:second], modules[second:])
    train, validation, test = ("\n".join(prose for prose, _ in part) for part in parts)
    return Texts(
        train,
        validation,
        test,
        {
            "code": "\n".join(code for _, code in parts[2]),
            "shuffled words": "\n".join(_shuffled(line.split(" "), generator, " ") for line in test.splitlines()),
            "shuffled letters": re.sub(r"\w+", lambda word: _shuffled(list(word[0]), generator, ""), test),
            "base64": base64.encodebytes(test.encode()).decode(),
        },
    )


def encoded(text: str, length: int) -> Tensor:
    """Lines of so many characters, by number, (lines, length); a rest that fills none is left out.

    Args:
        text: any.
        length: characters of a line, whatever line ends are in it.

    Raises:
        ValueError: if the length is below 1.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    number = {character: place for place, character in enumerate(CHARACTERS)}
    found = torch.tensor([number.get(character, number["?"]) for character in text], dtype=torch.long)
    return found[: len(found) // length * length].view(-1, length)


def decoded(tokens: Tensor) -> str:
    """The text of one line of numbers.

    Args:
        tokens: (length,).

    Raises:
        ValueError: if they are not one line, or a number is of no character.
    """
    if tokens.ndim != 1 or tokens.is_floating_point():
        raise ValueError(f"tokens must be one line of whole numbers, got shape {tuple(tokens.shape)} of {tokens.dtype}")
    wrong = tokens[(tokens < 0) | (tokens >= len(CHARACTERS))]
    if len(wrong):
        raise ValueError(f"tokens must be numbers from 0 to {len(CHARACTERS) - 1}, got {wrong[0].item()}")
    return "".join(CHARACTERS[number] for number in tokens.tolist())


@cache
def _read(path: Path) -> tuple[str, str]:
    """The docstrings of a module, and its code without them."""
    source = path.read_text(encoding="utf-8", errors="replace")
    lines, prose = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text:
            prose.append(text)
            place = node.body[0]
            for number in range(place.lineno - 1, place.end_lineno or place.lineno):
                lines[number] = ""
    code = (line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return "\n".join(prose), "\n".join(code)


def _shuffled(parts: list[str], generator: random.Random, between: str) -> str:
    generator.shuffle(parts)
    return between.join(parts)
