"""Noise where activations have no energy: in directions that the training inputs of a layer hardly take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tradi.posterior.covariance import Covariance, Piece
from tradi.posterior.head import Seen
from tradi.posterior.layers import Layer, Moments
from tradi.posterior.randomness import Stream
from tradi.posterior.rows import Form, is_linear, positions, rows

SAMPLES = 4096  # training inputs that second moments are measured on, at the most
PLACES = 8  # positions of a sample, at the most: the same random ones for all samples of a batch
WIDEST = 2048  # inputs of a layer whose second moments are kept as a matrix; of wider ones the diagonal alone
WIDE, NARROW = 512, 16  # likewise of wide layers with more than so many inputs per output, such as an adapter's


@dataclass(frozen=True)
class Activations(Covariance):
    r"""Noise of a linear layer in the directions that its training inputs leave free.

    $$ \tilde W = \bar W + c_l\, E\, (A / \delta \bar a + 1)^{-1/2}, \quad E_{ij} \sim \mathcal N(0, 1), \quad
       A = \overline{a a^\top} $$

    a is an input of the layer on training data, with a 1 for the bias, and $\bar a$ the average eigenvalue of A.
    Convolutions have patches for inputs, embeddings count tokens, and weights of other layers move independently.
    How far a layer moves, $c_l$, follows from the squared gradients that were tracked (see `layers.share_out`).

    Args:
        floor: delta: directions with less of the average energy are free, and move by $c_l$.

    Raises:
        ValueError: if `floor` is not positive and finite.
    """

    floor: float = 1e-5
    needs_moments = True

    def __post_init__(self) -> None:
        if not 0 < self.floor < math.inf:
            raise ValueError(f"floor must be positive and finite, got {self.floor}")

    def noise(self, layer: Layer, seed: int, member: int) -> Iterator[Piece]:
        reach = layer.unit if layer.reach is None else layer.reach
        moments, left = layer.moments, set(layer.weights)
        if moments is not None:
            weight = layer.weights[moments.weight]
            root = moments.inverse_root(self.floor)
            outputs = moments.form.matrix(weight).shape[1]
            count = len(root) * outputs * root.shape[1]
            z = Stream(seed, member, moments.weight).normal(0, count, root.device)
            z = z.to(root.dtype).view(len(root), outputs, -1).mul_(reach)
            noise = z @ root if root.ndim == 3 else z * root[:, None]
            if moments.bias is not None:
                yield moments.bias, slice(None), noise[:, :, -1].reshape(-1)
                noise = noise[:, :, :-1]
            yield moments.weight, slice(None), moments.form.weight(noise, weight.shape).reshape(-1)
            left -= {moments.weight, moments.bias}
        for name in (name for name in layer.weights if name in left):
            like = layer.mean[name]
            numbers = Stream(seed, member, name).normal(*layer.span(name), like.device)
            yield name, slice(None), numbers.to(like.dtype).mul_(reach)


class Gathering:
    """Adds up the second moments of a layer's inputs, batch by batch.

    Args:
        module: the layer.
        weight: name of its weight.
        bias: name of its bias, if it is tracked.
    """

    def __init__(self, module: Any, weight: str, bias: str | None) -> None:
        self._module, self._weight, self._bias = module, weight, bias
        groups, outputs, inputs = Form.of(module).matrix(module.weight).shape
        inputs += bias is not None
        self._whole = inputs <= WIDEST and (inputs <= WIDE or inputs <= NARROW * groups * outputs)
        self._sum: Tensor | None = None
        self._rows = 0
        self._generator = torch.Generator().manual_seed(0)

    def add(self, seen: Seen) -> None:
        """Take a batch into account."""
        here, count = self._counts(seen.input) if isinstance(self._module, nn.Embedding) else self._products(seen)
        self._sum = here if self._sum is None else self._sum.add_(here)
        self._rows += count

    def _counts(self, tokens: Tensor) -> tuple[Tensor, int]:
        size = self._module.num_embeddings
        return torch.bincount(tokens.reshape(-1), minlength=size)[None].float(), tokens.numel()

    def _products(self, seen: Seen) -> tuple[Tensor, int]:
        count = positions(self._module, seen.output)
        at = torch.randperm(count, generator=self._generator)[:PLACES]
        a = rows(self._module, seen.input, seen.output, at).float()
        if self._bias is not None:
            a = torch.cat([a, a.new_ones(*a.shape[:2], 1)], 2)
        return (a.mT @ a if self._whole else a.square().sum(1)), a.shape[1]

    @property
    def moments(self) -> Moments | None:
        """What was found, if the layer ran at all."""
        if self._sum is None:
            return None
        return Moments(self._weight, self._bias, Form.of(self._module), self._sum / self._rows)


def gatherings(model: nn.Module, layers: list[Layer]) -> dict[str, Gathering]:
    """One for every layer of which inputs can be gathered, by the name of its module."""
    modules = dict(model.named_modules())
    found = {}
    for layer in layers:
        prefix = f"{layer.name}." if layer.name else ""
        module = modules.get(layer.name)
        if module is None or f"{prefix}weight" not in layer.weights:
            continue
        if is_linear(module) or isinstance(module, nn.Embedding):
            bias = f"{prefix}bias" if f"{prefix}bias" in layer.weights else None
            found[layer.name] = Gathering(module, f"{prefix}weight", bias)
    return found
