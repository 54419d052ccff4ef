"""Text as the methods of a benchmark are given it, and what is measured of predictions for its tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from tradi import metrics
from tradi.bench.evaluation import Curves, Evaluation, Numbers, as_lists
from tradi.bench.measures import CLASSIFICATION, OOD, compute
from tradi.bench.problem import Data
from tradi.ensemble.ensemble import Ensemble
from tradi.models.language import next_token_loss
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.likelihoods import Likelihood, Tokens

LINES = "line/{}"  # an OOD set whose samples are whole lines
SHOWN = 2  # lines of each text that are shown token by token


@dataclass(frozen=True, eq=False)
class TextData(Data):
    """Lines of tokens, whose targets are the tokens themselves.

    Args:
        characters: what each token stands for.
    """

    characters: str = ""

    @property
    def likelihood(self) -> Likelihood:
        """What outputs mean."""
        return Tokens()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Of the next token at every position."""
        return next_token_loss(output, target)


def evaluate_text(ensemble: Ensemble, data: TextData) -> Evaluation:
    """Of every next token: how well it is predicted, and whether its text, or its line, is told from others."""
    started = time.perf_counter()
    inside, labels = predicted(ensemble, data.test[0], data)
    seconds = time.perf_counter() - started
    correct = inside.labels == labels
    numbers: Numbers = compute(CLASSIFICATION, inside, labels)
    curves: Curves = {"calibration": as_lists(metrics.calibration_curve(inside.confidence, correct))}
    if len(ensemble) > 1:
        curves["test text/by_token"] = _shown(inside, data.test[0], data)
    for kind, x in data.ood.items():
        outside, _ = predicted(ensemble, x, data)
        numbers |= {f"{kind}/{name}": number for name, number in compute(OOD, inside, labels, outside).items()}
        numbers |= _of_lines(kind, inside, outside, data)
        if len(ensemble) > 1:
            curves[f"{kind}/by_token"] = _shown(outside, x, data)
    return Evaluation(numbers, curves, seconds)


def predicted(ensemble: Ensemble, x: Tensor, data: TextData) -> tuple[ClassPrediction, Tensor]:
    """The prediction of every token but the first of a line, one after another, and these tokens."""
    task = ensemble.likelihood or data.likelihood
    found: ClassPrediction = ensemble.predict(list(x.split(data.at_once)), likelihood=task)
    logits = found.logits[..., :-1].transpose(2, 3).flatten(1, 2)
    return ClassPrediction(logits), x[:, 1:].flatten()


def _of_lines(kind: str, inside: ClassPrediction, outside: ClassPrediction, data: TextData) -> Numbers:
    """How lines are told apart by the mean score of their tokens."""
    numbers: Numbers = {}
    length = data.test[0].shape[1] - 1
    for score in ("one_minus_confidence", "entropy", "mutual_information"):
        if score == "mutual_information" and len(inside.logits) == 1:
            continue  # one network cannot disagree with itself
        scores = [getattr(part, score).view(-1, length).mean(1) for part in (inside, outside)]
        is_ood = torch.arange(sum(map(len, scores))) >= len(scores[0])
        name = {"one_minus_confidence": "confidence", "mutual_information": "information"}.get(score, score)
        numbers[f"{kind}/{LINES.format(name)}"] = metrics.auroc(torch.cat(scores), is_ood)
    return numbers


def _shown(prediction: ClassPrediction, x: Tensor, data: TextData) -> dict[str, list[object]]:
    """The first lines, and the mutual information of each token but the first."""
    text = ["".join(data.characters[token] for token in line) for line in x[:SHOWN].tolist()]
    found = prediction.mutual_information.view(len(x), -1)[:SHOWN]
    return {"text": [*text], "information": [*found.tolist()]}
