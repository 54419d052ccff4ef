"""What people would use instead, on the same network: what it adds to a training step, a run and the memory."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import types
from typing import Any

import torch
from networks import Network, size
from timing import Times, ratio
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_leaves

from tracking import tracking

RANK = 20  # deviations that SWAG keeps, as published
EPOCH = 430  # steps: SWAG and SWA collect once an epoch


def peers(network: Network, state: float, repetitions: int) -> dict[str, Any]:
    """Extra time of a whole run and extra bytes a weight, over training with Adam; TRADI holds `state` bytes of it."""
    model, weights = network.model, size(network.model)
    train = network.train_step(torch.optim.Adam(model.parameters(), 1e-4))
    train()
    average = AveragedModel(model)
    others = [_twin(network) for _ in range(4)]
    functions = {
        "train": train,
        "swa": lambda: average.update_parameters(model),
        "ensemble": lambda: [step() for step in others],
    }
    swag, ivon = _swag(model), _ivon(copy.deepcopy(model), network)
    if swag is not None:
        for epoch in range(1, RANK + 2):
            swag.update_wrapper(epoch)
        epochs = iter(range(RANK + 2, 1 << 30))
        functions["swag"] = lambda: swag.update_wrapper(next(epochs))
    if ivon is not None:
        functions["ivon"] = ivon[0]
    times = tracking(model, network.steps, repetitions, before=train, **functions)
    alone = times["train"]
    held = {"swa": nbytes([*average.module.parameters()]), "ensemble": 4 * 4 * weights}  # four more networks

    def extra(cost: Times, held_bytes: float) -> dict[str, Any]:
        return {"run_over_training": ratio(cost, alone), "bytes_per_weight": round(held_bytes / weights, 2)}

    found: dict[str, Any] = {
        "TRADI": extra(times["run"], state * weights),
        "swa_utils' average, every step": extra(times["swa"], held["swa"]),
        "swa_utils' average, every epoch": extra(1 / EPOCH * times["swa"], held["swa"]),
        "torch-uncertainty's SWAG, every epoch": None,
        "IVON": None,
        "Deep Ensemble of 5": extra(times["ensemble"], held["ensemble"]),
    }
    if swag is not None:
        collected = nbytes(list(swag.swag_stats.values()))
        found["torch-uncertainty's SWAG, every epoch"] = extra(1 / EPOCH * times["swag"], collected)
    if ivon is not None:
        its_state = [*ivon[1].state.values(), *(list(group.values()) for group in ivon[1].param_groups)]
        own = nbytes([t for t in tree_leaves(its_state) if isinstance(t, Tensor) and not isinstance(t, nn.Parameter)])
        found["IVON"] = extra(times["ivon"] - alone, own - 8 * weights)  # it takes the place of Adam, which holds 8
    return found


def nbytes(tensors: list[Any]) -> int:
    return sum(t.nbytes for t in tensors if isinstance(t, Tensor))


def _twin(network: Network) -> Any:
    twin = Network(copy.deepcopy(network.model), network.x, network.y, network.batches, network.steps)
    return twin.train_step(torch.optim.Adam(twin.model.parameters(), 1e-4))


def _swag(model: nn.Module) -> Any:
    """torch-uncertainty's, past its package's own imports, which need torchvision and lightning."""
    spec = importlib.util.find_spec("torch_uncertainty")
    if spec is None or spec.submodule_search_locations is None:
        return None
    package = types.ModuleType("torch_uncertainty_methods")
    package.__path__ = [f"{spec.submodule_search_locations[0]}/methods"]
    sys.modules[package.__name__] = package
    kind = importlib.import_module(f"{package.__name__}.swag").SWAG
    # It draws members at every update; one is the least it can draw.
    return kind(model, cycle_start=0, cycle_length=1, max_num_models=RANK, num_estimators=1)


def _ivon(model: nn.Module, network: Network) -> Any:
    if importlib.util.find_spec("ivon") is None:
        return None
    optimizer = importlib.import_module("ivon").IVON(model.parameters(), lr=0.1, ess=55_000)

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(model(network.x), network.y).backward()
        optimizer.step()

    return step, optimizer
