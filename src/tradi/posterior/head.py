"""The last linear layer of a network: found by what it computes, and read through a hook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tradi.posterior.rows import Form, is_linear, rows
from tradi.prediction.class_likelihoods import Classification, Tokens
from tradi.prediction.likelihood import Likelihood, same_shape
from tradi.prediction.number_likelihoods import Gaussian, SquaredError

State = dict[str, Tensor]
# How networks enlarge maps of logits to the size of their images.
RESIZED: tuple[dict[str, Any], ...] = (
    {"mode": "bilinear"},
    {"mode": "bilinear", "align_corners": True},
    {"mode": "bicubic"},
    {"mode": "nearest"},
)


@dataclass(frozen=True, eq=False)
class Head:
    """The layer whose output is the logits, or the mean, of a network.

    Args:
        name: of the module in the network.
        module: the layer itself, in the network that is conditioned.
        first: the first of its outputs that belongs to the task; a layer may give mean and variance in one.
        outputs: how many of them.
        siblings: names of further layers that read the same features, such as a variance's.
    """

    name: str
    module: Any
    first: int
    outputs: int
    siblings: tuple[str, ...] = ()

    @property
    def has_bias(self) -> bool:
        return self.module.bias is not None

    def features(self, seen: Seen, at: Tensor | None = None) -> Tensor:
        """What the layer's matrix is multiplied with, and a 1 for its bias, (samples * positions, inputs)."""
        (found,) = rows(self.module, seen.input, seen.output, at)
        return torch.cat([found, found.new_ones(len(found), 1)], 1) if self.has_bias else found

    def by_position(self, values: Tensor) -> Tensor:
        """Outputs of the network, or targets like them, as (samples, positions, outputs)."""
        return by_position(values, self.module, self.outputs)

    @property
    def theta(self) -> Tensor:
        """The task's trained weights, (outputs, inputs), the bias last."""
        return layer_matrix(self.module)[self.first : self.first + self.outputs]

    def with_theta(self, theta: Tensor) -> State:
        """The layer's trained weights by parameter name, with those of the task replaced."""
        whole = layer_matrix(self.module).to(theta)
        whole[self.first : self.first + self.outputs] = theta
        return layer_state(self.name, self.module, whole)


@dataclass
class Seen:
    """Input and output of one layer in the latest forward pass."""

    input: Tensor
    output: Tensor

    def picked(self, wanted: Tensor) -> Seen:
        """The same, of the one position of each sample whose output was wanted; itself where all positions were."""
        if not _is_picked(self.output, wanted):
            return self
        samples, place = torch.arange(len(wanted)), _places(self.output, wanted).int().argmax(1)
        return Seen(self.input[samples, place], self.output[samples, place])


def _is_picked(output: Tensor, wanted: Tensor) -> bool:
    """Whether a layer ran at all positions and one is wanted, as where decoders classify a text by its last word."""
    if output.ndim != 3 or wanted.ndim != 2 or wanted.shape != (len(output), output.shape[2]):
        return False
    return bool(_places(output, wanted).any(1).all())


def _places(output: Tensor, wanted: Tensor) -> Tensor:
    """Where a sample's output, (samples, positions, outputs), is the wanted one, (samples, outputs)."""
    return (output == wanted[:, None]).all(2)


def by_position(values: Tensor, module: nn.Module, outputs: int) -> Tensor:
    """What a layer gives, (samples, ...), as (samples, positions, outputs); axes of 1 may be left out."""
    flat = values.reshape(len(values), -1)
    return flat.unflatten(1, (-1, outputs)) if isinstance(module, nn.Linear) else flat.unflatten(1, (outputs, -1)).mT


def layer_matrix(module: Any) -> Tensor:
    """A layer's weights as one matrix, (outputs, inputs), a bias as its last column."""
    (values,) = Form.of(module).matrix(module.weight.detach())
    return values.clone() if module.bias is None else torch.cat([values, module.bias.detach()[:, None]], 1)


def layer_state(name: str, module: Any, values: Tensor) -> State:
    """The inverse of `layer_matrix`, by parameter name and in the types of the layer's own."""
    prefix = f"{name}." if name else ""
    found = {}
    if module.bias is not None:
        values, bias = values[:, :-1], values[:, -1]
        found[f"{prefix}bias"] = bias.to(module.bias.dtype)
    old = module.weight
    found[f"{prefix}weight"] = Form.of(module).weight(values[None], old.shape).to(old.dtype)
    return found


def find_head(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], likelihood: Likelihood, layer: str | None
) -> Head:
    """Run the model once and find the linear layer that gives its logits or its mean.

    Args:
        model: in eval mode.
        args: of a batch, as the model takes it.
        kwargs: of it, likewise.
        likelihood: says which part of the output is meant.
        layer: name of the layer, where the user says it.

    Raises:
        ValueError: if there is no such layer, or the named one does not give the output; it lists the linear layers.
    """
    linear = {name: module for name, module in model.named_modules() if is_linear(module)}
    if layer is not None and layer not in linear:
        raise ValueError(f"layer= must be the name of a linear layer, one of {list(linear)}, got {layer!r}")
    with watched(linear) as seen, torch.no_grad():
        wanted = likelihood.linear(model(*args, **kwargs))
    if layer is not None and layer in seen:
        _check_named(layer, seen[layer].output, wanted, likelihood)
    places = [_place, _cast_place] if layer is None else [_named_place]
    if not isinstance(likelihood, Gaussian | SquaredError):
        places += [_picked_place, _resized_place]
    for name in [layer] if layer is not None else reversed(list(seen)):
        tried = (place(linear[name], seen[name].output, wanted) for place in places if name in seen)
        found = next((place for place in tried if place is not None), None)
        if found is not None and getattr(linear[name], "groups", 1) == 1:
            if not _owns_its_weight(model, linear[name]):
                raise ValueError(
                    f"the weight of layer {name!r} is shared with another layer, or computed (as in weight_norm), so "
                    "that it cannot be conditioned by itself: choose the scale alone, with choose_scale(validation)"
                )
            same = (n for n in seen if n != name and seen[n].input is seen[name].input and _alike(linear, n, name))
            return Head(name, linear[name], *found, tuple(same))
    which = "no linear layer gives" if layer is None else f"layer {layer!r} does not give"
    raise ValueError(
        f"{which} the network's logits or mean unchanged, so there is no last layer to condition: let the network end "
        "in a linear layer, name the one before a log_softmax by layer=, or choose the scale alone, with "
        f"choose_scale(validation). The network's linear layers are {list(linear)}"
    )


