"""Weights that move although no step is seen: noticed early in training, not after it."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from tradi.tracking.recognition import Fingerprint
from tradi.tracking.selection import Weight

PASSES = 10  # backward passes, after which weights are looked at, and again after twice as many


class Unseen:
    """Counts backward passes until a step is seen. Gradients that are accumulated over many batches move no weights.

    Args:
        weights: those that are tracked, as they are before training.
    """

    def __init__(self, weights: list[Weight]) -> None:
        self._before, self._passes, self._next = Fingerprint(), 0, PASSES
        self._own = {weight.name: weight for weight in weights}
        self._before.take(weights)
        after = torch.compiler.disable(self._after_backward)
        self._handles = [weight.parameter.register_post_accumulate_grad_hook(after) for weight in weights[-1:]]

    def stop(self) -> None:
        """A step was seen, or nobody waits for one any more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _after_backward(self, parameter: Tensor) -> None:
        del parameter
        self._passes += 1
        if self._passes < self._next:
            return
        self._next *= 2
        if self._before.change(self._own):
            self.stop()
            warnings.warn(
                f"the weights have moved in {self._passes} backward passes, and no step of the optimizer was seen: it "
                "moves them by other methods than step(), as SAM does, or another optimizer does, perhaps a copy. "
                "Attach to the optimizer whose step() is called, such as SAM's base_optimizer",
                stacklevel=2,
            )
