"""MC Dropout (Gal and Ghahramani, 2016): dropout stays on when predicting, and every member has masks of its own."""

from __future__ import annotations

import inspect
import operator
import re
import warnings
from os import PathLike
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from tradi.ensemble import Ensemble
from tradi.methods.maximum_probability import MaximumProbability
from tradi.randomness import key
from tradi.weights import copied

KEY = "_mask_key"  # a buffer, so that a member is a value of it, as elsewhere a value of the weights
_FUNCTIONAL = re.compile(r"\b(F|functional|torch)\.(alpha_|feature_alpha_|feature_)?dropout[123]?d?\(")


class MCDropout:
    """Members are dropout masks: a function of the seed and the member, the same for every batch of one shape.

    Only the modules that drop are switched on, and only while they run: nn.Dropout and its kin, and the dropout in
    nn.MultiheadAttention, nn.LSTM, nn.GRU and nn.RNN. BatchNorm and everything else stay in eval mode. Dropout called
    as a function in a `forward` cannot be switched from outside; where the source shows such a call, a warning says so.

    Args:
        model: the trained network; it is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copied(model).eval()
        functional = sorted({type(module).__name__ for module in self.model.modules() if _calls_dropout(module)})
        layers = [module for module in self.model.modules() if _drops(module)]
        if not layers:
            hint = f"; {functional} call dropout as a function, which stays off: use nn.Dropout" if functional else ""
            raise ValueError(f"the model has no dropout layer with p > 0, so its members would all be the same{hint}")
        if functional:
            warnings.warn(f"dropout that {functional} call as a function stays off: use nn.Dropout", stacklevel=2)
        self.model.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)
        self.model.register_forward_pre_hook(_seed, prepend=True)
        self.model.register_forward_hook(_unseed, always_call=True)
        for module in layers:
            module.register_forward_pre_hook(_switch_on)
            module.register_forward_hook(_switch_off, always_call=True)

    def sample(self, members: int, seed: int = 0) -> Ensemble:
        """An ensemble of `members` sets of masks."""
        seed = operator.index(seed)
        return Ensemble(copied(self.model), lambda i: {KEY: torch.tensor(key(seed, i) % 2**63)}, members)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network; `MCDropout(load_posterior(path, model).model)` reads it."""
        MaximumProbability(self.model).save(path)


def _drops(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0


def _calls_dropout(module: nn.Module) -> bool:
    if type(module).__module__.startswith("torch.nn."):
        return False  # torch's own are known: see _drops
    try:
        return _FUNCTIONAL.search(inspect.getsource(type(module).forward)) is not None
    except (OSError, TypeError):  # defined where there is no source to read
        return False


def _seed(model: Any, args: Any) -> None:
    del args
    model._fork = torch.random.fork_rng()
    model._fork.__enter__()
    torch.manual_seed(int(getattr(model, KEY)))


def _unseed(model: Any, args: Any, output: Any) -> None:
    del args, output
    model._fork.__exit__(None, None, None)
    del model._fork


def _switch_on(module: nn.Module, args: Any) -> None:
    del args
    module.training = True


def _switch_off(module: nn.Module, args: Any, output: Any) -> None:
    del args, output
    module.training = False
