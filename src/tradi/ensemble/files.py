"""Files of tensors and JSON: what ensembles and posteriors look like on disk."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.batchnorm import running_layers
from tradi.sharding import is_sharded
from tradi.storage.tensors import check_digest, digest, read_tensors, write_tensors
from tradi.storage.typed import built

VERSION = 3  # of the format: 1 had neither this number nor a hash, and 2 held frozen weights too
READERS = {"a posterior": "tradi.load_posterior", "an ensemble": "tradi.load_ensemble"}
MOST_PARTS = 1 << 16  # runs or members of one file

# Tensors by kind and name, and everything else as JSON.
Packed = tuple[dict[str, dict[str, Tensor]], dict[str, Any]]


@dataclass(frozen=True)
class _Part:
    """What a file says of one of its parts: the kinds of tensors in it, and everything else."""

    kinds: tuple[str, ...]
    about: Any


def write(path: str | PathLike[str], what: str, parts: Sequence[Packed]) -> None:
    """Write one safetensors file; a tensor's key is part/kind/name.

    The file appears under its name when it is complete, and may be read by whoever may read other files made here.

    Args:
        path: of the file.
        what: it holds, one of `READERS`.
        parts: its contents.

    Raises:
        ValueError: if there are too many parts.
        OSError: if the folder does not exist, or the file cannot be written.
    """
    if len(parts) > MOST_PARTS:
        raise ValueError(f"a file holds {MOST_PARTS:,} members or runs at the most, got {len(parts):,}: write several")
    tensors = {
        f"{number}/{kind}/{name}": tensor
        for number, (kinds, _) in enumerate(parts)
        for kind, named in kinds.items()
        for name, tensor in named.items()
    }
    listed = [{"kinds": list(kinds), "about": about} for kinds, about in parts]
    write_tensors(path, tensors, {"holds": what, "version": VERSION, "parts": listed})


def read(path: str | PathLike[str], what: str, model: nn.Module) -> list[Packed]:
    """Read what `write` wrote, onto the device of the model, in memory of its own: the file may change afterwards.

    Raises:
        ValueError: if the file holds something else, is of another version of the format, or was changed.
        OSError: if there is no file, or it cannot be read.
    """
    with naming(path):
        tensors, about = read_tensors(path)
        _check_kind(about, what, tensors)
        assert about is not None
        check_digest(tensors, about)
        return _parts(tensors, about, _device(model))


@contextmanager
def naming(path: str | PathLike[str]) -> Iterator[None]:
    """Whatever is wrong with a file's contents is a ValueError that names the file."""
    try:
        yield
    except (ValueError, RecursionError) as error:  # JSON may be read, and be nested too deeply to be shown
        raise ValueError(f"{path} cannot be loaded: {error}") from error


def _check_kind(about: dict[str, Any] | None, what: str, tensors: dict[str, Tensor]) -> None:
    """Raise for a file that holds something else, or is of another version, of which nothing else is known."""
    if about is None:
        if any(key.startswith("0/") for key in tensors):
            raise ValueError(f"it is of format version 1, and this version of tradi reads version {VERSION}")
        raise ValueError(f"it is not {what}: tradi did not write it")
    holds, version = about.get("holds"), about.get("version")
    if holds != what:
        reader = READERS.get(holds) if isinstance(holds, str) else None
        raise ValueError(f"it is not {what}" + (f": it is {holds}, which {reader} reads" if reader else ""))
    if version != VERSION or isinstance(version, bool):
        shown = str(version)[:20]
        raise ValueError(f"it is of format version {shown}, and this version of tradi reads version {VERSION}")


def _parts(tensors: dict[str, Tensor], about: dict[str, Any], device: torch.device) -> list[Packed]:
    listed = built(tuple[_Part, ...], about.get("parts"), "parts")
    if not 0 < len(listed) <= MOST_PARTS:
        raise ValueError(f"parts must be 1 to {MOST_PARTS:,}, got {len(listed):,}")
    parts: list[Packed] = [({kind: {} for kind in one.kinds}, one.about) for one in listed]
    places = {f"{number}/{kind}": kinds[kind] for number, (kinds, _) in enumerate(parts) for kind in kinds}
    for key, tensor in tensors.items():
        place, slash, name = _split(key)
        if place not in places or not slash:
            raise ValueError(f"it holds a tensor {key[:200]!r} that none of its parts has")
        places[place][name] = tensor.to(device)
    return parts


