"""Members that are linear in their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from tradi.prediction.likelihood import Likelihood


class Linearised(nn.Module):
    r"""A network whose mean is linear in its weights around a point, $f(x; \omega) + J(x; \omega)\, \delta$.

    Everything else in its output, such as a variance, is the network's own.

    Args:
        network: with the weights of the tracked mean.
        names: of the parameters that move.
        likelihood: says where the mean is in the output.
    """

    def __init__(self, network: nn.Module, names: list[str], likelihood: Likelihood) -> None:
        super().__init__()
        self.network = network
        self.names, self.likelihood = names, likelihood
        parameters = dict(network.named_parameters())
        for number, name in enumerate(names):
            self.register_buffer(f"point_{number}", parameters[name].detach().clone())
            self.register_buffer(f"step_{number}", torch.zeros_like(parameters[name]))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output, with the mean linearised."""
        point = {name: getattr(self, f"point_{number}") for number, name in enumerate(self.names)}
        step = {name: getattr(self, f"step_{number}") for number, name in enumerate(self.names)}

        def mean(weights: dict[str, Tensor]) -> Tensor:
            return self.likelihood.linear(functional_call(self.network, weights, args, kwargs))

        at_point, change, *_ = jvp(mean, (point,), (step,))
        return self.likelihood.with_linear(self.network(*args, **kwargs), at_point + change)
