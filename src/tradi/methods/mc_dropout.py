"""MC Dropout (Gal and Ghahramani, 2016): dropout stays on when predicting, and every member has masks of its own."""

from __future__ import annotations

import ast
import inspect
import operator
import textwrap
import warnings
from os import PathLike
from typing import Any

import torch
from torch import nn

from tradi._torch import DROPOUTS
from tradi.ensemble.copying import copied
from tradi.ensemble.ensemble import Ensemble
from tradi.methods.single_network import SingleNetwork
from tradi.posterior.posterior import load_posterior
from tradi.posterior.randomness import key
from tradi.prediction.likelihoods import Likelihood

KEY = "_mask_key"  # a buffer, so that a member is a value of it, as elsewhere a value of the weights
FUNCTIONS = {name for name in dir(nn.functional) if "dropout" in name}


class MCDropout:
    """Members are dropout masks: a function of the seed and the member, the same for every batch of one shape.

    Only the modules that drop are switched on, and only while they run: nn.Dropout and its kin, and the dropout in
    nn.MultiheadAttention, nn.LSTM, nn.GRU and nn.RNN. BatchNorm and everything else stay in eval mode. Dropout called
    as a function cannot be switched from outside; where the source of a module's class shows such a call, a warning
    says so. Masks belong to places in a batch: the same sample in another place, or another batch, meets another mask.

    Args:
        model: the trained network; it is copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copied(model).eval()
        functional = sorted({type(module).__name__ for module in self.model.modules() if _calls_dropout(module)})
        layers = [module for module in self.model.modules() if _drops(module)]
        if not layers:
            hint = f"; {functional} call dropout as a function, which cannot be: use nn.Dropout" if functional else ""
            raise ValueError(f"the model has no dropout layer with p > 0 that could be switched on{hint}")
        if functional:
            warnings.warn(
                f"dropout that {functional} call as a function is not switched on: use nn.Dropout", stacklevel=2
            )
        self.model.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)
        self.model.register_forward_pre_hook(_seed, prepend=True)
        self.model.register_forward_hook(_unseed, always_call=True)
        for module in layers:
            module.register_forward_pre_hook(_switch_on)
            module.register_forward_hook(_switch_off, always_call=True)

    def sample(self, members: int, seed: int = 0, *, likelihood: Likelihood | None = None) -> Ensemble:
        """An ensemble of `members` sets of masks."""
        seed = operator.index(seed)
        model = copied(self.model)
        return Ensemble(model, lambda i: {KEY: torch.tensor(key(seed, i) % 2**63)}, members, likelihood=likelihood)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network."""
        SingleNetwork(self.model).save(path)

    @classmethod
    def load(cls, path: str | PathLike[str], model: nn.Module) -> MCDropout:
        """Read a saved network; the model gives the architecture."""
        return cls(load_posterior(path, model).model)


def _drops(module: nn.Module) -> bool:
    if isinstance(module, DROPOUTS):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1  # there is dropout between layers only
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _calls_dropout(module: nn.Module) -> bool:
    """Whether the source of a module's class, if it can be read, calls a dropout function."""
    if type(module).forward.__module__.startswith("torch.nn."):
        return False  # torch's own are known: see _drops
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module))))
    except (OSError, TypeError, SyntaxError):  # defined where there is no source to read
        return False
    return any(_is_dropout(node) for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_dropout(call: ast.Call) -> bool:
    if any(keyword.arg == "dropout_p" for keyword in call.keywords):
        return True
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in FUNCTIONS
    of_self = (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self"
    )
    return isinstance(function, ast.Attribute) and function.attr in FUNCTIONS and not of_self


def _seed(model: Any, args: Any) -> None:
    del args
    fork = torch.random.fork_rng()
    fork.__enter__()
    vars(model).setdefault("_forks", []).append(fork)  # a stack: a forward may call itself
    torch.manual_seed(int(getattr(model, KEY)))


def _unseed(model: Any, args: Any, output: Any) -> None:
    del args, output
    model._forks.pop().__exit__(None, None, None)


def _switch_on(module: nn.Module, args: Any) -> None:
    del args
    module.training = True


def _switch_off(module: nn.Module, args: Any, output: Any) -> None:
    del args, output
    module.training = False
