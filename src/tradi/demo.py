"""The main job in under a minute, on data that needs no download: digits with unknown classes, and the paper's toy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi import __version__, metrics
from tradi.data import Images, Toy, digits, toy
from tradi.methods.tradi import TRADI
from tradi.models import mlp
from tradi.models.regression import GaussianHead, TwoStage
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture
from tradi.progress import track
from tradi.report import figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, float]  # measure -> value
Table = dict[str, dict[str, list[float]]]  # method -> measure -> a value for every seed


@dataclass(frozen=True)
class Part:
    """One half of the demo: what was compared, how TRADI's scale was chosen, and the figures by file name."""

    title: str
    rows: dict[str, Row]
    scale: str
    figures: dict[str, Figure]


def run(out: Path, seeds: Sequence[int] = (0,)) -> list[tuple[Part, Table]]:
    """Train, compare the single network with TRADI, write figures (of the first seed) and numbers to `out`."""
    every = [[classify(digits(seed=seed), seed), regress(toy(points=90, seed=seed), seed)] for seed in seeds]
    parts = every[0]
    tables = [_gathered([one[number].rows for one in every]) for number in range(len(parts))]
    out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for name, figure in part.figures.items():
            figure.savefig(out / f"{name}.png")
    record = {
        "command": f"tradi demo --seeds {' '.join(map(str, seeds))}",
        "versions": {"tradi": __version__, "torch": torch.__version__},
        "tables": {part.title: table for part, table in zip(parts, tables, strict=True)},
    }
    (out / "demo.json").write_text(json.dumps(record, indent=2) + "\n")
    return list(zip(parts, tables, strict=True))


def _gathered(tables: Sequence[dict[str, Row]]) -> Table:
    return {m: {name: [table[m][name] for table in tables] for name in row} for m, row in tables[0].items()}


def classify(data: Images, seed: int, epochs: int = 60, members: int = 20) -> Part:
    """Eight digits are learnt; other digits, and inverted images, come up in testing, and a good model notices."""
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

    posterior = tracker.posterior().fit([data.train], [data.validation], seed=seed)
    ensemble = posterior.sample(members, seed=seed + 1)
    single = posterior.final()
    images, labels = data.test
    unknown = {**data.ood, "inverted images": x.max() + x.min() - images}
    table, curves, histograms = {}, {}, {}
    for name, network in (("Single network", single), ("TRADI", ensemble)):
        inside = network.predict(images)
        outside = {kind: network.predict(ood) for kind, ood in unknown.items()}
        table[name] = _classification(inside, outside, labels)
        confidence = torch.cat([p.confidence for p in outside.values()])
        curves[name] = metrics.accuracy_confidence(
            *metrics.with_ood(inside.confidence, inside.labels == labels, confidence)
        )
        histograms[name] = metrics.confidence_histogram(*_joined(inside.confidence, confidence))
    return Part(
        f"Digits: {len(labels)} test images of {data.classes} classes, "
        f"{len(data.ood['unknown digits'])} of unknown digits",
        table,
        str(posterior.scale_search),
        {
            "digits-confidence": figures.confidence_histogram(histograms),
            "digits-accuracy-confidence": figures.accuracy_confidence(curves),
        },
    )


def regress(data: Toy, seed: int, members: int = 50) -> Part:
    """A function is seen only in part, and a good model is unsure where it saw nothing."""
    torch.manual_seed(seed)
    points = len(data.x) * 2 // 3
    known = replace(data, x=data.x[:points], y=data.y[:points])
    train = list(zip(data.x[:points].split(20), data.y[:points].split(20), strict=True))
    validation = [(data.x[points:], data.y[points:])]
    model = GaussianHead(mlp(1, [200]), 200)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = TRADI(model, optimizer)
    TwoStage(mse_epochs=300, nll_epochs=100, patience=20).fit(model, optimizer, train, validation)

    posterior = tracker.posterior().fit(train, validation, seed=seed)
    predictions = {
        "Single network": posterior.final().predict(data.grid),
        "TRADI": posterior.sample(members, seed=seed + 1).predict(data.grid),
        "Exact GP": GaussianMixture(*(part[None] for part in known.ideal())),
    }
    bands = {name: metrics.regression_band(p, data.grid) for name, p in predictions.items()}
    return Part(
        f"Toy: {points} noisy points of a function drawn from a Gaussian process",
        {name: _regression(prediction, data) for name, prediction in predictions.items()},
        str(posterior.scale_search),
        {"toy-band": figures.regression_band(bands, data.truth, data.x[:points], data.y[:points])},
    )


def _joined(inside: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    is_ood = torch.cat([torch.zeros_like(inside, dtype=torch.bool), torch.ones_like(ood, dtype=torch.bool)])
    return torch.cat([inside, ood]), is_ood


def _classification(inside: ClassPrediction, outside: dict[str, ClassPrediction], labels: Tensor) -> dict[str, float]:
    row = {"accuracy %": 100 * metrics.accuracy(inside.probs, labels), "NLL": -inside.log_prob(labels).mean().item()}
    for kind, ood in outside.items():
        by_confidence = metrics.ood_metrics(*_joined(inside.one_minus_confidence, ood.one_minus_confidence))
        row[f"{kind}: AUROC % by confidence"] = 100 * by_confidence.auroc
        row[f"{kind}: FPR95 % by confidence"] = 100 * by_confidence.fpr95
        if len(inside.logits) > 1:
            by_information = metrics.ood_metrics(*_joined(inside.mutual_information, ood.mutual_information))
            row[f"{kind}: AUROC % by mutual information"] = 100 * by_information.auroc
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
