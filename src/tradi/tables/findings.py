"""What a model achieves on rows that it was not trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tradi.metrics.classification import accuracy, ece, nll_from_log_probs
from tradi.metrics.curves import Calibration, calibration_curve
from tradi.metrics.regression import coverage, mixture_crps, mixture_nll, rmse
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture
from tradi.tables.columns import Encoded
from tradi.tables.foreign import SHARE
from tradi.tables.model import INTERVALS, Judged, TableModel

SURPRISING = 10  # rows in the table of surprises
BINS = 10


@dataclass(frozen=True)
class Figure:
    """One number of the report: its name, its value as shown, and what it says."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, eq=False)
class Findings:
    """A model, and what it makes of rows whose target is known.

    Args:
        model: which was trained on others.
        rows: what it makes of them.
        truth: their targets: numbers in their own unit, or class numbers.
        numbers: their places in the table, from 1.
        tested: they were kept for this alone; else the OOD threshold was chosen by them.
    """

    model: TableModel
    rows: Judged
    truth: NDArray[Any]
    numbers: NDArray[np.int64]
    tested: bool

    @staticmethod
    def of(model: TableModel, rows: Encoded, y: NDArray[Any], numbers: NDArray[np.int64], tested: bool) -> Findings:
        """Let the model judge encoded rows.

        Args:
            model: the model.
            rows: encoded.
            y: their targets, as the network learns them.
            numbers: their places in the table, from 1.
            tested: whether they were kept for this alone.
        """
        target = model.description.target
        truth = y if target.classes is not None else y[:, 0] * target.std + target.mean
        return Findings(model, model.judged(rows), truth, numbers, tested)

    @property
    def figures(self) -> list[Figure]:
        """Accuracy, likelihood, calibration, and the share of rows that is flagged."""
        prediction, truth = self.rows.prediction, torch.from_numpy(self.truth)
        flagged = Figure("flagged as OOD", f"{self.rows.is_ood.mean():.1%}", f"about {1 - SHARE:.0%} is expected")
        if isinstance(prediction, GaussianMixture):
            return [*_of_numbers(prediction, truth), flagged]
        return [*_of_classes(prediction, truth), flagged]

    def coverage(self, levels: torch.Tensor) -> torch.Tensor:
        """Share of targets inside the central interval of each level, for numbers."""
        assert isinstance(self.rows.prediction, GaussianMixture)
        return coverage(self.rows.prediction, torch.from_numpy(self.truth), levels)

    def reliability(self) -> Calibration:
        """Accuracy against confidence, for classes."""
        prediction = self.rows.prediction
        assert isinstance(prediction, ClassPrediction)
        return calibration_curve(prediction.confidence, prediction.labels == torch.from_numpy(self.truth), BINS)

    @property
    def surprises(self) -> list[dict[str, str]]:
        """The rows whose target was least expected, most surprising first."""
        log_prob = self.rows.prediction.log_prob(torch.from_numpy(self.truth)).numpy()
        return [self._surprise(int(row)) for row in np.argsort(log_prob, kind="stable")[:SURPRISING]]

    def _surprise(self, row: int) -> dict[str, str]:
        prediction, truth = self.rows.prediction, self.truth[row]
        found = {"row": f"{self.numbers[row]}"}
        if isinstance(prediction, GaussianMixture):
            mean, std = prediction.mean[row].item(), prediction.variance[row].sqrt().item()
            digits = _digits(prediction.variance.sqrt())
            found |= {"actual": f"{truth:.{digits}f}", "predicted": f"{mean:.{digits}f}", "std": f"{std:.{digits}f}"}
            found |= {"off by": f"{abs(truth - mean) / std:.1f} std"}
        else:
            classes = self.model.description.target.classes or ()
            probs = prediction.probs[row]
            found |= {"actual": classes[truth], "predicted": classes[int(probs.argmax())]}
            found |= {"p of actual": f"{probs[truth].item():.1%}"}
        ood = f"{self.rows.score[row]:.2f}" + (", OOD" if self.rows.is_ood[row] else "")
        return found | {"OOD score": ood}


def _digits(std: torch.Tensor) -> int:
    """After the point, the same in all rows: so many that a usual deviation has two or three."""
    return max(0, 1 - math.floor(math.log10(std.median().item())))


def _of_numbers(prediction: GaussianMixture, truth: torch.Tensor) -> list[Figure]:
    shares = coverage(prediction, truth, torch.tensor([percent / 100 for percent in INTERVALS]))
    spread = truth.std(correction=0).item()
    return [
        Figure("RMSE", f"{rmse(prediction.mean, truth):.4g}", f"always guessing the mean of these rows: {spread:.4g}"),
        Figure("NLL", f"{mixture_nll(prediction, truth):.4g}", "negative log-likelihood in nats, lower is better"),
        Figure("CRPS", f"{mixture_crps(prediction, truth):.4g}", "in the target's unit, lower is better"),
        *(
            Figure(f"inside the {percent}% interval", f"{share:.1%}", f"{percent}% if calibrated")
            for percent, share in zip(INTERVALS, shares.tolist(), strict=True)
        ),
    ]


def _of_classes(prediction: ClassPrediction, truth: torch.Tensor) -> list[Figure]:
    correct = prediction.labels == truth
    usual = truth.bincount().max().item() / len(truth)
    return [
        Figure("accuracy", f"{accuracy(prediction.probs, truth):.1%}", f"always guessing the commonest: {usual:.1%}"),
        Figure("NLL", f"{nll_from_log_probs(prediction.log_probs, truth):.4g}", "nats, lower is better"),
        Figure(
            "ECE", f"{ece(prediction.confidence, correct):.1%}", "confidence is off by this on average; 0 if calibrated"
        ),
    ]
