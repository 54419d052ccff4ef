"""Checks of the metrics' arguments. Keywords are the argument names that errors mention."""

from __future__ import annotations

import torch
from torch import Tensor

# exp(logsumexp(...)) in float32 may exceed 1 by a few units in the last place: rounding, not a mistake.
ROUNDING = 1e-4


def one_shape(**tensors: Tensor) -> None:
    """Check that all tensors have the same shape and are not empty."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        described = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"the arguments must have the same shape, got {described}")
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            raise ValueError(f"{name} must not be empty, got shape {shapes[name]}")


def finite(**tensors: Tensor) -> None:
    """Check that no value is NaN or infinite."""
    for name, tensor in tensors.items():
        _all(name, tensor, tensor.isfinite(), "finite")


def positive(**tensors: Tensor) -> None:
    """Check that all values are finite and above 0."""
    for name, tensor in tensors.items():
        _all(name, tensor, tensor.isfinite() & (tensor > 0), "finite and positive")


def unit_interval(**tensors: Tensor) -> None:
    """Check that all values are in [0, 1], up to float32 rounding."""
    for name, tensor in tensors.items():
        _all(name, tensor, (tensor >= -ROUNDING) & (tensor <= 1 + ROUNDING), "in [0, 1]")


def boolean(**tensors: Tensor) -> None:
    """Check that masks are torch.bool: a float or integer mask is usually a mistake."""
    for name, tensor in tensors.items():
        if tensor.dtype != torch.bool:
            raise TypeError(f"{name} must be torch.bool, got {tensor.dtype}")


def classes(count: int, **tensors: Tensor) -> None:
    """Check that class indices are integers in [0, count)."""
    for name, tensor in tensors.items():
        if tensor.dtype == torch.bool or tensor.is_floating_point():
            raise TypeError(f"{name} must be integers, got {tensor.dtype}")
        _all(name, tensor, (tensor.long() >= 0) & (tensor.long() < count), f"in [0, {count})")


def at_least_one(**numbers: int) -> None:
    """Check that counts, of bins or of classes, are at least 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def labelled(values: str, distribution: Tensor, labels: Tensor) -> None:
    """Check that `distribution` (`values` in errors) has classes on axis 1 and one valid label per prediction."""
    if distribution.ndim < 2:
        raise ValueError(f"{values} must be (batch, classes, ...), got shape {tuple(distribution.shape)}")
    if distribution.shape[1] == 0:
        raise ValueError(f"{values} must not be empty, got shape {tuple(distribution.shape)}")
    one_shape(**{f"{values} without its class axis": distribution[:, 0], "labels": labels})
    classes(distribution.shape[1], labels=labels)


def normalised(name: str, total: Tensor) -> None:
    """Check that class probabilities add up to 1, within half precision."""
    _all(f"the sum of {name} over classes", total, (total - 1).abs() <= 1e-2, "1")


def _all(name: str, tensor: Tensor, good: Tensor, demand: str) -> None:
    if not good.all():
        value = tensor[~good][0].item()
        raise ValueError(f"{name} must be {demand}, got {value} ({int((~good).sum())} of {tensor.numel()} values)")
