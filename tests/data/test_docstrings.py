from __future__ import annotations

import base64
from pathlib import Path

import pytest
import torch

from tradi.data.docstrings import CHARACTERS, decoded, docstrings, encoded

MODULE = '''"""What {name} is for."""

import os


def made(x):
    """It makes
    two of {name}."""
    # why
    return 2 * x
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abcdefghij":
        (tmp_path / f"{name}.py").write_text(MODULE.format(name=name * 3))
    (tmp_path / "silent.py").write_text("x = 1\n")
    (tmp_path / "notes.txt").write_text("none of it")
    return tmp_path


def test_parts_are_docstrings_of_different_modules_and_nothing_else(folder: Path) -> None:
    texts = docstrings(folder)
    parts = [texts.train, texts.validation, texts.test]
    assert [part.count("is for.") for part in parts] == [8, 1, 1]
    assert sorted("\n".join(parts).splitlines()) == sorted(
        line for name in "abcdefghij" for line in (f"What {name * 3} is for.", "It makes", f"two of {name * 3}.")
    )
    assert docstrings(folder) == texts
    assert docstrings(folder, seed=1).train != texts.train


def test_other_text_is_made_of_the_test_modules(folder: Path) -> None:
    texts = docstrings(folder)
    assert texts.ood["code"] == "import os\ndef made(x):\n    return 2 * x"
    words = texts.ood["shuffled words"]
    assert [sorted(line.split()) for line in words.splitlines()] == [sorted(x.split()) for x in texts.test.splitlines()]
    letters = texts.ood["shuffled letters"]
    assert [sorted(word) for word in letters.split()] == [sorted(word) for word in texts.test.split()]
    assert letters != texts.test
    assert base64.decodebytes(texts.ood["base64"].encode()).decode() == texts.test


def test_characters_have_numbers_and_come_back() -> None:
    assert len(set(CHARACTERS)) == 96
    tokens = encoded("a line\nand ~ more é", 6)
    assert tokens.shape == (3, 6)
    assert "".join(map(decoded, tokens)) == "a line\nand ~ more "
    assert decoded(encoded("é", 1)[0]) == "?"
    assert tokens.max() < 96
    assert tokens.dtype == torch.long


def test_a_folder_without_modules_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="0 modules with docstrings, and three are needed"):
        docstrings(tmp_path)


def test_the_standard_library_has_enough() -> None:
    texts = docstrings()
    assert len(texts.train) > 300_000
    assert min(len(texts.validation), len(texts.test), *map(len, texts.ood.values())) > 20_000


def test_lines_that_cannot_be_are_refused() -> None:
    for length in (0, -2):
        with pytest.raises(ValueError, match=f"length must be at least 1, got {length}"):
            encoded("text", length)
    for wrong in (encoded("text", 2), torch.tensor(3), torch.rand(4)):
        with pytest.raises(ValueError, match="one line of whole numbers, got shape"):
            decoded(wrong)
    for number in (-1, 96):
        with pytest.raises(ValueError, match=f"from 0 to 95, got {number}"):
            decoded(torch.tensor([5, number]))