def _split(key: str) -> tuple[str, str, str]:
    """part/kind, the slash behind it, and the name."""
    number, _, rest = key.partition("/")
    kind, slash, name = rest.partition("/")
    return f"{number}/{kind}", slash, name


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, tied ones once, and persistent buffers."""
    persistent = model.state_dict().keys()
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in persistent}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


@dataclass(frozen=True)
class Frozen:
    """The weights that were frozen when a file was written.

    Args:
        names: of the parameters.
        sha256: of their contents, where the file leaves them out; None where it holds them.
    """

    names: tuple[str, ...]
    sha256: str | None

    @staticmethod
    def of(model: nn.Module, own: Collection[str], whole: bool) -> Frozen:
        """The parameters of a model that are neither trainable nor among its own; left out unless the file is whole."""
        left = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad and n not in own}
        return Frozen(tuple(left), None if whole or not left else digest(left, {}))

    @property
    def left_out(self) -> frozenset[str]:
        """Names of those that the file does not hold."""
        return frozenset() if self.sha256 is None else frozenset(self.names)

    def check(self, model: nn.Module) -> None:
        """Raise unless the model has the weights that the file leaves out.

        Raises:
            ValueError: if they are not its parameters, or others.
        """
        own = {name: parameter.detach() for name, parameter in model.named_parameters()}
        if len(set(self.names)) != len(self.names) or not set(self.names) <= own.keys():
            raise ValueError(f"frozen weights are not weights of the network, each once: {self.names[:5]}"[:300])
        if self.sha256 is None:
            return
        if any(is_sharded(own[name]) for name in self.names):
            raise ValueError("it leaves out frozen weights, and the model's are sharded: save with whole=True")
        found = digest({name: own[name] for name in self.names}, {})
        if found != self.sha256:
            raise ValueError(
                f"it leaves out {len(self.names)} weights that were frozen in training, {', '.join(self.names)[:200]}, "
                f"and the model's are others: their sha256 is {found}, not {self.sha256[:64]}. Give the model the "
                "weights that training began with, or save with whole=True"
            )


def check_model(saved: dict[str, Tensor], model: nn.Module, frozen: Frozen) -> None:
    """Raise where saved tensors are not those of a network that a training can have left behind.

    Raises:
        ValueError: if they are of another architecture, a weight or a statistic of BatchNorm is not finite, or a
            variance of BatchNorm is negative.
    """
    needed = {name: tensor for name, tensor in model_tensors(model).items() if name not in frozen.left_out}
    check_same_architecture(saved, needed, "the file")
    statistics = {
        f"{prefix}.{key}" if prefix else key: key
        for prefix in running_layers(model)
        for key in ("running_mean", "running_var")
    }
    for name in saved.keys() & {*dict(model.named_parameters()), *statistics}:
        check_values(f"the network's {name}", saved[name], negative=statistics.get(name) != "running_var")


def check_values(what: str, tensor: Tensor, negative: bool = True) -> None:
    """Raise for numbers that are not finite, or negative where none may be.

    Raises:
        ValueError: if one is.
    """
    if not tensor.isfinite().all():
        raise ValueError(f"{what} is NaN or infinite")
    if not negative and (tensor < 0).any():
        raise ValueError(f"{what} is negative")


def fill(model: nn.Module, saved: dict[str, Tensor], frozen: Frozen) -> None:
    """Put saved tensors, which `check_model` found nothing wrong with, into the model, and freeze what was frozen."""
    with torch.no_grad():
        for name, tensor in model_tensors(model).items():
            if name in saved:
                tensor.copy_(saved[name])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen.names and parameter.is_floating_point())


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


def _device(model: nn.Module) -> torch.device:
    tensors = [*model.parameters(), *model.buffers()]
    return tensors[0].device if tensors else torch.device("cpu")
