"""Linear layers of all kinds as one: rows of inputs times a matrix. Linear, convolutions, transposed convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tradi._torch import CONVOLUTIONS

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear map that `rows` and `Form` can take apart."""
    return isinstance(module, (nn.Linear, *CONVOLUTIONS))


def positions(module: nn.Module, output: Tensor) -> int:
    """Places of one sample at which the layer is applied: 1 for a vector, else its tokens or pixels."""
    return (output.shape[1:-1] if isinstance(module, nn.Linear) else output.shape[2:]).numel()


def chosen_positions(count: int, most: int, batch: int) -> Tensor:
    """Numbers of `most` random positions of `count`, or of all: a function of the batch's number, whoever runs it."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(batch))[:most]


def rows(module: Any, x: Tensor, output: Tensor, at: Tensor | None = None) -> Tensor:
    """What the layer multiplies with its matrix, (groups, samples * positions, inputs).

    For every group of the layer, `rows @ matrix.T` plus the bias is its output, position by position.

    Args:
        module: a layer for which `is_linear` holds.
        x: its input, a batch.
        output: what it made of it; only the shape counts.
        at: numbers of positions of interest, in row-major order; None for all. Only these are copied.
    """
    if isinstance(module, nn.Linear):
        tokens = x.reshape(len(x), -1, x.shape[-1])
        return (tokens if at is None else tokens[:, at]).reshape(1, -1, x.shape[-1])
    kernel, dilation, size = module.kernel_size, module.dilation, output.shape[2:]
    if isinstance(module, TRANSPOSED):
        padded, stride = _spread_out(module, x, size), (1,) * len(size)
    else:
        padded, stride = _padded(module, x), module.stride
    windows = padded
    for axis, (k, d, s) in enumerate(zip(kernel, dilation, stride, strict=True), 2):
        windows = windows.unfold(axis, d * (k - 1) + 1, s)[..., ::d]  # a view: nothing is copied
    places = torch.arange(size.numel(), device=x.device) if at is None else at.to(x.device)
    place: tuple[Any, ...] = (slice(None), *_unravelled(places, size))
    chosen = windows.movedim(1, len(size) + 1)[place]
    # (samples, positions, channels, *kernel) in the groups that channels belong to
    grouped = chosen.reshape(len(x), len(places), module.groups, -1)
    return grouped.permute(2, 0, 1, 3).reshape(module.groups, -1, grouped.shape[-1])


def at_nearest(labels: Tensor, size: torch.Size, wanted: torch.Size) -> Tensor:
    """Labels of a map, (samples, positions, ...), at the positions of a map of another size, the nearest."""
    index = torch.arange(size.numel(), device=labels.device).view(size)
    for axis, (ours, theirs) in enumerate(zip(size, wanted, strict=True)):
        places = (torch.arange(theirs, device=labels.device) + 0.5) * (ours / theirs)
        index = index.index_select(axis, places.long())
    return labels[:, index.reshape(-1)]


@dataclass(frozen=True)
class Form:
    """How the weight of a linear layer is laid out.

    Args:
        kind: "linear", "convolution", "transposed" (a convolution) or "embedding".
        groups: of a convolution.
    """

    kind: str
    groups: int = 1

    @staticmethod
    def of(module: Any) -> Form:
        """The form of a layer for which `is_linear` holds, or of an embedding."""
        if isinstance(module, nn.Embedding):
            return Form("embedding")
        if isinstance(module, nn.Linear):
            return Form("linear")
        return Form("transposed" if isinstance(module, TRANSPOSED) else "convolution", module.groups)

    def matrix(self, weight: Tensor) -> Tensor:
        """A weight of the layer as matrices, (groups, outputs, inputs)."""
        if self.kind == "linear":
            return weight[None]
        if self.kind == "embedding":
            return weight.T[None]
        if self.kind == "transposed":  # (inputs, outputs of a group, *kernel), its kernel the other way round
            turned = weight.flip(tuple(range(2, weight.ndim))).unflatten(0, (self.groups, -1)).transpose(1, 2)
            return turned.flatten(3).flatten(2)
        return weight.reshape(self.groups, weight.shape[0] // self.groups, -1)

    def weight(self, values: Tensor, shape: torch.Size) -> Tensor:
        """Matrices in the form of a weight of this shape: the inverse of `matrix`."""
        if self.kind == "linear":
            return values[0]
        if self.kind == "embedding":
            return values[0].T
        if self.kind == "transposed":
            turned = values.unflatten(2, (shape[0] // self.groups, *shape[2:])).transpose(1, 2).flatten(0, 1)
            return turned.flip(tuple(range(2, turned.ndim)))
        return values.reshape(shape)


def _padded(module: Any, x: Tensor) -> Tensor:
    """The input of a convolution with its padding around it."""
    sides: list[int] = []
    for axis in reversed(range(len(module.kernel_size))):
        if module.padding == "same":
            total = module.dilation[axis] * (module.kernel_size[axis] - 1)
            sides += [total // 2, total - total // 2]
        else:
            side = 0 if module.padding == "valid" else module.padding[axis]
            sides += [side, side]
    return F.pad(x, sides, "constant" if module.padding_mode == "zeros" else module.padding_mode)


def _spread_out(module: Any, x: Tensor, size: torch.Size) -> Tensor:
    """The input of a transposed convolution with zeros between and around: a plain convolution of it is the same."""
    spread = x.new_zeros(*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], module.stride, strict=True)))
    place: tuple[Any, ...] = (..., *(slice(None, None, s) for s in module.stride))
    spread[place] = x
    sides: list[int] = []
    for axis in reversed(range(len(size))):
        reach = module.dilation[axis] * (module.kernel_size[axis] - 1)
        before = reach - module.padding[axis]
        sides += [before, size[axis] + reach - before - spread.shape[2 + axis]]
    return F.pad(spread, sides)


def _unravelled(places: Tensor, size: torch.Size) -> tuple[Tensor, ...]:
    found = []
    for length in reversed(size):
        found.append(places % length)
        places = places // length
    return tuple(reversed(found))
