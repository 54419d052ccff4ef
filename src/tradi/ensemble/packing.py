"""An ensemble as tensors and JSON: what members share is there once, and the rest for every member."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.copying import copied
from tradi.ensemble.files import Frozen, Packed, check_model, check_same_architecture, fill, model_tensors
from tradi.ensemble.linearised import Linearised
from tradi.prediction.likelihoods import Likelihood, likelihood_from_options, likelihood_options
from tradi.storage.typed import built

State = dict[str, Tensor]


def packed(model: nn.Module, members: list[State], likelihood: Likelihood | None, whole: bool) -> list[Packed]:
    """What a file needs to know: one part for what is shared, then one for every member.

    Args:
        model: the architecture of the members, and what they do not hold themselves.
        members: what each holds in place of the model's own, by name.
        likelihood: what outputs mean, if that is known.
        whole: whether frozen weights that members share are among it.

    Raises:
        ValueError: if there is more to members than the tensors of a network, or a likelihood in them is not tradi's.
    """
    known = model_tensors(model)
    held = check_tensors(model, members, "be saved")
    every = [{name: member.get(name, known[name]) for name in held} for member in members]
    alike = {name for name in held if all(torch.equal(member[name], every[0][name]) for member in every[1:])}
    frozen = Frozen.of(model, held, whole)
    apart = (held - alike) | frozen.left_out
    shared = {name: every[0].get(name, own) for name, own in known.items() if name not in apart}
    about = {"architecture": _architecture(model), "likelihood": likelihood_options(likelihood)}
    about["frozen"] = asdict(frozen)
    own = [{name: tensor for name, tensor in member.items() if name not in alike} for member in every]
    return [({"shared": shared}, about), *(({"member": member}, {}) for member in own)]


def check_tensors(model: nn.Module, members: list[State], what: str) -> set[str]:
    """Raise for members that are more than tensors of a network.

    Args:
        model: the architecture of the members.
        members: what each holds in place of the model's own, by name.
        what: cannot be done with such members, for the message.

    Returns:
        The names of what members hold and the model does not.

    Raises:
        ValueError: if a member holds what is not in the network's state_dict.
    """
    known = model_tensors(model)
    made = {name: buffer for name, buffer in model.named_buffers() if name not in known}  # whenever a model is built
    common = {name: tensor.data_ptr() for name, tensor in known.items()}
    held = {name for member in members for name, tensor in member.items() if tensor.data_ptr() != common.get(name)}
    held -= {name for name, own in made.items() if all(torch.equal(m.get(name, own), own) for m in members)}
    if not held <= known.keys():
        raise ValueError(
            f"members cannot {what}, as {sorted(held - known.keys())} is not in the network's state_dict. Members of "
            "MCDropout are masks, which the network draws again whenever it runs: save the method, "
            "MCDropout(model).save(path), and sample again after MCDropout.load(path, model)"
        )
    return held


@dataclass(frozen=True)
class _Linearised:
    """How the members' module is made from the user's, where it is another."""

    linearised: list[str]
    likelihood: tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class _About:
    """What the first part of a file says."""

    architecture: _Linearised | None
    likelihood: tuple[str, dict[str, Any]] | None
    frozen: Frozen


def unpacked(parts: list[Packed], model: nn.Module) -> tuple[nn.Module, list[State], Likelihood | None]:
    """The module that members run in, what each holds in place of the module's own, and the likelihood.

    The model, of the user's architecture, is left as it is. Everything is checked before it is used.

    Raises:
        ValueError: if the model is of another architecture, or members are not as they can have been saved.
    """
    (first, said), *rest = parts
    about = built(_About, said, "the ensemble")
    if first.keys() != {"shared"} or not rest or any(kinds.keys() != {"member"} or own for kinds, own in rest):
        raise ValueError("its parts are not one that members share, and one for every member")
    likelihood = None if about.likelihood is None else likelihood_from_options(*about.likelihood)
    shared, members = first["shared"], [kinds["member"] for kinds, _ in rest]
    if shared.keys() & members[0].keys() or any(member.keys() != members[0].keys() for member in members):
        raise ValueError("its members do not all hold the same tensors, or some that they share")
    module = _module(about, model, shared | members[0])
    for number, member in enumerate(members):
        with _of_member(number):
            check_model(shared | member, module, about.frozen)
    about.frozen.check(module)
    fill(module, shared | members[0], about.frozen)
    return module, members, likelihood


@contextmanager
def _of_member(number: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} (member {number})") from error


def _architecture(model: nn.Module) -> dict[str, Any] | None:
    """How the members' module is made from the user's; None where it is the user's."""
    if not isinstance(model, Linearised):
        return None
    task = likelihood_options(model.likelihood)
    if task is None:
        raise ValueError(f"members are linearised for {model.likelihood!r}, which is not tradi's and cannot be saved")
    return {"linearised": model.names, "likelihood": task}


def _module(about: _About, model: nn.Module, saved: State) -> nn.Module:
    """A module of the members' architecture, with a copy of the user's own network in it."""
    architecture = about.architecture
    if architecture is None:
        return copied(model, own=saved)
    inside = {name.removeprefix("network."): value for name, value in saved.items() if name.startswith("network.")}
    model = copied(model, own=inside)
    left = {name.removeprefix("network.") for name in about.frozen.left_out}
    needed = {name: tensor for name, tensor in model_tensors(model).items() if name not in left}
    check_same_architecture(inside, needed, "the file")
    names = architecture.linearised
    if len(set(names)) != len(names) or not set(names) <= dict(model.named_parameters()).keys():
        raise ValueError("its linearised weights are not weights of the network, each once")
    return Linearised(model, names, likelihood_from_options(*architecture.likelihood))
