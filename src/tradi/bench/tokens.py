"""Next characters of docstrings, against code, shuffled text and base64."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tradi.bench.measures import CLASSIFICATION, against_ood, columns
from tradi.bench.methods import usual_methods
from tradi.bench.recipe import Recipe
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.tables import ByMethod, Column
from tradi.bench.text import LINES, TextData
from tradi.data.docstrings import CHARACTERS, docstrings, encoded
from tradi.models import LanguageModel

LENGTH = 64  # characters of a line
TRAINED, HELD, TESTED = 6400, 600, 300  # lines; of every OOD text as many as of test text

# Tuned for no method: the usual optimizer of transformers, as long as a processor bears it.
RECIPE = Recipe("adamw", 3e-3, weight_decay=1e-2, epochs=4, batch=32, decay="cosine")

ROWS = ("Single network", "MC Dropout", "Deep Ensemble of 3", "TRADI", "TRADI, nothing tracked")
METHODS = usual_methods(members=10, searched=5, deep=3)
LINE_COLUMNS = tuple(
    Column(title, f"{{}}/{LINES.format(score)}", 100, 1, higher=True)
    for score, title in (
        ("confidence", "AUC of lines"),
        ("entropy", "AUC of lines, entropy"),
        ("information", "AUC of lines, mutual information"),
    )
)


def load(root: Path, split: int, seed: int) -> TextData:
    """Docstrings of the Python that runs; lines are drawn from each part, others for each seed."""
    del root, split
    texts, generator = docstrings(), torch.Generator().manual_seed(seed)

    def lines(text: str, count: int) -> Tensor:
        whole = encoded(text, LENGTH)
        return whole[torch.randperm(len(whole), generator=generator)[:count]]

    train, validation, test = (
        lines(text, count) for text, count in ((texts.train, TRAINED), (texts.validation, HELD), (texts.test, TESTED))
    )
    ood = {name: lines(text, TESTED) for name, text in texts.ood.items()}
    return TextData((train, train), (validation, validation), (test, test), ood, at_once=100, characters=CHARACTERS)


def network(data: TextData, dropout: float | None) -> nn.Module:
    """Two blocks of width 64, 117,000 weights."""
    return LanguageModel(len(data.characters), data.inputs, dropout=0.1 if dropout is None else dropout)


TOKENS = Benchmark(
    "tokens",
    "Next characters of docstrings, against text of other kinds",
    # Tuned for no method: the usual optimizer of transformers, as long as a processor bears it.
    (
        Variant(
            "docstrings", load, network, Recipe("adamw", 3e-3, weight_decay=1e-2, epochs=4, batch=32, decay="cosine")
        ),
    ),
    {name: METHODS[name] for name in ROWS},
    (
        ByMethod(columns(CLASSIFICATION)),
        against_ood(),
        ByMethod(LINE_COLUMNS, ", lines against {}", each=f"{{}}/{LINES.format('confidence')}"),
    ),
    seeds=(0, 1, 2),
)
