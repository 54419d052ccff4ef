"""Files of tensors and JSON: what posteriors and ensembles look like on disk."""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

FORMAT = "tradi-posterior-1"

# Tensors by kind and name, and everything else as JSON.
Packed = tuple[dict[str, dict[str, Tensor]], dict[str, Any]]


def write(path: str | PathLike[str], runs: list[Packed]) -> None:
    """Write one safetensors file; a tensor's key is run/kind/name."""
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"the folder {Path(path).parent} does not exist: make it, or save elsewhere")
    tensors = {
        f"{run}/{kind}/{name}": tensor.detach().clone(memory_format=torch.contiguous_format)  # nothing shared
        for run, (kinds, _) in enumerate(runs)
        for kind, named in kinds.items()
        for name, tensor in named.items()
    }
    about = [{"kinds": list(kinds), **about} for kinds, about in runs]
    save_file(tensors, path, {"format": FORMAT, "runs": json.dumps(about)})


def read(path: str | PathLike[str], model: nn.Module) -> list[Packed]:
    """Read what `write` wrote, onto the device of the model."""
    device = next(model.parameters()).device
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a posterior that this version of tradi wrote ({FORMAT})")
    runs: list[Packed] = []
    for run, about in enumerate(json.loads(metadata["runs"])):
        kinds: dict[str, dict[str, Tensor]] = {kind: {} for kind in about.pop("kinds")}
        for key, tensor in tensors.items():
            number, kind, name = key.split("/", 2)
            if int(number) == run:
                kinds[kind][name] = tensor
        runs.append((kinds, about))
    return runs


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