def _check_named(layer: str, output: Tensor, wanted: Tensor, likelihood: Likelihood) -> None:
    """Raise where something follows the layer that changes its predictions; log_softmax does not."""
    if not same_shape(wanted, output):
        return  # as another check says
    one, other = output.float(), wanted.float().reshape(output.shape)
    if isinstance(likelihood, Classification | Tokens):
        axis = 1 if isinstance(likelihood, Classification) and likelihood.class_axis == 1 else -1
        one, other = one.log_softmax(axis), other.log_softmax(axis)
    if not torch.allclose(one, other, rtol=1e-2, atol=1e-3):
        raise ValueError(
            f"something follows layer {layer!r} and changes its output, such as a softmax, a rescaling or an exp, so "
            "the layer cannot be conditioned: let the network return logits, or standardise targets outside of it"
        )


def _owns_its_weight(model: nn.Module, module: Any) -> bool:
    weight = module.weight  # a new tensor at every call, where it is computed
    owners = [one for one in model.modules() if any(weight is own for own in one.parameters(recurse=False))]
    return owners == [module]


def _alike(linear: dict[str, nn.Module], one: str, other: str) -> bool:
    return isinstance(linear[one], nn.Linear) and isinstance(linear[other], nn.Linear)


def _place(module: nn.Module, output: Tensor, wanted: Tensor) -> tuple[int, int] | None:
    """Which outputs of a layer a tensor is a view of: the first of them and their number; None if it is no view."""
    if output.untyped_storage().data_ptr() != wanted.untyped_storage().data_ptr() or output.dtype != wanted.dtype:
        return None
    axis = -1 if isinstance(module, nn.Linear) else 1
    step, width = output.stride(axis), output.shape[axis]
    offset = int(wanted.storage_offset()) - int(output.storage_offset())
    share, rest = divmod(wanted.numel() * width, output.numel())
    first, odd = divmod(offset, step) if step else (0, offset)
    if rest or odd or not 0 < share <= width - first:
        return None
    # A few positions of all outputs, such as a text's first token, may begin alike and be as many.
    return (first, share) if _last(output.narrow(axis, first, share)) == _last(wanted) else None


def _last(view: Tensor) -> int:
    """Where the last element of a view is in its memory."""
    steps = ((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    return int(view.storage_offset()) + sum(steps)


def _cast_place(module: nn.Module, output: Tensor, wanted: Tensor) -> tuple[int, int] | None:
    """All outputs of a layer that the network returns in another precision."""
    if output.dtype == wanted.dtype or output.shape != wanted.shape or not torch.equal(output.to(wanted.dtype), wanted):
        return None
    return _named_place(module, output, wanted)


def _named_place(module: nn.Module, output: Tensor, wanted: Tensor) -> tuple[int, int] | None:
    """All outputs of a layer that the user named, where the network's output has as many: log_softmax may follow it."""
    width = output.shape[-1 if isinstance(module, nn.Linear) else 1]
    return (0, width) if output.numel() == wanted.numel() else None


def _picked_place(module: nn.Module, output: Tensor, wanted: Tensor) -> tuple[int, int] | None:
    """All outputs of a layer of which the network returns one position of each sample."""
    return (0, wanted.shape[1]) if isinstance(module, nn.Linear) and _is_picked(output, wanted) else None


def _resized_place(module: nn.Module, output: Tensor, wanted: Tensor) -> tuple[int, int] | None:
    """All outputs of a convolution whose map the network returns in another size."""
    del module
    if not is_resized(output, wanted) or output.shape[:2] != wanted.shape[:2]:
        return None
    resized = (F.interpolate(output.float(), wanted.shape[2:], **way) for way in RESIZED)
    return (0, wanted.shape[1]) if any(torch.allclose(one, wanted.float(), 1e-3, 1e-4) for one in resized) else None


def is_resized(output: Tensor, wanted: Tensor) -> bool:
    """Whether two maps, (samples, outputs, height, width), are of different sizes."""
    return output.ndim == wanted.ndim == 4 and output.shape[2:] != wanted.shape[2:]


@contextmanager
def watched(layers: dict[str, nn.Module]) -> Iterator[dict[str, Seen]]:
    """Input and output of layers in the latest forward pass, by name, in the order in which they ran last."""
    seen: dict[str, Seen] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            del module
            given = args[0] if args else kwargs.get("input")
            seen.pop(name, None)
            if isinstance(given, Tensor) and isinstance(output, Tensor):
                seen[name] = Seen(given, output)

        return hook

    handles = [module.register_forward_hook(note(name), with_kwargs=True) for name, module in layers.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
