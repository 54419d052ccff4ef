"""A posterior as tensors and JSON: all that a file holds of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor, nn

from tradi.ensemble.copying import copied
from tradi.ensemble.files import Frozen, Packed, check_model, fill, model_tensors
from tradi.posterior.conditioning import Conditioning
from tradi.posterior.covariance import covariance_from_options
from tradi.posterior.file_checks import (
    BEFORE,
    About,
    AboutLaplace,
    AboutMoments,
    AboutRegression,
    AboutRoot,
    check_covariance,
    check_kinds,
    check_moments,
    check_root,
    check_shares,
    check_tracked,
    checked_head,
)
from tradi.posterior.head import Head
from tradi.posterior.laplace import Full, Kronecker, LaplaceHead, Root
from tradi.posterior.layers import Layer, Moments, by_layer
from tradi.posterior.loudness import Averaged
from tradi.posterior.parts import Parts
from tradi.posterior.scale_search import ScaleSearch
from tradi.posterior.without_rows import WithoutRows
from tradi.prediction.likelihoods import likelihood_from_options, likelihood_options
from tradi.storage.typed import built

Named = dict[str, Tensor]


def packed(model: nn.Module, parts: Parts, whole: bool) -> Packed:
    """What a file needs to know: everything but the data for refreshing and, unless it is whole, frozen weights.

    Raises:
        ValueError: if members are conditioned by a likelihood that is not tradi's.
    """
    frozen = Frozen.of(model, [name for layer in parts.layers for name in layer.mean], whole)
    held = {name: own for name, own in model_tensors(model).items() if name not in frozen.left_out}
    return packed_with(held, frozen, parts)


def packed_with(model: Named, frozen: Frozen, parts: Parts) -> Packed:
    """What a file needs to know.

    Args:
        model: the network's tensors that go into the file, by name.
        frozen: which of its weights were frozen.
        parts: what its posterior is made of.

    Raises:
        ValueError: if members are conditioned by a likelihood that is not tradi's.
    """
    layers = parts.layers
    joint = {names: matrix for layer in layers for names, matrix in layer.covariance.items()}
    moments = [layer.moments for layer in layers if layer.moments is not None]
    before = [layer.before for layer in layers if layer.before is not None]
    conditioned, how = _packed_conditioning(parts.conditioning)
    tensors = {
        "model": model,
        "mean": _by_parameter(layer.mean for layer in layers),
        "variance": _by_parameter(layer.variance for layer in layers),
        "covariance": {str(i): matrix for i, matrix in enumerate(joint.values())},
        "deviations": _by_parameter(layer.deviations for layer in layers),
        "fisher": _by_parameter(layer.fisher for layer in layers),
        "moments": {one.weight: one.second for one in moments},
        "conditioning": conditioned,
    } | ({BEFORE: {one.weight: one.second for one in before}} if before else {})
    covariance, search = parts.covariance, parts.scale_search
    about = {
        "covariance": None if covariance is None else (type(covariance).__name__, covariance.options()),
        "scale": parts.scale,
        "joint": list(joint),
        "layers": {layer.name: {"gradient": layer.gradient, "reach": layer.reach} for layer in layers},
        "moments": [_about_moments(one) for one in moments],
        "scale_search": None if search is None else search.packed(),
        "likelihood": likelihood_options(parts.likelihood),
        "conditioning": how,
        "frozen": asdict(frozen),
    } | ({BEFORE: [_about_moments(one) for one in before]} if before else {})
    return tensors, about


def _about_moments(one: Moments) -> dict[str, Any]:
    return {"weight": one.weight, "bias": one.bias, "form": asdict(one.form)}


def unpacked(packed: Packed, model: nn.Module) -> tuple[nn.Module, Parts]:
    """What `packed` was given, on the architecture of a model, which is left as it is.

    Raises:
        ValueError: if the model is of another architecture or has other frozen weights, or something is not as a
            posterior can have left it.
    """
    tensors, about = packed[0], built(About, packed[1], "the posterior")
    check_kinds(tensors)
    model = copied(model, own=tensors["model"])
    check_model(tensors["model"], model, about.frozen)
    check_tracked(tensors, about, model)
    covariance = None if about.covariance is None else covariance_from_options(*about.covariance)
    check_covariance(tensors, about, covariance, model)
    check_moments(tensors, about, model)
    conditioning = _unpacked_conditioning(tensors["conditioning"], about.conditioning, model)
    search = None if about.scale_search is None else ScaleSearch.unpacked(about.scale_search)
    likelihood = None if about.likelihood is None else likelihood_from_options(*about.likelihood)
    about.frozen.check(model)
    fill(model, tensors["model"], about.frozen)
    return model, Parts(
        _unpacked_layers(tensors, about, model),
        covariance,
        about.scale,
        search,
        likelihood,
        conditioning=conditioning,
    )


def unpacked_layers(packed: Packed, model: nn.Module) -> list[Layer]:
    """What was tracked of the weights that a model has too, under the same name and in the same shape.

    Nothing else of the network that was saved is needed, so it may have another head.

    Raises:
        ValueError: if the model has not the frozen weights that the file leaves out, or what was tracked is not as a
            posterior can have left it.
    """
    tensors, about = packed[0], built(About, packed[1], "the posterior")
    check_kinds(tensors)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    common = {name for name, mean in tensors["mean"].items() if shapes.get(name) == mean.shape}

    def known(one: AboutMoments) -> bool:
        return {one.weight, one.bias or one.weight} <= common

    joint = {names: tensors["covariance"].get(str(i)) for i, names in enumerate(about.joint)}
    kept = {names: matrix for names, matrix in joint.items() if {*names} <= common and matrix is not None}
    layers = {name.rpartition(".")[0] for name in common}
    about = replace(
        about,
        joint=tuple(kept),
        layers={name: own for name, own in about.layers.items() if name in layers},
        moments=tuple(filter(known, about.moments)),
        before=tuple(filter(known, about.before)),
    )
    tensors = {kind: {n: t for n, t in named.items() if n in common} for kind, named in tensors.items()}
    tensors["covariance"] = {str(i): matrix for i, matrix in enumerate(kept.values())}
    check_tracked(tensors, about, model)
    check_covariance(tensors, about, None, model)
    check_moments(tensors, about, model)
    about.frozen.check(model)
    return _unpacked_layers(tensors, about, model)


def _unpacked_layers(tensors: dict[str, Named], about: About, model: nn.Module) -> list[Layer]:
    final = {name: parameter.detach() for name, parameter in model.named_parameters()}
    joint = {names: tensors["covariance"][str(i)] for i, names in enumerate(about.joint)}
    layers = by_layer(final, tensors["mean"], tensors["variance"], joint, tensors["deviations"], tensors["fisher"])
    moments = _by_module(about.moments, tensors["moments"])
    before = _by_module(about.before, tensors.get(BEFORE, {}))
    own = about.layers
    return [
        replace(
            layer,
            gradient=own[layer.name].gradient,
            reach=own[layer.name].reach,
            moments=moments.get(layer.name),
            before=before.get(layer.name),
        )
        for layer in layers
    ]


def _by_module(about: tuple[AboutMoments, ...], second: Named) -> dict[str, Moments]:
    return {one.weight.rpartition(".")[0]: Moments(one.weight, one.bias, one.form, second[one.weight]) for one in about}


def _packed_conditioning(way: Conditioning | None) -> tuple[Named, dict[str, Any] | None]:
    if isinstance(way, LaplaceHead):
        tensors, root = _packed_root(way.root)
        about = {"precision": way.precision, "spread": way.spread, "root": root}
        return {"theta": way.theta} | tensors, {"kind": "laplace", "head": _packed_head(way.head), **about}
    if isinstance(way, Averaged):
        way = WithoutRows.of(way)
    if isinstance(way, WithoutRows):
        task = likelihood_options(way.likelihood)
        if task is None:
            raise ValueError(
                f"members are conditioned by {way.likelihood!r}, which is not tradi's and cannot be saved: "
                "save the ensemble itself, ensemble.save(path)"
            )
        about = {"shares": [asdict(one) for one in way.shares], "likelihood": task, "samples": way.samples}
        return {}, {"kind": "regression", "head": _packed_head(way.head), **about}
    if way is None:
        return {}, None
    raise ValueError(f"{type(way).__name__} cannot be saved: save the ensemble itself, ensemble.save(path)")


def _unpacked_conditioning(tensors: Named, about: Any, model: nn.Module) -> Conditioning | None:
    if about is None:
        if tensors:
            raise ValueError(f"it holds {sorted(tensors)} of a conditioned head, and says nothing about one")
        return None
    kind = about.get("kind") if isinstance(about, dict) else None
    if kind == "laplace":
        way = built(AboutLaplace, about, "conditioning")
        head = checked_head(way.head, model)
        check_root(tensors, way, head)
        return LaplaceHead(head, tensors["theta"], _unpacked_root(tensors, way.root), way.precision, way.spread)
    if kind == "regression":
        rows = built(AboutRegression, about, "conditioning")
        head = checked_head(rows.head, model)
        check_shares(tensors, rows, head)
        return WithoutRows(rows.shares, head, likelihood_from_options(*rows.likelihood), rows.samples)
    raise ValueError(f"unknown conditioning {str(kind)[:80]!r}: this version of tradi knows laplace and regression")


def _packed_head(head: Head) -> dict[str, Any]:
    return {"name": head.name, "first": head.first, "outputs": head.outputs, "siblings": head.siblings}


def _packed_root(root: Root) -> tuple[Named, dict[str, Any]]:
    if isinstance(root, Full):
        return {"factors": root.factors}, {"kind": "full"}
    (a, U), (g, V) = root.inputs, root.outputs
    named = {"input values": a, "input vectors": U, "output values": g, "output vectors": V}
    return named, {"kind": "kronecker", "precision": root.precision}


def _unpacked_root(tensors: Named, about: AboutRoot) -> Root:
    if about.kind == "full":
        return Full(tensors["factors"])
    inputs, outputs = ((tensors[f"{side} values"], tensors[f"{side} vectors"]) for side in ("input", "output"))
    assert about.precision is not None
    return Kronecker(inputs, outputs, about.precision)


def _by_parameter(layers: Iterable[Named]) -> Named:
    return {name: value for layer in layers for name, value in layer.items()}
