"""A posterior or an ensemble as a folder with a model card, as people expect it on the Hugging Face Hub.

Enters: a posterior or an ensemble, and metrics. Leaves: a folder, and what was saved in one.
Who may call it: users and every room above; it writes no format of its own, and never touches the network.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from tradi.ensemble.ensemble import Ensemble, load_ensemble
from tradi.ensemble.sharded import ShardedEnsemble
from tradi.posterior.posterior import Posterior, load_posterior
from tradi.posterior.sharded import ShardedPosterior
from tradi.storage.atomic import new_folder, write_whole
from tradi.storage.typed import built, parsed

CONFIG = "tradi_config.json"
CARD = "README.md"
VERSION = 1  # of the configuration
LOADERS: dict[str, Callable[[Path, nn.Module], Posterior | Ensemble]] = {
    "posterior": load_posterior,
    "ensemble": load_ensemble,
}


@dataclass(frozen=True)
class _Config:
    """What `tradi_config.json` says."""

    version: int
    holds: str
    likelihood: str | None
    members: int | None
    metrics: dict[str, float]


def save_pretrained(
    saved: Posterior | Ensemble,
    folder: str | PathLike[str],
    *,
    metrics: Mapping[str, float] | None = None,
    data: str = "held-out data",
    whole: bool = True,
) -> Path:
    """Write a folder with `posterior.safetensors` or `ensemble.safetensors`, `tradi_config.json` and a model card.

    The folder appears under its name when it is complete. `tradi.load_pretrained` reads it.

    Args:
        saved: what to save.
        folder: a new folder, or an empty one.
        metrics: by name, for the card, such as `{"nll": 0.12, "ece": 0.01}`.
        data: what the metrics were measured on.
        whole: write frozen weights too; without them, as in `Ensemble.save`, whoever loads the folder needs a model
            that has the same ones already.

    Returns:
        The folder.

    Raises:
        TypeError: if it is neither a posterior nor an ensemble, or is sharded.
        ValueError: if a metric is not finite, or `saved` cannot be saved.
        FileExistsError: if there is something in the folder.
        OSError: if it cannot be written.
    """
    if isinstance(saved, ShardedPosterior | ShardedEnsemble):
        raise TypeError(
            "a sharded posterior cannot be saved as a folder: save() it, load the file in one process, and "
            "save that one"
        )
    if not isinstance(saved, Posterior | Ensemble):
        raise TypeError(f"only a Posterior or an Ensemble can be saved as a folder, got {type(saved).__name__}")
    numbers = {name: float(value) for name, value in (metrics or {}).items()}
    for name, value in numbers.items():
        if not math.isfinite(value):
            raise ValueError(f"metric {name!r} must be finite, got {value}")
    holds = "ensemble" if isinstance(saved, Ensemble) else "posterior"
    config = _Config(
        VERSION,
        holds,
        None if saved.likelihood is None else type(saved.likelihood).__name__,
        len(saved) if isinstance(saved, Ensemble) else None,
        numbers,
    )
    with new_folder(folder) as partial:
        saved.save(partial / f"{holds}.safetensors", whole=whole)
        write_whole(partial / CONFIG, json.dumps(vars(config), indent=2) + "\n")
        write_whole(partial / CARD, _card(config, Path(folder).resolve().name, repr(saved), data))
    return Path(folder)


def load_pretrained(folder: str | PathLike[str], model: nn.Module) -> Posterior | Ensemble:
    """Read a folder that `save_pretrained` wrote; the model gives the architecture, and its own weights stay.

    Args:
        folder: on this machine; one from the Hub is downloaded with `huggingface_hub.snapshot_download` first.
        model: a network of the architecture that was trained.

    Returns:
        a posterior or an ensemble, whichever was saved.

    Raises:
        ValueError: if the configuration is damaged or of another version, or the file of weights cannot be loaded.
        OSError: if there is no such folder, or a file in it cannot be read.
    """
    path = Path(folder) / CONFIG
    text = path.read_bytes().decode(errors="replace")
    try:
        config: _Config = built(_Config, parsed(text), CONFIG)
        if config.version != VERSION:
            raise ValueError(f"it is of version {config.version}, and this version of tradi reads version {VERSION}")
        if config.holds not in LOADERS:
            raise ValueError(f"it holds {config.holds[:80]!r}, and this version of tradi reads {sorted(LOADERS)}")
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    return LOADERS[config.holds](Path(folder) / f"{config.holds}.safetensors", model)


def _card(config: _Config, name: str, what: str, data: str) -> str:
    """The model card: YAML about it, then what it is, how to load it, and the metrics."""
    about: dict[str, Any] = {"library_name": "tradi", "tags": ["tradi", "uncertainty", "pytorch"]}
    if config.metrics:
        measured = [{"type": metric, "value": value} for metric, value in config.metrics.items()]
        task = {"type": "other", "name": config.likelihood or "unknown"}
        result = {"task": task, "dataset": {"name": data, "type": data}, "metrics": measured}
        about |= {"metrics": list(config.metrics), "model-index": [{"name": name, "results": [result]}]}
    front = "\n".join(f"{key}: {json.dumps(value)}" for key, value in about.items())  # JSON is YAML
    rows = "\n".join(f"| {metric} | {value:.6g} |" for metric, value in config.metrics.items())
    table = f"Measured on {data}:\n\n| metric | value |\n|---|---|\n{rows}\n" if rows else "No metrics were given.\n"
    return f"""---
{front}
---

# {name}

`{what}`

Made with tradi, which gives a network uncertainty from one training run. Where its members disagree, the model does
not know.

## Use

```python
import tradi

{config.holds} = tradi.load_pretrained("{name}", model)  # model: a network of the architecture that was trained
```

## Metrics

{table}"""
