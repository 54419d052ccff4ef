"""A posterior as tensors and JSON: all that a file holds of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor, nn

from tradi.ensemble.files import Packed, fill, model_tensors
from tradi.posterior.conditioning import Conditioning
from tradi.posterior.covariance import covariance_from_options
from tradi.posterior.head import Head
from tradi.posterior.laplace import Full, Kronecker, LaplaceHead, Root
from tradi.posterior.layers import Moments, by_layer
from tradi.posterior.loudness import Averaged
from tradi.posterior.parts import Parts
from tradi.posterior.rows import Form
from tradi.posterior.scale_search import ScaleSearch
from tradi.posterior.without_rows import Share, WithoutRows
from tradi.prediction.likelihoods import likelihood_from_options, likelihood_options

Named = dict[str, Tensor]


def packed(model: nn.Module, parts: Parts) -> Packed:
    """What a file needs to know: everything but the data for refreshing.

    Raises:
        ValueError: if members are conditioned by a likelihood that is not tradi's.
    """
    layers = parts.layers
    joint = {names: matrix for layer in layers for names, matrix in layer.covariance.items()}
    moments = [layer.moments for layer in layers if layer.moments is not None]
    conditioned, how = _packed_conditioning(parts.conditioning)
    tensors = {
        "model": model_tensors(model),
        "mean": _by_parameter(layer.mean for layer in layers),
        "variance": _by_parameter(layer.variance for layer in layers),
        "covariance": {str(i): matrix for i, matrix in enumerate(joint.values())},
        "deviations": _by_parameter(layer.deviations for layer in layers),
        "fisher": _by_parameter(layer.fisher for layer in layers),
        "moments": {one.weight: one.second for one in moments},
        "conditioning": conditioned,
    }
    covariance, search = parts.covariance, parts.scale_search
    about = {
        "covariance": None if covariance is None else type(covariance).__name__,
        "options": {} if covariance is None else covariance.options(),
        "scale": parts.scale,
        "joint": list(joint),
        "layers": {layer.name: {"gradient": layer.gradient, "reach": layer.reach} for layer in layers},
        "moments": [{"weight": one.weight, "bias": one.bias, "form": asdict(one.form)} for one in moments],
        "scale_search": None if search is None else search.packed(),
        "likelihood": likelihood_options(parts.likelihood),
        "conditioning": how,
    }
    return tensors, about


def unpacked(packed: Packed, model: nn.Module) -> Parts:
    """The parts that `packed` was given; the model, of the same architecture, gets the saved weights.

    Raises:
        ValueError: if the model is of another architecture.
    """
    tensors, about = packed
    fill(model, tensors["model"])
    final = {name: parameter.detach() for name, parameter in model.named_parameters()}
    joint = {tuple(names): tensors["covariance"][str(i)] for i, names in enumerate(about["joint"])}
    layers = by_layer(final, tensors["mean"], tensors["variance"], joint, tensors["deviations"], tensors["fisher"])
    moments = {
        one["weight"].rpartition(".")[0]: Moments(
            one["weight"], one["bias"], Form(**one["form"]), tensors["moments"][one["weight"]]
        )
        for one in about["moments"]
    }
    name, search, task = about["covariance"], about["scale_search"], about["likelihood"]
    return Parts(
        [replace(layer, **about["layers"][layer.name], moments=moments.get(layer.name)) for layer in layers],
        None if name is None else covariance_from_options(name, about["options"]),
        about["scale"],
        None if search is None else ScaleSearch.unpacked(search),
        None if task is None else likelihood_from_options(*task),
        conditioning=_unpacked_conditioning(tensors["conditioning"], about["conditioning"], model),
    )


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


def _unpacked_conditioning(tensors: Named, about: dict[str, Any] | None, model: nn.Module) -> Conditioning | None:
    if about is None:
        return None
    place = about["head"]
    module = dict(model.named_modules())[place["name"]]
    head = Head(place["name"], module, place["first"], place["outputs"], tuple(place["siblings"]))
    if about["kind"] == "laplace":
        root = _unpacked_root(tensors, about["root"])
        return LaplaceHead(head, tensors["theta"], root, about["precision"], about["spread"])
    shares = (Share(**one | {"precisions": tuple(one["precisions"])}) for one in about["shares"])
    return WithoutRows(tuple(shares), head, likelihood_from_options(*about["likelihood"]), about["samples"])


def _packed_head(head: Head) -> dict[str, Any]:
    return {"name": head.name, "first": head.first, "outputs": head.outputs, "siblings": head.siblings}


def _packed_root(root: Root) -> tuple[Named, dict[str, Any]]:
    if isinstance(root, Full):
        return {"factors": root.factors}, {"kind": "full"}
    (a, U), (g, V) = root.inputs, root.outputs
    named = {"input values": a, "input vectors": U, "output values": g, "output vectors": V}
    return named, {"kind": "kronecker", "precision": root.precision}


def _unpacked_root(tensors: Named, about: dict[str, Any]) -> Root:
    if about["kind"] == "full":
        return Full(tensors["factors"])
    inputs, outputs = ((tensors[f"{side} values"], tensors[f"{side} vectors"]) for side in ("input", "output"))
    return Kronecker(inputs, outputs, about["precision"])


def _by_parameter(layers: Iterable[Named]) -> Named:
    return {name: value for layer in layers for name, value in layer.items()}
