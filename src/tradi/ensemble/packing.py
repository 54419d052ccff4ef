"""An ensemble as tensors and JSON: what members share is there once, and the rest for every member."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.files import Packed, check_same_architecture, fill, model_tensors
from tradi.ensemble.linearised import Linearised
from tradi.prediction.likelihoods import Likelihood, likelihood_from_options, likelihood_options

State = dict[str, Tensor]


def packed(model: nn.Module, members: list[State], likelihood: Likelihood | None) -> list[Packed]:
    """What a file needs to know: one part for what is shared, then one for every member.

    Args:
        model: the architecture of the members, and what they do not hold themselves.
        members: what each holds in place of the model's own, by name.
        likelihood: what outputs mean, if that is known.

    Raises:
        ValueError: if there is more to members than the tensors of a network, or a likelihood in them is not tradi's.
    """
    known = model_tensors(model)
    made = {name: buffer for name, buffer in model.named_buffers() if name not in known}  # whenever a model is built
    held = {name for member in members for name in member}
    held -= {name for name, own in made.items() if all(torch.equal(m.get(name, own), own) for m in members)}
    if not held <= known.keys():
        raise ValueError(
            f"members cannot be saved, as {sorted(held - known.keys())} is not in the network's state_dict. Members of "
            "MCDropout are masks, which the network draws again whenever it runs: save the method, "
            "MCDropout(model).save(path), and sample again after MCDropout.load(path, model)"
        )
    whole = [{name: member.get(name, known[name]) for name in held} for member in members]
    alike = {name for name in held if all(torch.equal(member[name], whole[0][name]) for member in whole[1:])}
    shared = {name: whole[0].get(name, own) for name, own in known.items() if name not in held - alike}
    about = {"architecture": _architecture(model), "likelihood": likelihood_options(likelihood)}
    own = [{name: tensor for name, tensor in member.items() if name not in alike} for member in whole]
    return [({"shared": shared}, about), *(({"member": member}, {}) for member in own)]


def unpacked(parts: list[Packed], model: nn.Module) -> tuple[nn.Module, list[State], Likelihood | None]:
    """The arguments of `packed`; the model, of the user's architecture, becomes the members' own.

    Raises:
        ValueError: if the model is of another architecture.
    """
    (first, about), *rest = parts
    shared, members = first["shared"], [kinds["member"] for kinds, _ in rest]
    one = shared | members[0]
    built = _built(about["architecture"], model, one)
    fill(built, one)
    task = about["likelihood"]
    return built, members, None if task is None else likelihood_from_options(*task)


def _architecture(model: nn.Module) -> dict[str, Any] | None:
    """How the members' module is made from the user's; None where it is the user's."""
    if not isinstance(model, Linearised):
        return None
    task = likelihood_options(model.likelihood)
    if task is None:
        raise ValueError(f"members are linearised for {model.likelihood!r}, which is not tradi's and cannot be saved")
    return {"linearised": model.names, "likelihood": task}


def _built(architecture: dict[str, Any] | None, model: nn.Module, saved: State) -> nn.Module:
    if architecture is None:
        return model
    inside = {name.removeprefix("network."): value for name, value in saved.items() if name.startswith("network.")}
    check_same_architecture(inside, model_tensors(model), "the file")
    return Linearised(model, architecture["linearised"], likelihood_from_options(*architecture["likelihood"]))
