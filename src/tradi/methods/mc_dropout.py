"""MC Dropout (Gal and Ghahramani, 2016): dropout stays on when predicting, and each member has its own masks."""

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

KEY = "_mask_key"  # a buffer whose value defines a member, as the values of the weights do for other methods
FUNCTIONS = {name for name in dir(nn.functional) if "dropout" in name}


class MCDropout:
    """Members are dropout masks, which depend on the seed, the member and the shape of the batch only.

    Only modules with dropout are switched to training mode, and only while they run: nn.Dropout and its variants, and
    the dropout in nn.MultiheadAttention, nn.LSTM, nn.GRU and nn.RNN. BatchNorm and everything else stay in eval mode.
    Dropout called as a function cannot be switched on from outside; a warning is issued if the source of a module's
    class shows such a call. Masks belong to positions in a batch: at another position, or in a batch of another shape,
    the same sample gets another mask.

    Args:
        model: the trained network; it is copied.

    Raises:
        ValueError: if the model has no dropout layer with p > 0.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = copied(model).eval()
        functional = sorted({type(module).__name__ for module in self.model.modules() if _calls_dropout(module)})
        layers = [module for module in self.model.modules() if _drops(module)]
        if not layers:
            hint = f"; dropout called as a function, as in {functional}, cannot be switched on" if functional else ""
            raise ValueError(f"the model has no dropout layer with p > 0{hint}: use nn.Dropout")
        if functional:
            warnings.warn(
                f"dropout called as a function, as in {functional}, is not switched on: use nn.Dropout", stacklevel=2
            )
        self.model.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)
        self.model.register_forward_pre_hook(_seed, prepend=True)
        self.model.register_forward_hook(_unseed, always_call=True)
        for module in layers:
            module.register_forward_pre_hook(_switch_on)
            module.register_forward_hook(_switch_off, always_call=True)

    def sample(self, members: int, seed: int = 0, *, likelihood: Likelihood | None = None) -> Ensemble:
        """An ensemble of `members` networks, each with its own masks."""
        seed = operator.index(seed)
        model = copied(self.model)
        return Ensemble(model, lambda i: {KEY: torch.tensor(key(seed, i) % 2**63)}, members, likelihood=likelihood)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network."""
        SingleNetwork(self.model).save(path)

    @classmethod
    def load(cls, path: str | PathLike[str], model: nn.Module) -> MCDropout:
        """Read a saved network; `model` gives the architecture."""
        return cls(load_posterior(path, model).model)


def _drops(module: nn.Module) -> bool:
    if isinstance(module, DROPOUTS):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1  # torch applies it between layers only
    return isinstance(module, nn.MultiheadAttention) and module.dropout > 0


def _calls_dropout(module: nn.Module) -> bool:
    """Whether the source of a module's class, if it can be read, calls a dropout function."""
    if type(module).forward.__module__.startswith("torch.nn."):
        return False  # torch's own layers are handled by _drops
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module))))
    except (OSError, TypeError, SyntaxError):  # the class has no source to read
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
    vars(model).setdefault("_forks", []).append(fork)  # a stack: forward may be recursive
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
