"""Draw the pictures of "How it works": python docs/pictures/make.py (needs the extra `demo`; half a minute).

Everything in them comes from this run: seed 0, small networks, data that scikit-learn or tradi makes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import tradi
from tradi.data import Toy, toy
from tradi.models import mlp
from tradi.models.regression import GaussianHead, TwoStage
from tradi.posterior.posterior import Posterior
from tradi.report.style import BLUE, GREY, MATPLOTLIB

HERE = Path(__file__).parent

plt.rcParams.update(MATPLOTLIB)
plt.rcParams.update({"svg.hashsalt": "tradi", "savefig.bbox": "tight"})  # the same picture gives the same file


def trajectory() -> None:
    """Three weights of a small classifier during training, and the Gaussian that the filter has of each."""
    torch.manual_seed(0)
    data = tradi.data.digits()
    x, y = data.train
    model = mlp(64, [32], data.classes)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 600, 0.1)
    tracker = tradi.TRADI(model, optimizer)
    name, shown = "0.weight", [(3, 20), (7, 28), (21, 36)]
    seen, mean, std = [], [], []
    for _ in range(900):
        batch = torch.randint(len(x), (8,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        scheduler.step()
        posterior = tracker.posterior()
        weight = dict(model.named_parameters())[name]
        seen.append([weight[place].item() for place in shown])
        mean.append([posterior.mean[name][place].item() for place in shown])
        std.append([posterior.variance[name][place].sqrt().item() for place in shown])
    w, m, s = np.array(seen), np.array(mean), np.array(std)
    figure, axes = plt.subplots(1, len(shown), figsize=(9, 2.6), sharex=True)
    steps = np.arange(1, len(w) + 1)
    for k, ax in enumerate(axes):
        ax.plot(steps, w[:, k], color=GREY, lw=0.7, label="weight")
        ax.plot(steps, m[:, k], color=BLUE, lw=1.6, label="tracked mean")
        ax.fill_between(
            steps,
            m[:, k] - 2 * s[:, k],
            m[:, k] + 2 * s[:, k],
            color=BLUE,
            alpha=0.2,
            lw=0,
            label="± 2 standard deviations",
        )
        ax.set_xlabel("optimizer step")
    axes[0].set_ylabel("value of the weight")
    axes[0].legend(loc="best", fontsize=8)
    _save(figure, "trajectory")


def conditioning() -> None:
    """The toy's band of one network, of members as they were tracked, and of members conditioned on the points."""
    data = toy(points=90, seed=0)
    points = len(data.x) * 2 // 3
    known = replace(data, x=data.x[:points], y=data.y[:points])
    train = list(zip(known.x.split(20), known.y.split(20), strict=True))
    validation = [(data.x[points:], data.y[points:])]
    torch.manual_seed(0)
    model = GaussianHead(nn.Sequential(nn.Linear(1, 200), nn.SiLU()), 200)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    tracker = tradi.TRADI(model, optimizer, covariance=tradi.Independent())
    TwoStage(mse_epochs=300, nll_epochs=100, patience=20).fit(model, optimizer, train, validation)
    tracked = tracker.posterior()
    bands: dict[str, Posterior] = {
        "one network": tracked.rescaled(0),
        "tracked noise, as large as\nvalidation data admits": tracked.choose_scale(validation),
        "conditioned on the points": tracked.fit(train, validation),
    }
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharex=True, sharey=True)
    for ax, (title, posterior) in zip(axes, bands.items(), strict=True):
        ensemble = posterior.final() if title == "one network" else posterior.sample(50, seed=1)
        prediction = ensemble.predict(data.grid, likelihood=tradi.likelihoods.Gaussian())
        _band(ax, known, prediction.mean, prediction.variance.sqrt(), prediction.epistemic.sqrt())
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("x")
    axes[0].set_ylabel("y")
    axes[0].set_ylim(-5, 7)
    axes[2].legend(loc="upper center", fontsize=8)
    _save(figure, "conditioning")


def _band(ax: plt.Axes, known: Toy, mean: torch.Tensor, std: torch.Tensor, epistemic: torch.Tensor) -> None:
    grid, mean, std, epistemic = (part.flatten() for part in (known.grid, mean, std, epistemic))
    ax.fill_between(grid, mean - 2 * std, mean + 2 * std, color=BLUE, alpha=0.15, lw=0, label="± 2 standard deviations")
    ax.fill_between(
        grid, mean - 2 * epistemic, mean + 2 * epistemic, color=BLUE, alpha=0.35, lw=0, label="members' disagreement"
    )
    ax.plot(grid, known.truth.flatten(), color=GREY, lw=1, ls="--", label="true function")
    ax.plot(grid, mean, color=BLUE, lw=1.4)
    ax.plot(known.x.flatten(), known.y.flatten(), ".", color="black", ms=3)


def noise() -> None:
    """Pixels of digits: how much they vary in training, and how large a member's noise on them is."""
    torch.manual_seed(0)
    data = tradi.data.digits()
    x, y = data.train
    model = mlp(64, [100], data.classes)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    tracker = tradi.TRADI(model, optimizer)
    for _ in range(40):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    posterior = tracker.posterior().fit([data.train], [data.validation])
    drawn = torch.stack([posterior.noise(i)["0.weight"] for i in range(50)]) * posterior.scale
    panels = {
        "an image": ("pixel, standardised", x[0]),
        "how much pixels\nvary in training": ("standard deviation", x.std(0)),
        "noise on the weights\nof each pixel": ("standard deviation", drawn.std((0, 1))),
    }
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.7))
    for ax, (title, (unit, values)) in zip(axes, panels.items(), strict=True):
        scale = "log" if title.startswith("noise") else None
        image = ax.imshow(values.view(8, 8), cmap="Greys" if title == "an image" else "cividis", norm=scale)
        ax.set_title(title, fontsize=10)
        ax.axis("off")
        figure.colorbar(image, ax=ax, shrink=0.85, label=unit)
    _save(figure, "noise")


def _save(figure: plt.Figure, name: str) -> None:
    figure.tight_layout()
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    trajectory()
    conditioning()
    noise()
