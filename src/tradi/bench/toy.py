"""The toy regression of section 4.1 and figure 2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from tradi.bench.methods import Tradi, usual_methods
from tradi.bench.problem import Data
from tradi.bench.recipe import Recipe
from tradi.bench.spec import Benchmark, Variant
from tradi.bench.tables import ByMethod, Column
from tradi.data import toy
from tradi.models import mlp
from tradi.models.regression import GaussianHead, TwoStage

POINTS = 60  # to train on; half as many more to choose scales on
MEMBERS = 100  # where they disagree, a mixture of a few narrow ones has gaps, and its NLL is a matter of luck

# The network of a regression benchmark has no dropout, so MC Dropout trains one of its own.
METHODS = usual_methods(members=MEMBERS, dropout=0.05) | {"TRADI as in the paper": Tradi.paper()}

TABLE = ByMethod(
    (
        Column("NLL among the points", "inside/nll_mixture", digits=3),
        Column("95% covers %, among", "inside/coverage95", 100, 1, higher=None),
        Column("sd over exact GP's, among", "inside/sd_over_ideal", higher=None),
        Column("NLL beyond", "outside/nll_mixture", digits=3),
        Column("95% covers %, beyond", "outside/coverage95", 100, 1, higher=None),
        Column("sd over exact GP's, beyond", "outside/sd_over_ideal", higher=None),
    )
)


def load(root: Path, split: int, seed: int) -> Data:
    """A function drawn from the Gaussian process by the seed, with noisy points of it."""
    del root, split
    source = toy(points=POINTS * 3 // 2 + 500, seed=seed)
    sizes = [POINTS, POINTS // 2, 500]
    train, validation, test = zip(source.x.split(sizes), source.y.split(sizes), strict=True)
    mean, variance = replace(source, x=train[0], y=train[1]).ideal()
    noise = torch.randn(source.truth.shape, generator=torch.Generator().manual_seed(seed)) * source.noise_variance**0.5
    extra = {"grid": source.grid, "truth": source.truth, "noisy": source.truth + noise}
    extra |= {"ideal_mean": mean, "ideal_variance": variance, "train_x": train[0], "train_y": train[1]}
    return Data(train, validation, test, extra=extra)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sine": lambda x: torch.sin(2 * x),
    "cubic": lambda x: (x / 2) ** 3,
    "step": lambda x: torch.where(x < 1.5, -1.0, 1.0),
}


def load_function(name: str, root: Path, split: int, seed: int) -> Data:
    """Noisy points of a function that no Gaussian process drew; beyond them the exact answer is the function itself."""
    del root, split
    source = toy(points=POINTS * 3 // 2 + 500, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    truth, sizes = FUNCTIONS[name], [POINTS, POINTS // 2, 500]
    deviation = source.noise_variance**0.5
    y = truth(source.x) + deviation * torch.randn(source.x.shape, generator=generator)
    train, validation, test = zip(source.x.split(sizes), y.split(sizes), strict=True)
    exact = truth(source.grid)
    extra = {"grid": source.grid, "truth": exact}
    extra |= {"noisy": exact + deviation * torch.randn(exact.shape, generator=generator)}
    extra |= {"ideal_mean": exact, "ideal_variance": torch.full_like(exact, source.noise_variance)}
    return Data(train, validation, test, extra=extra | {"train_x": train[0], "train_y": train[1]})


def network(data: Data, dropout: float | None) -> nn.Module:
    """One hidden layer of 200."""
    return GaussianHead(mlp(data.inputs, [200], dropout=dropout or 0.0), 200)


RECIPE = Recipe("adam", 1e-2, batch=20, stages=TwoStage(mse_epochs=300, nll_epochs=100, patience=20))

TOY = Benchmark(
    "toy",
    "Toy regression: functions drawn from a Gaussian process (figure 2), and three others",
    (
        Variant("gp", load, network, RECIPE),
        *(Variant(name, partial(load_function, name), network, RECIPE) for name in FUNCTIONS),
    ),
    METHODS,
    (TABLE,),
    seeds=tuple(range(10)),
)
