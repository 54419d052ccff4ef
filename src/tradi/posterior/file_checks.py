"""What a posterior's file may say: every part of it is checked against the network before anything is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.files import Frozen, check_values
from tradi.posterior.covariance import Covariance
from tradi.posterior.head import Head
from tradi.posterior.rows import Form, is_linear
from tradi.posterior.without_rows import WAYS, Share

Named = dict[str, Tensor]
Described = tuple[str, dict[str, Any]]  # name and options

KINDS = {"model", "mean", "variance", "covariance", "deviations", "fisher", "moments", "conditioning"}
BEFORE = "before"  # a kind, second moments, that only files of posteriors with a prior have


@dataclass(frozen=True)
class AboutLayer:
    """Numbers of one layer."""

    gradient: float | None
    reach: float | None

    def __post_init__(self) -> None:
        if (self.gradient or 0) < 0 or (self.reach or 0) < 0:
            raise ValueError(f"gradient and reach must not be negative, got {self.gradient} and {self.reach}")


@dataclass(frozen=True)
class AboutMoments:
    """Which weights second moments belong to."""

    weight: str
    bias: str | None
    form: Form


@dataclass(frozen=True)
class About:
    """Everything that is said of a posterior in words and numbers."""

    covariance: Described | None
    scale: float
    joint: tuple[tuple[str, ...], ...]
    layers: dict[str, AboutLayer]
    moments: tuple[AboutMoments, ...]
    scale_search: Any
    likelihood: Described | None
    conditioning: Any
    frozen: Frozen
    before: tuple[AboutMoments, ...] = ()


@dataclass(frozen=True)
class AboutHead:
    """Where the conditioned layer is."""

    name: str
    first: int
    outputs: int
    siblings: tuple[str, ...]


@dataclass(frozen=True)
class AboutRoot:
    """In which form the covariance of the head is kept."""

    kind: str
    precision: float | None = None


@dataclass(frozen=True)
class AboutLaplace:
    """A head that was conditioned for labels."""

    kind: str
    head: AboutHead
    precision: float
    spread: float
    root: AboutRoot

    def __post_init__(self) -> None:
        if not (self.precision > 0 and self.spread >= 0):
            raise ValueError(f"precision must be positive and spread not negative, got {self.precision}, {self.spread}")


@dataclass(frozen=True)
class AboutRegression:
    """Members that were conditioned for numbers."""

    kind: str
    head: AboutHead
    shares: tuple[Share, ...]
    likelihood: Described
    samples: int


def check_kinds(tensors: dict[str, Named]) -> None:
    """Raise unless the kinds of tensors are those of a posterior."""
    if tensors.keys() - {BEFORE} != KINDS:
        raise ValueError(f"a posterior holds {sorted(KINDS)}, and this file {sorted(tensors)}"[:1000])


def check_tracked(tensors: dict[str, Named], about: About, model: nn.Module) -> None:
    """Raise unless what was tracked belongs to weights of the network: its names, shapes, types and signs."""
    weights = dict(model.named_parameters())
    mean = tensors["mean"]
    if not mean.keys() <= weights.keys():
        raise ValueError(f"{_some(mean.keys() - weights.keys())} is tracked in the file, and no weight of the network")
    for kind in ("variance", "deviations", "fisher"):
        if tensors[kind].keys() != mean.keys() and (tensors[kind] or kind == "variance"):
            raise ValueError(f"{kind} and mean are of different weights: {_some(tensors[kind].keys() ^ mean.keys())}")
    ranks = {len(value) if value.ndim else 0 for value in tensors["deviations"].values()}
    if len(ranks) > 1 or not min(ranks, default=2) >= 2:
        raise ValueError(f"deviations must be as many for all weights, and at least 2, got {sorted(ranks)[:10]}")
    for kind in ("mean", "variance", "deviations", "fisher"):
        for name, value in tensors[kind].items():
            shape = (*ranks, *weights[name].shape) if kind == "deviations" else tuple(weights[name].shape)
            _check_form(f"{kind} of {name}", value, shape, like=weights[name])
            positive = kind == "fisher" or (kind == "variance" and bool(ranks))  # the paper's may be negative
            check_values(f"{kind} of {name}", value, negative=not positive)
    layers = {name.rpartition(".")[0] for name in mean}
    if about.layers.keys() != layers:
        raise ValueError(f"layers and mean are of different layers: {_some(about.layers.keys() ^ layers)}")


def check_covariance(tensors: dict[str, Named], about: About, covariance: Covariance | None, model: nn.Module) -> None:
    """Raise unless joint covariances are there where noise is drawn from them, each weight in one."""
    weights, mean = dict(model.named_parameters()), tensors["mean"]
    every = [name for names in about.joint for name in names]
    if len(set(every)) != len(every) or not set(every) <= mean.keys() or not all(about.joint):
        raise ValueError("joint covariances must be of tracked weights, each in one of them")
    if covariance is not None and covariance.joint and set(every) != mean.keys():
        raise ValueError(f"{covariance!r} has no covariance of {_some(mean.keys() - set(every))}")
    if type(covariance).__name__ == "LowRank" and mean and not tensors["deviations"]:  # methods/swag.py's
        raise ValueError("LowRank has no deviations")
    if tensors["covariance"].keys() != {str(number) for number in range(len(about.joint))}:
        raise ValueError("joint covariances and the weights that they are of do not belong together")
    for number, names in enumerate(about.joint):
        if len({name.rpartition(".")[0] for name in names}) > 1:
            raise ValueError(f"a joint covariance is of one layer, got {_some(set(names))}")
        size = sum(weights[name].numel() for name in names)
        what = f"covariance of {names[0]}"
        _check_form(what, tensors["covariance"][str(number)], (size, size), like=weights[names[0]])
        check_values(what, tensors["covariance"][str(number)])


def check_moments(tensors: dict[str, Named], about: About, model: nn.Module) -> None:
    """Raise unless second moments are of linear layers of the network, in their form."""
    _check_moments("moments", tensors, about.moments, model)
    _check_moments(BEFORE, tensors, about.before, model)


def _check_moments(kind: str, tensors: dict[str, Named], about: tuple[AboutMoments, ...], model: nn.Module) -> None:
    modules, mean, moments = dict(model.named_modules()), tensors["mean"], tensors.get(kind, {})
    if sorted(one.weight for one in about) != sorted(moments):
        raise ValueError("moments and the weights that they are of do not belong together")
    for one in about:
        layer, _, own = one.weight.rpartition(".")
        module: Any = modules.get(layer)
        biases = (None, f"{layer}.bias" if layer else "bias")
        known = own == "weight" and one.weight in mean and one.bias in biases and (one.bias in mean or one.bias is None)
        if not known or not (is_linear(module) or isinstance(module, nn.Embedding)) or Form.of(module) != one.form:
            raise ValueError(f"moments of {one.weight[:200]} do not fit the network's layer")
        groups, _, inputs = one.form.matrix(module.weight).shape
        inputs += one.bias is not None
        second = moments[one.weight]
        diagonal = second.ndim == 2
        shape = (groups, inputs) if diagonal else (groups, inputs, inputs)
        _check_form(f"moments of {one.weight}", second, shape, like=module.weight)
        check_values(f"moments of {one.weight}", second)
        own_energy = second if diagonal else second.diagonal(dim1=1, dim2=2)
        check_values(f"energy in moments of {one.weight}", own_energy, negative=False)


def checked_head(about: AboutHead, model: nn.Module) -> Head:
    """The conditioned layer of the network.

    Raises:
        ValueError: if it is not there, or is no layer of so many outputs.
    """
    linear = {name: module for name, module in model.named_modules() if is_linear(module)}
    module: Any = linear.get(about.name)
    if module is None or getattr(module, "groups", 1) != 1 or not set(about.siblings) <= linear.keys() - {about.name}:
        raise ValueError(f"conditioning: {about.name[:200]!r} and its siblings are not linear layers of the network")
    width = Form.of(module).matrix(module.weight).shape[1]
    if not (about.first >= 0 and about.outputs >= 1 and about.first + about.outputs <= width):
        raise ValueError(
            f"conditioning: outputs {about.first} to {about.first + about.outputs} of {about.name!r}, which has {width}"
        )
    return Head(about.name, module, about.first, about.outputs, about.siblings)


def check_root(tensors: Named, about: AboutLaplace, head: Head) -> None:
    """Raise unless weights and covariance of a head conditioned for labels have its shape and signs."""
    root = about.root
    inputs = Form.of(head.module).matrix(head.module.weight).shape[2] + head.has_bias
    shapes: dict[str, tuple[int, ...]] = {"theta": (head.outputs, inputs)}
    if root.kind == "full":
        factors = tensors.get("factors")
        blocks = head.outputs if factors is not None and factors.ndim and len(factors) == head.outputs else 1
        size = head.outputs * inputs // blocks
        shapes["factors"] = (blocks, size, size)
    elif root.kind == "kronecker" and root.precision is not None and root.precision > 0:
        shapes |= {"input values": (inputs,), "input vectors": (inputs, inputs)}
        shapes |= {"output values": (head.outputs,), "output vectors": (head.outputs, head.outputs)}
    else:
        raise ValueError(f"conditioning: unknown root {root.kind[:80]!r} with precision {root.precision}")
    if tensors.keys() != shapes.keys():
        raise ValueError(f"conditioning needs {sorted(shapes)}, and the file has {sorted(tensors)}"[:1000])
    for name, shape in shapes.items():
        what = f"{name} of the conditioned head"
        _check_form(what, tensors[name], shape, like=head.module.weight)
        check_values(what, tensors[name], negative=not name.endswith("values"))
    if root.kind == "full" and not (tensors["factors"].diagonal(dim1=1, dim2=2) > 0).all():
        raise ValueError("factors of the conditioned head are no Cholesky factors: their diagonal is not positive")


def check_shares(tensors: Named, about: AboutRegression, head: Head) -> None:
    """Raise unless members that were conditioned for numbers can be conditioned again."""
    if tensors:
        raise ValueError(f"a regression holds no tensors, and the file has {sorted(tensors)}"[:1000])
    if about.samples < 1 or not about.shares or not abs(sum(one.share for one in about.shares) - 1) < 1e-6:
        raise ValueError(f"conditioning: {len(about.shares)} shares of {about.samples} samples do not add up to one")
    for one in about.shares:
        needed = 1 if WAYS[one.way].what == "all weights" else head.outputs
        if len(one.precisions) != needed:
            raise ValueError(f"conditioning: {one.way} needs {needed} precisions, got {len(one.precisions)}")


def _check_form(what: str, value: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    types = {like.dtype, torch.float32, torch.float64}
    if tuple(value.shape) != shape or value.dtype not in types or not value.is_floating_point():
        raise ValueError(f"{what} has shape {tuple(value.shape)} of {value.dtype}, expected {shape} of real numbers")


def _some(names: set[str]) -> str:
    return f"{', '.join(sorted(names)[:5])[:300]}{' and others' if len(names) > 5 else ''}"
