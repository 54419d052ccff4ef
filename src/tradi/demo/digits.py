"""Eight digits are learnt; the two others, and inverted images, come up in testing, and a good model notices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from tradi import metrics
from tradi.bench.evaluation import as_lists
from tradi.data import Images
from tradi.demo.part import Part, Row
from tradi.demo.ranking import Ranking, drawn, figure
from tradi.methods.tradi import TRADI
from tradi.models import mlp
from tradi.prediction.classes import ClassPrediction
from tradi.progress import track

Predictions = dict[str, ClassPrediction]  # of test data by "", of what is unknown by its name


@dataclass(frozen=True)
class Compared:
    """What one network or ensemble predicts for test images, and for what it has never seen."""

    inside: ClassPrediction
    outside: Predictions
    labels: Tensor

    @property
    def confidence(self) -> tuple[Tensor, Tensor]:
        """Of all images, and which of them are unknown."""
        return joined(self.inside.confidence, torch.cat([one.confidence for one in self.outside.values()]))


def classify(data: Images, seed: int, epochs: int = 60, members: int = 20) -> Part:
    """Train once, and compare the network with TRADI's ensemble of the same run."""
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
    images, labels = data.test
    unknown = {**data.ood, "inverted images": x.max() + x.min() - images}
    compared = {
        name: Compared(network.predict(images), {kind: network.predict(x) for kind, x in unknown.items()}, labels)
        for name, network in (("Single network", posterior.final()), ("TRADI", ensemble))
    }
    ranking = _ranked(compared["TRADI"], data)
    histograms = {name: [as_lists(metrics.confidence_histogram(*one.confidence))] for name, one in compared.items()}
    return Part(
        f"Digits: {len(labels)} test images of {data.classes} classes, "
        f"{len(data.ood['unknown digits'])} of unknown digits",
        f"All test images and unknown digits, ranked by how much the members disagree. {ranking.message}",
        {name: _measured(one) for name, one in compared.items()},
        str(posterior.scale_search),
        {"digits-ranked": figure(ranking)},
        partial(drawn, ranking, histograms),
    )


def _ranked(compared: Compared, data: Images) -> Ranking:
    """Test images and unknown digits, by TRADI's mutual information."""
    predictions = compared.inside, compared.outside["unknown digits"]
    information, is_unknown = joined(*(one.mutual_information for one in predictions))
    order = information.argsort()
    images = torch.cat([data.test[0], data.ood["unknown digits"]])
    # Pixels are standardised by one mean and deviation: brightness is a shift and a scale away.
    images = (images - images.min()) / (images.max() - images.min())
    labels = torch.cat([one.labels for one in predictions])
    return Ranking(images[order].view(-1, 8, 8), labels[order], information[order], is_unknown[order])


def joined(inside: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of both kinds, and which of them are OOD."""
    is_ood = torch.cat([torch.zeros_like(inside, dtype=torch.bool), torch.ones_like(ood, dtype=torch.bool)])
    return torch.cat([inside, ood]), is_ood


def _measured(compared: Compared) -> Row:
    inside, labels = compared.inside, compared.labels
    row = {"accuracy %": 100 * metrics.accuracy(inside.probs, labels), "NLL": -inside.log_prob(labels).mean().item()}
    for kind, ood in compared.outside.items():
        by_confidence = metrics.ood_metrics(*joined(inside.one_minus_confidence, ood.one_minus_confidence))
        row[f"{kind}: AUC % by confidence"] = 100 * by_confidence.auroc
        row[f"{kind}: FPR95 % by confidence"] = 100 * by_confidence.fpr95
        if len(inside.logits) > 1:
            by_information = metrics.ood_metrics(*joined(inside.mutual_information, ood.mutual_information))
            row[f"{kind}: AUC % by mutual information"] = 100 * by_information.auroc
    return row
