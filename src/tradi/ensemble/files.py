"""Files of tensors and JSON: what ensembles and posteriors look like on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

# What the file says of itself, by what it holds.
FORMATS = {"a posterior": "tradi-posterior-1", "an ensemble": "tradi-ensemble-1"}
READERS = {"a posterior": "tradi.load_posterior", "an ensemble": "tradi.load_ensemble"}

# Tensors by kind and name, and everything else as JSON.
Packed = tuple[dict[str, dict[str, Tensor]], dict[str, Any]]


def write(path: str | PathLike[str], what: str, parts: Sequence[Packed]) -> None:
    """Write one safetensors file; a tensor's key is part/kind/name.

    The file appears under its name when it is complete, and may be read by whoever may read other files made here.

    Args:
        path: of the file.
        what: it holds, one of `FORMATS`.
        parts: its contents.

    Raises:
        FileNotFoundError: if the folder does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: make it, or save elsewhere")
    tensors = {
        f"{number}/{kind}/{name}": tensor.detach()
        for number, (kinds, _) in enumerate(parts)
        for kind, named in kinds.items()
        for name, tensor in named.items()
    }
    about = [{"kinds": list(kinds), **about} for kinds, about in parts]
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode  # safetensors gives its files to their owner alone
        save_file(_apart(tensors), partial, {"format": FORMATS[what], "runs": json.dumps(about)})
        partial.chmod(mode)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: str | PathLike[str], what: str, model: nn.Module) -> list[Packed]:
    """Read what `write` wrote, onto the device of the model, in memory of its own: the file may change afterwards.

    Raises:
        ValueError: if the file holds something else.
    """
    try:
        with safe_open(path, framework="pt", device=str(_device(model))) as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from error
    found = metadata.get("format")
    if found != FORMATS[what]:
        other = next((f": it is {kind}, which {READERS[kind]} reads" for kind in FORMATS if FORMATS[kind] == found), "")
        raise ValueError(f"{path} is not {what} that this version of tradi wrote ({FORMATS[what]}){other}")
    parts: list[Packed] = [({kind: {} for kind in about.pop("kinds")}, about) for about in json.loads(metadata["runs"])]
    for key, tensor in tensors.items():
        number, kind, name = key.split("/", 2)
        parts[int(number)][0][kind][name] = tensor
    return parts


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, tied ones once, and persistent buffers."""
    persistent = model.state_dict().keys()
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in persistent}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def fill(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Put saved tensors into the model, or say how the two differ."""
    own = model_tensors(model)
    check_same_architecture(saved, own, "the file")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


def check_same_architecture(theirs: dict[str, Tensor], ours: dict[str, Tensor], source: str) -> None:
    """Raise an error that lists both sides where two sets of named tensors differ in names, shapes or types."""

    def described(tensor: Tensor) -> str:
        return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"

    both = [name for name in ours if name in theirs]
    forms = {name: (described(theirs[name]), described(ours[name])) for name in both}
    differing = {name: pair for name, pair in forms.items() if pair[0] != pair[1]}
    if theirs.keys() != ours.keys() or differing:
        raise ValueError(
            f"{source} is of another architecture: only in it {sorted(theirs.keys() - ours.keys())}, only in the model "
            f"{sorted(ours.keys() - theirs.keys())}, forms (its, the model's) that differ {differing}"
        )


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, contiguous and without shared memory, as safetensors wants them; copied only where they are not."""
    found, seen = {}, set()
    for key, tensor in tensors.items():
        own = tensor.contiguous()
        storage = own.untyped_storage()
        shared = storage.nbytes() != own.nbytes or storage.data_ptr() in seen
        found[key] = own.clone() if shared else own
        seen.add(found[key].untyped_storage().data_ptr())
    return found


def _device(model: nn.Module) -> torch.device:
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
