"""The tracked distribution of a network's weights: sample it, scale it, keep it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from os import PathLike
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from tradi.covariance import Covariance, Layer, covariance_from_options
from tradi.ensemble import Ensemble, State
from tradi.scale import LogLikelihood, ScaleChoice, choose_scale, log_likelihood
from tradi.weights import unwrap

FORMAT = "tradi-posterior-1"


class Posterior:
    """A Gaussian over the weights of a network, independent of the run it came from.

    Args:
        model: a network of its own, holding the final weights and everything that was not tracked.
        layers: what was tracked.
        covariance: how noise hangs together inside a layer.
        scale: factor on the noise.
        choice: how the scale was chosen, if it was.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: list[Layer],
        covariance: Covariance,
        scale: float = 1.0,
        choice: ScaleChoice | None = None,
    ) -> None:
        if not 0 <= scale < float("inf"):
            raise ValueError(f"scale must be finite and not negative, got {scale}")
        for layer in layers:
            for name, mean in layer.mean.items():
                if not (mean.isfinite().all() and layer.variance[name].isfinite().all()):
                    raise ValueError(
                        f"what was tracked of {name} is not finite: its weights were NaN or infinite at some step; "
                        "train without divergence (a lower learning rate, gradient clipping) and attach again"
                    )
                if not layer.weights[name].isfinite().all():
                    raise ValueError(f"the weights of {name} are NaN or infinite: training diverged")
        self.model = model.eval()
        self.covariance = covariance
        self.scale = scale
        self.choice = choice
        self._layers = layers

    def __repr__(self) -> str:
        weights = sum(mean.numel() for mean in self.mean.values())
        return f"Posterior({weights:,} weights in {len(self._layers)} layers, {self.covariance}, scale={self.scale:g})"

    @property
    def mean(self) -> State:
        """Tracked means by parameter name."""
        return {name: value for layer in self._layers for name, value in layer.mean.items()}

    @property
    def variance(self) -> State:
        """Tracked variances by parameter name, before scale and shrinkage; the paper's may be negative."""
        return {name: value for layer in self._layers for name, value in layer.variance.items()}

    def sample(self, members: int, seed: int = 0) -> Ensemble:
        """An ensemble of networks drawn from the posterior; member i is a function of the posterior, seed and i alone.

        Where the network has BatchNorm, call `refresh(training data)` on what you get before predicting.
        """
        return Ensemble(copy.deepcopy(self.model), lambda i: self._place(self.noise(i, seed)), members)

    def final(self) -> Ensemble:
        """The network as training left it, as an ensemble of one: what everything is compared with."""
        return Ensemble(copy.deepcopy(self.model), lambda _: {}, 1)

    def noise(self, member: int, seed: int = 0) -> State:
        """The noise of one member by parameter name, before the scale."""
        noise: State = {}
        for layer in self._layers:
            noise |= self.covariance.noise(layer, seed, member)
        return noise

    def rescaled(self, scale: float, choice: ScaleChoice | None = None) -> Posterior:
        """The same posterior with another factor on its noise; 0 leaves the mean network alone."""
        return Posterior(self.model, self._layers, self.covariance, scale, choice)

    def choose_scale(
        self,
        validation: Iterable[Any],
        *,
        refresh: Iterable[Any] | None = None,
        members: int = 10,
        tolerance: float = 0.005,
        seed: int = 0,
        log_prob: LogLikelihood = log_likelihood,
    ) -> Posterior:
        """A posterior with the largest noise scale that validation data does not speak against.

        That is the largest scale whose validation NLL exceeds the best one found by at most `tolerance`.
        `posterior.choice` says what was chosen, and what it cost. Never pass test data.

        Args:
            validation: (inputs, target) batches that were not trained on.
            refresh: training data for BatchNorm statistics; needed where the network has BatchNorm.
            members: networks a scale is judged by.
            tolerance: how much worse than the best NLL is accepted, in nats a sample: 0.005 lowers the likelihood of
                an average sample by half a per cent, and 0 takes the best scale.
            seed: of the members.
            log_prob: per-sample log-likelihood of targets under one member's output; the default takes integer
                targets for classes (negative ones are left out) and a (mean, variance) pair for regression.
        """
        choice = choose_scale(self, validation, refresh, members, tolerance, seed, log_prob)
        return self.rescaled(choice.scale, choice)

    def save(self, path: str | PathLike[str]) -> None:
        """Write tensors and JSON metadata to a safetensors file."""
        tensors = {f"model/{name}": tensor for name, tensor in _model_tensors(self.model).items()}
        tensors |= {f"mean/{name}": tensor for name, tensor in self.mean.items()}
        tensors |= {f"variance/{name}": tensor for name, tensor in self.variance.items()}
        joint = {names: matrix for layer in self._layers for names, matrix in layer.covariance.items()}
        tensors |= {f"covariance/{i}": matrix for i, matrix in enumerate(joint.values())}
        about = {
            "covariance": type(self.covariance).__name__,
            "options": self.covariance.options(),
            "scale": self.scale,
            "layers": {layer.name: list(layer.mean) for layer in self._layers},
            "joint": list(joint),
        }
        metadata = {"format": FORMAT, "posterior": json.dumps(about)}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)

    def _place(self, noise: State) -> State:
        return {
            name: torch.add(mean, noise[name], alpha=self.scale).to(layer.weights[name].dtype)
            for layer in self._layers
            for name, mean in layer.mean.items()
        }


def load_posterior(path: str | PathLike[str], model: nn.Module) -> Posterior:
    """Read a saved posterior; the model gives the architecture, and its own weights stay as they are."""
    model = copy.deepcopy(unwrap(model))
    device = next(iter(model.parameters())).device
    with safe_open(path, framework="pt", device=str(device)) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise ValueError(f"{path} is not a posterior that this version of tradi wrote ({FORMAT})")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    about = json.loads(metadata["posterior"])
    _fill(model, _part(tensors, "model"))
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    means, variances = _part(tensors, "mean"), _part(tensors, "variance")
    joint = {tuple(names): tensors[f"covariance/{i}"] for i, names in enumerate(about["joint"])}
    layers = [
        Layer(
            layer,
            {name: parameters[name] for name in names},
            {name: means[name] for name in names},
            {name: variances[name] for name in names},
            {block: matrix for block, matrix in joint.items() if block[0] in names},
        )
        for layer, names in about["layers"].items()
    ]
    covariance = covariance_from_options(about["covariance"], about["options"])
    return Posterior(model, layers, covariance, about["scale"])


def _model_tensors(model: nn.Module) -> State:
    """Parameters, tied ones once, and persistent buffers."""
    buffers = {name: tensor for name, tensor in model.named_buffers() if name in model.state_dict()}
    return {name: p.detach() for name, p in model.named_parameters()} | buffers


def _part(tensors: dict[str, Tensor], kind: str) -> State:
    return {name.partition("/")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}/")}


def _fill(model: nn.Module, saved: State) -> None:
    own = _model_tensors(model)
    missing, unknown = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    shapes = {
        n: (tuple(saved[n].shape), tuple(t.shape)) for n, t in own.items() if n in saved and saved[n].shape != t.shape
    }
    if missing or unknown or shapes:
        raise ValueError(
            "the posterior is of another architecture: "
            f"only in the file {unknown}, only in the model {missing}, shapes (file, model) that differ {shapes}"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])
