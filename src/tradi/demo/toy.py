"""A function is seen only in part, and a good model is unsure where it saw nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from tradi import metrics
from tradi.bench.evaluation import as_lists
from tradi.data import Toy
from tradi.demo.part import Part, Row
from tradi.methods.tradi import TRADI
from tradi.models.regression import GaussianHead, TwoStage
from tradi.prediction.gaussian import GaussianMixture
from tradi.report import charts, figures

SIZE = 330, 250  # of a panel of the page


def regress(data: Toy, seed: int, members: int = 50) -> Part:
    """Train on two thirds of the points, choose TRADI's scale on the others, and predict far beyond them all."""
    torch.manual_seed(seed)
    points = len(data.x) * 2 // 3
    known = replace(data, x=data.x[:points], y=data.y[:points])
    train = list(zip(known.x.split(20), known.y.split(20), strict=True))
    validation = [(data.x[points:], data.y[points:])]
    # A smooth network for a smooth function: a band of ReLU networks has steps where units switch on.
    model = GaussianHead(nn.Sequential(nn.Linear(1, 100), nn.SiLU()), 100)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = TRADI(model, optimizer)
    TwoStage(mse_epochs=300, nll_epochs=100, patience=20).fit(model, optimizer, train, validation)

    posterior = tracker.posterior().fit(train, validation, seed=seed)
    predictions = {
        # With the members' noise: what differs is what they do not agree upon.
        "Single network": posterior.final().predict(data.grid, likelihood=posterior.likelihood),
        "TRADI": posterior.sample(members, seed=seed + 1).predict(data.grid),
        "Exact GP": GaussianMixture(*(part[None] for part in known.ideal())),
    }
    bands = {name: metrics.regression_band(p, data.grid) for name, p in predictions.items()}
    beside = {"truth": data.truth, "train_x": known.x, "train_y": known.y}
    lists = {name: values.flatten().tolist() for name, values in beside.items()}
    curves = {name: [as_lists(band) | lists] for name, band in bands.items()}
    return Part(
        f"Toy: {points} noisy points of a function drawn from a Gaussian process",
        _message(bands, data),
        {name: _measured(prediction, data) for name, prediction in predictions.items()},
        str(posterior.scale_search),
        {"toy-band": figures.regression_band(bands, data.truth, known.x, known.y)},
        lambda methods: charts.bands(curves, methods, SIZE),
    )


def _message(bands: dict[str, metrics.RegressionBand], data: Toy) -> str:
    """By how much each band opens beyond the points."""
    among = data.grid.flatten().abs() <= data.x.abs().max()
    wider = {name: (band.sd[~among].mean() / band.sd[among].mean()).item() for name, band in bands.items()}
    listed = ", ".join(f"{name} {times:.1f} times" for name, times in wider.items())
    return f"How much wider is the band beyond the points than among them? {listed}."


def _measured(prediction: GaussianMixture, data: Toy) -> Row:
    seen = (data.grid.abs() <= data.x.abs().max())[:, 0]
    noise = torch.randn(data.truth.shape, generator=torch.Generator().manual_seed(1)) * data.noise_variance**0.5
    row = {}
    for place, rows in (("among the points", seen), ("beyond them", ~seen)):
        part, y = GaussianMixture(prediction.means[:, rows], prediction.variances[:, rows]), (data.truth + noise)[rows]
        row[f"NLL {place}"] = metrics.mixture_nll(part, y)
        row[f"95% interval covers {place} %"] = 100 * metrics.coverage(part, y, torch.tensor([0.95])).item()
    return row
