"""The main job in under a minute, on data that needs no download: digits with unknown classes, and the paper's toy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi import metrics
from tradi.data import Digits, Toy, digits, toy
from tradi.methods.tradi import TRADI
from tradi.models import mlp
from tradi.prediction import Categorical, GaussianMixture
from tradi.progress import track
from tradi.regression import MeanVariance, TwoStage
from tradi.report import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = dict[str, dict[str, float]]  # method -> measure -> value


@dataclass(frozen=True)
class Part:
    """One half of the demo: what was compared, how TRADI's scale was chosen, and the figures by file name."""

    title: str
    table: Table
    scale: str
    figures: dict[str, Figure]


def run(out: Path, seed: int = 0) -> list[Part]:
    """Train, compare the single network with TRADI, write the figures to `out`."""
    parts = [classify(digits(seed=seed), seed), regress(toy(points=90, seed=seed), seed)]
    out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for name, figure in part.figures.items():
            figure.savefig(out / f"{name}.png")
    return parts


def classify(data: Digits, seed: int, epochs: int = 60, members: int = 20) -> Part:
    """Eight digits are learnt; the other two come up in testing, and a good model notices."""
    torch.manual_seed(seed)
    model = mlp(64, [100, 100], data.classes, batchnorm=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    tracker = TRADI(model, optimizer)
    x, y = data.train
    for _ in track(range(epochs), "learning digits", epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()

    posterior = tracker.posterior().choose_scale([data.validation], refresh=[data.train], seed=seed)
    ensemble = posterior.sample(members, seed=seed + 1).refresh([data.train])
    model.eval()
    with torch.no_grad():
        inside = {
            "Single network": Categorical(model(data.test[0])[None]),
            "TRADI": Categorical(ensemble(data.test[0])),
        }
        ood = {"Single network": Categorical(model(data.ood)[None]), "TRADI": Categorical(ensemble(data.ood))}
    curves, histograms = {}, {}
    for name in inside:
        correct = inside[name].labels == data.test[1]
        everything = metrics.with_ood(inside[name].confidence, correct, ood[name].confidence)
        curves[name] = metrics.accuracy_confidence(*everything)
        confidence, is_ood = _joined(inside[name].confidence, ood[name].confidence)
        histograms[name] = metrics.confidence_histogram(confidence, is_ood)
    return Part(
        f"Digits: {len(data.test[1])} test images of {data.classes} known classes, {len(data.ood)} of unknown ones",
        {name: _classification(inside[name], ood[name], data.test[1]) for name in inside},
        str(posterior.choice),
        {
            "digits-confidence": figures.confidence_histogram(histograms),
            "digits-accuracy-confidence": figures.accuracy_confidence(curves),
        },
    )


def regress(data: Toy, seed: int, members: int = 50) -> Part:
    """A function is seen only in part, and a good model is unsure where it saw nothing."""
    torch.manual_seed(seed)
    points = len(data.x) * 2 // 3
    train = list(zip(data.x[:points].split(20), data.y[:points].split(20), strict=True))
    validation = [(data.x[points:], data.y[points:])]
    model = MeanVariance(mlp(1, [200]), 200)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = TRADI(model, optimizer)
    TwoStage(mse_epochs=300, nll_epochs=100, patience=20).fit(model, optimizer, train, validation)

    posterior = tracker.posterior().choose_scale(validation, seed=seed)
    with torch.no_grad():
        mean, variance = model(data.grid)
    predictions = {
        "Single network": GaussianMixture(mean[None], variance[None]),
        "TRADI": GaussianMixture(*posterior.sample(members, seed=seed + 1)(data.grid)),
        "Exact GP": GaussianMixture(*(part[None] for part in data.ideal())),
    }
    bands = {name: metrics.regression_band(p, data.grid) for name, p in predictions.items()}
    return Part(
        f"Toy: {points} noisy points of a function drawn from a Gaussian process",
        {name: _regression(prediction, data) for name, prediction in predictions.items()},
        str(posterior.choice),
        {"toy-band": figures.regression_band(bands, data.truth, data.x[:points], data.y[:points])},
    )


def _joined(inside: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    is_ood = torch.cat([torch.zeros_like(inside, dtype=torch.bool), torch.ones_like(ood, dtype=torch.bool)])
    return torch.cat([inside, ood]), is_ood


def _classification(inside: Categorical, ood: Categorical, labels: Tensor) -> dict[str, float]:
    confidence = metrics.ood_metrics(*_joined(1 - inside.confidence, 1 - ood.confidence))
    row = {
        "accuracy %": 100 * metrics.accuracy(inside.probs, labels),
        "NLL": -inside.log_prob(labels).mean().item(),
        "OOD AUROC %": 100 * confidence.auroc,
        "FPR95 %": 100 * confidence.fpr95,
        "joint ECE": metrics.joint_ece(inside.confidence, inside.labels == labels, ood.confidence),
    }
    if len(inside.logits) > 1:
        knowledge = metrics.ood_metrics(*_joined(inside.mutual_information, ood.mutual_information))
        row["AUROC % by mutual information"] = 100 * knowledge.auroc
    return row


def _regression(prediction: GaussianMixture, data: Toy) -> dict[str, float]:
    seen = (data.grid.abs() <= data.x.abs().max())[:, 0]
    noise = torch.randn(data.truth.shape, generator=torch.Generator().manual_seed(1)) * data.noise_variance**0.5
    row = {}
    for place, rows in (("among the points", seen), ("beyond them", ~seen)):
        part, y = GaussianMixture(prediction.means[:, rows], prediction.variances[:, rows]), (data.truth + noise)[rows]
        row[f"NLL {place}"] = metrics.mixture_nll(part, y)
        row[f"95% interval covers {place} %"] = 100 * metrics.coverage(part, y, torch.tensor([0.95])).item()
    return row
