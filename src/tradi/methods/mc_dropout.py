"""MC Dropout (Gal and Ghahramani, 2016): dropout stays on when predicting, and each member has its own masks."""

from __future__ import annotations

import ast
import inspect
import operator
import textwrap
import threading
import warnings
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from tradi._torch import DROPOUTS, DispatchMode
from tradi.ensemble.copying import Snapshot, copied, sharing
from tradi.ensemble.ensemble import Ensemble
from tradi.methods.single_network import SingleNetwork
from tradi.posterior.posterior import load_posterior
from tradi.posterior.randomness import key
from tradi.prediction.likelihoods import Likelihood

KEY = "_mask_key"  # a buffer whose value defines a member, as the values of the weights do for other methods
# Kernels of graphics processors that drop out inside.
WITHOUT_GENERATOR = {
    "_cudnn_rnn",
    "miopen_rnn",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
}
FUNCTIONS = {name for name in dir(nn.functional) if "dropout" in name}


class MCDropout:
    """Members are dropout masks, which depend on the seed, the member and the shape of the batch only.

    Masks come from generators of their own: predicting neither disturbs torch's random numbers nor depends on them.

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
        model = copied(model).eval()
        functional = sorted({type(module).__name__ for module in model.modules() if _calls_dropout(module)})
        layers = [module for module in model.modules() if _drops(module)]
        if not layers:
            hint = f"; dropout called as a function, as in {functional}, cannot be switched on" if functional else ""
            raise ValueError(f"the model has no dropout layer with p > 0{hint}: use nn.Dropout")
        if functional:
            warnings.warn(
                f"dropout called as a function, as in {functional}, is not switched on: use nn.Dropout", stacklevel=2
            )
        model.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)
        model.register_forward_pre_hook(_begin, prepend=True)
        for module in layers:
            module.register_forward_pre_hook(_switch_on)
            module.register_forward_hook(_switch_off, always_call=True)
        model.register_forward_hook(_end, always_call=True)  # last, where the model is such a layer itself
        self._snapshot = Snapshot(model)

    @property
    def model(self) -> nn.Module:
        """The trained network, in eval mode but for its dropout."""
        return self._snapshot.model

    def sample(self, members: int, seed: int = 0, *, likelihood: Likelihood | None = None) -> Ensemble:
        """An ensemble of `members` networks, each with its own masks.

        Args:
            members: their number.
            seed: of the masks; a member is a function of the seed and of its number.
            likelihood: what outputs mean, if it cannot be inferred.

        Returns:
            the ensemble, whose members share the weights.
        """
        seed = operator.index(seed)
        return Ensemble(sharing(self.model), partial(_mask_of, seed), members, likelihood=likelihood)

    def save(self, path: str | PathLike[str], *, whole: bool = False) -> None:
        """Write the network; `whole` as in `Posterior.save`.

        Args:
            path: of the file.
            whole: whether frozen weights are written too.
        """
        SingleNetwork(self.model).save(path, whole=whole)

    @classmethod
    def load(cls, path: str | PathLike[str], model: nn.Module) -> MCDropout:
        """Read a saved network; `model` gives the architecture.

        Args:
            path: of the file.
            model: a network of the architecture that was saved, with its frozen weights if the file leaves them out.

        Returns:
            the method with the network that was saved.
        """
        return cls(load_posterior(path, model).model)


def _mask_of(seed: int, member: int) -> dict[str, Tensor]:
    return {KEY: torch.tensor(key(seed, member) % 2**63)}


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


class _Masks(DispatchMode):
    """Random numbers that torch's operations draw come from one seed; a generator for each device."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name == "native_dropout":  # in one kernel, which takes no generator
            return self._dropped(*args, **kwargs)
        if name in WITHOUT_GENERATOR:
            raise RuntimeError(
                f"{name} draws dropout masks by itself, so that a seed would not give the same members: use nn.Dropout "
                "between the layers, or predict on the CPU"
            )
        if name == "bernoulli_":  # by which all kinds of dropout draw their masks
            kwargs = {**kwargs, "generator": self._generator(args[0].device)}
        return func(*args, **kwargs)

    def _dropped(self, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
        del train  # only layers that are switched on run in here
        mask = torch.empty_like(x).bernoulli_(1 - p, generator=self._generator(x.device))
        return x * mask / max(1 - p, torch.finfo(x.dtype).tiny), mask.bool()

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


class _Running(threading.local):
    """The masks of the models whose forward runs in this thread, innermost last: forward may be recursive."""

    def __init__(self) -> None:
        self.masks: list[_Masks] = []


_running = _Running()


def _begin(model: Any, args: Any) -> None:
    del args
    _running.masks.append(_Masks(int(getattr(model, KEY))))


def _end(model: Any, args: Any, output: Any) -> None:
    del model, args, output
    _running.masks.pop()


def _switch_on(module: nn.Module, args: Any) -> None:
    del args
    module.training = True
    _running.masks[-1].__enter__()


def _switch_off(module: nn.Module, args: Any, output: Any) -> None:
    del args, output
    _running.masks[-1].__exit__(None, None, None)
    module.training = False
