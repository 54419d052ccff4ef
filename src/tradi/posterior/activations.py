"""Noise where activations have no energy: in directions that the training inputs of a layer hardly take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tradi.posterior.covariance import Covariance, Piece
from tradi.posterior.head import Seen
from tradi.posterior.layers import Layer, Moments
from tradi.posterior.randomness import Stream
from tradi.posterior.rows import Form, chosen_positions, is_linear, positions, rows

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
            yield from self._of_moments(layer, moments, reach, seed, member)
            left -= {moments.weight, moments.bias}
        for name in (name for name in layer.weights if name in left):
            like = layer.mean[name]
            numbers = Stream(seed, member, name).normal(*layer.span(name), like.device)
            yield name, slice(None), numbers.to(like.dtype).mul_(reach)

    def _of_moments(self, layer: Layer, moments: Moments, reach: float, seed: int, member: int) -> Iterator[Piece]:
        """Noise of the weights that read inputs whose moments are known.

        Of a shard it is computed for the whole layer, as a product of matrices would round by how many rows there are.
        """
        root, shape = moments.inverse_root(self.floor), layer.shape(moments.weight)
        first, last = _rows_drawn(layer, moments)
        start, stop = (len(root) * row * root.shape[1] for row in (first, last))
        z = Stream(seed, member, moments.weight).normal(start, stop, root.device)
        z = z.to(root.dtype).view(len(root), last - first, root.shape[1]).mul_(reach)
        noise = z @ root if root.ndim == 3 else z * root[:, None]
        if moments.bias is not None:
            start, stop = layer.span(moments.bias)
            yield moments.bias, slice(None), noise[:, :, -1].reshape(-1)[start - first : stop - first]
            noise = noise[:, :, :-1]
        before = first * noise.shape[2]
        drawn = torch.Size([last - first, *shape[1:]]) if moments.form.kind == "linear" else shape
        start, stop = layer.span(moments.weight)
        yield moments.weight, slice(None), moments.form.weight(noise, drawn).reshape(-1)[start - before : stop - before]


def _rows_drawn(layer: Layer, moments: Moments) -> tuple[int, int]:
    """The outputs of a layer whose noise is drawn: where each weight has its own factor, those that are held here."""
    name, bias = moments.weight, moments.bias
    inputs = moments.second.shape[1] - (bias is not None)
    outputs = layer.count(name) // (len(moments.second) * inputs)
    start, stop = layer.span(name)
    held = start // inputs, stop // inputs
    if moments.second.ndim == 2 and moments.form.kind == "linear" and (bias is None or layer.span(bias) == held):
        return held
    return 0, outputs


class Gathering:
    """Adds up the second moments of a layer's inputs, batch by batch.

    Args:
        module: the layer.
        weight: name of its weight.
        bias: name of its bias, if it is tracked.
    """

    def __init__(self, module: Any, weight: str, bias: str | None) -> None:
        self._module, self._weight, self._bias = module, weight, bias
        weight_of_all = torch.empty(module.weight.shape, device="meta")  # it may be sharded
        groups, outputs, inputs = Form.of(module).matrix(weight_of_all).shape
        inputs += bias is not None
        self._whole = inputs <= WIDEST and (inputs <= WIDE or inputs <= NARROW * groups * outputs)
        shape = (groups, inputs, inputs) if self._whole and not isinstance(module, nn.Embedding) else (groups, inputs)
        self._sum = torch.zeros(shape, device=module.weight.device)
        self._rows = 0

    def add(self, seen: Seen, batch: int) -> None:
        """Take a batch into account, given its number."""
        here, count = (
            self._counts(seen.input) if isinstance(self._module, nn.Embedding) else self._products(seen, batch)
        )
        self._sum = self._sum.to(here.device).add_(here)
        self._rows += count

    def _counts(self, tokens: Tensor) -> tuple[Tensor, int]:
        size = self._module.num_embeddings
        return torch.bincount(tokens.reshape(-1), minlength=size)[None].float(), tokens.numel()

    def _products(self, seen: Seen, batch: int) -> tuple[Tensor, int]:
        at = chosen_positions(positions(self._module, seen.output), PLACES, batch)
        a = rows(self._module, seen.input, seen.output, at).float()
        if self._bias is not None:
            a = torch.cat([a, a.new_ones(*a.shape[:2], 1)], 2)
        return (a.mT @ a if self._whole else a.square().sum(1)), a.shape[1]

    def moments(self, added_up: Callable[[Tensor], Tensor]) -> Moments | None:
        """What was found, if the layer ran at all.

        Args:
            added_up: makes sums over all batches of those over the batches that ran here.
        """
        rows = added_up(self._sum.new_tensor(self._rows, dtype=torch.float64)).item()
        found = added_up(self._sum)
        return Moments(self._weight, self._bias, Form.of(self._module), found / rows) if rows else None


def gatherings(modules: dict[str, nn.Module], layers: list[Layer]) -> dict[str, Gathering]:
    """One for every layer of which inputs can be gathered, by the name of its module."""
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
