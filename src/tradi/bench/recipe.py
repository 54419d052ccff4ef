"""How a network is trained: the same for every method of a benchmark."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR, PolynomialLR

from tradi.extras import require
from tradi.models.regression import TwoStage
from tradi.posterior.posterior import Posterior


@dataclass(frozen=True)
class Recipe:
    """Optimizer, schedule and length of a training run.

    Args:
        optimizer: "adam", "adamw", "sgd" or "ivon".
        lr: learning rate.
        weight_decay: L2 for Adam and SGD, decoupled for AdamW, the prior's precision over the samples for IVON.
        momentum: of SGD and IVON.
        epochs: passes over the training data, in classification.
        batch: samples a step.
        decay: "cosine" or "polynomial" (of power 0.9) to 0, or the epochs after which the rate is divided by 10.
        stages: the two stages of regression, in place of `epochs` and `decay`.
        compiled: steps run through torch.compile, where there is a compiler: for trainings that outlast its minutes.
        scratch: begin with random weights, where the benchmark has an earlier training to begin with.
        prior: the posterior of that earlier training; the runner fills it in.
    """

    optimizer: str
    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.0
    epochs: int = 0
    batch: int = 128
    decay: str | tuple[int, ...] = ()
    stages: TwoStage | None = None
    compiled: bool = False
    scratch: bool = field(default=False, repr=False)
    prior: Posterior | None = field(default=None, repr=False, compare=False)

    def late(self, steps: int, share: float) -> tuple[int, int]:
        """The step at which the last `share` of training begins, and the number of steps that follow at the least.

        Of two stages it is the second, whatever its share: there is no variance head before it.

        Args:
            steps: of an epoch.
            share: 0 to 1.
        """
        if self.stages is not None:
            return steps * self.stages.mse_epochs, steps * min(self.stages.patience + 1, self.stages.nll_epochs)
        late = int(steps * self.epochs * share)
        return steps * self.epochs - late, late

    def build(self, model: nn.Module, samples: int | None = None) -> Optimizer:
        """The optimizer of this recipe; fused, since small networks wait for Python more than for arithmetic.

        Args:
            model: whose weights it moves.
            samples: of the training data; IVON must know.
        """
        weights, decay = model.parameters(), self.weight_decay
        if self.optimizer == "ivon":
            ivon: Optimizer = require("ivon", "speed").IVON(
                weights, self.lr, samples, beta1=self.momentum, weight_decay=decay
            )
            return ivon
        if self.optimizer == "sgd":
            return torch.optim.SGD(weights, self.lr, self.momentum, weight_decay=decay, fused=True)
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[self.optimizer]
        return kind(weights, self.lr, weight_decay=decay, fused=True)

    def sampled(self, optimizer: Any) -> AbstractContextManager[None]:
        """What a gradient is computed in: IVON draws weights for it."""
        return optimizer.sampled_params(train=True) if self.optimizer == "ivon" else nullcontext()

    def schedule(self, optimizer: Optimizer, steps_per_epoch: int) -> LRScheduler:
        """The learning-rate schedule, stepped after every batch."""
        if self.decay == "cosine":
            return CosineAnnealingLR(optimizer, self.epochs * steps_per_epoch)
        if self.decay == "polynomial":
            return PolynomialLR(optimizer, self.epochs * steps_per_epoch, 0.9)
        return MultiStepLR(optimizer, [int(epoch) * steps_per_epoch for epoch in self.decay], 0.1)

    def quick(self) -> Recipe:
        """The same, as short as can be."""
        stages = None if self.stages is None else replace(self.stages, mse_epochs=2, nll_epochs=2)
        return replace(self, epochs=2, stages=stages, batch=min(self.batch, 16), compiled=False)
