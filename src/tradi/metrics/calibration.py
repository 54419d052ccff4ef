"""Temperature scaling of an ensemble."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tradi.metrics import checks

# A temperature outside this range would mean that the validation data are separable or uninformative.
LOWEST, HIGHEST = 0.01, 100.0
# Enough targets to fit one number. From more, such as the pixels of many images, evenly spaced ones are used.
ENOUGH = 100_000


@dataclass(frozen=True)
class Temperature:
    """Divides logits by one positive number, the same for every member and class.

    Args:
        temperature: T.

    Raises:
        ValueError: if it is not positive and finite.
    """

    temperature: float

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {self.temperature}")

    def __call__(self, logits: Tensor) -> Tensor:
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature


def fit_temperature(logits: Tensor, labels: Tensor) -> Temperature:
    r"""The temperature in [0.01, 100] that gives the ensemble the lowest NLL on validation data.

    $$ T^* = \arg\min_T -\frac1n \sum_i \log \frac1M \sum_j \mathrm{softmax}(\ell_{ij} / T)_{y_i} $$

    Unlike the loss of one network, this loss may have several minima. A grid over log T finds the best one, and finer
    grids around the best point locate it to a relative 1e-5.

    Args:
        logits: logits of held-out data, (members, batch, classes, ...).
        labels: their classes, (batch, ...); negative ones, such as void pixels, are ignored.

    Returns:
        the temperature, which is called with logits and gives them divided by it.

    Raises:
        ValueError: if shapes or values are invalid, or all labels are negative.
    """
    if logits.ndim < 3 or logits.shape[0] == 0:
        raise ValueError(f"logits must be (members, batch, classes, ...), got shape {tuple(logits.shape)}")
    checks.labelled("logits of one member", logits[0], labels.clamp_min(0))
    known = (labels.flatten() >= 0).nonzero()[:, 0]
    if len(known) == 0:
        raise ValueError("labels must not all be negative: there is nothing to fit a temperature to")
    known = known[:: -(-len(known) // ENOUGH)]
    logits = logits.detach().movedim(2, -1).flatten(1, -2)[:, known].double()  # (members, targets, classes)
    checks.finite(logits=logits)
    index = labels.flatten()[known].long().expand(len(logits), -1).unsqueeze(2)
    grid = torch.linspace(math.log(LOWEST), math.log(HIGHEST), 33, dtype=torch.float64)
    for _ in range(9):
        losses = torch.stack([_ensemble_nll(logits / point.exp(), index) for point in grid])
        best = int(losses.argmin())
        ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        grid = torch.linspace(float(ends[0]), float(ends[1]), 9, dtype=torch.float64)
    return Temperature(math.exp(float(grid[4])))


def _ensemble_nll(logits: Tensor, index: Tensor) -> Tensor:
    log_probs = logits.gather(2, index) - logits.logsumexp(2, keepdim=True)
    return -(log_probs.logsumexp(0) - math.log(len(logits))).mean()
