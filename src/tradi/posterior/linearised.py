"""All weights of a small network, conditioned on the training data through its derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from tradi._torch import tree_map
from tradi.ensemble.batches import samples_in
from tradi.ensemble.copying import sharing
from tradi.ensemble.linearised import Linearised
from tradi.posterior.conditioning import Fitted, Regression
from tradi.posterior.head import State
from tradi.posterior.linear_regression import Sums

CHUNK = 1 << 26  # bytes of derivatives that are held at once


class NetworkRegression(Regression):
    """All weights, whose features are the derivatives of the mean by them. Members are `Linearised` networks."""

    what = "all weights"

    def sums(self, state: State) -> list[Sums]:
        names = list(self.centre)
        weights = {name: state[name] for name in names}
        theta = torch.cat([weight.reshape(-1) for weight in weights.values()]).double()
        found: Sums | None = None
        for (inputs, target), (output, _, _), (y, v) in zip(
            self.replay.data, self.replay.run(state), self._observed, strict=True
        ):
            error = y - self.as_rows(self.likelihood.linear(output))
            samples = samples_in((inputs, target))
            positions = len(y) // samples
            size = max(1, CHUNK // (8 * theta.numel() * y[:positions].numel()))
            for start in range(0, samples, size):
                part, rows = slice(start, start + size), slice(start * positions, (start + size) * positions)
                J = self._derivatives(weights, _part(inputs, part, samples), _part(target, part, samples)).double()
                linear = error[rows].reshape(-1) + J @ theta
                here = Sums.of(J, linear, v[rows].reshape(-1))
                found = here if found is None else found + here
        assert found is not None
        return [found.times(self.replay.weight)]

    def _derivatives(self, weights: State, inputs: Any, target: Any) -> Tensor:
        """Derivatives of the mean of every sample by all weights, (samples * outputs, weights)."""
        args, kwargs = self.replay.caller.arguments(inputs, target)

        def mean(weights: State, args: Any, kwargs: Any) -> Tensor:
            one = tree_map(lambda leaf: leaf[None], (args, kwargs))
            output = functional_call(self.replay.model, weights, *one)
            return self.as_rows(self.likelihood.linear(output)).reshape(-1)

        found = vmap(jacrev(mean), in_dims=(None, 0, 0))(weights, args, kwargs)
        return torch.cat([part.flatten(2) for part in found.values()], 2).flatten(0, 1).detach()

    def placed(self, fitted: Fitted, seed: int, member: int) -> State:
        theta = self.drawn_theta(fitted, 0, seed, member)
        found: State = {}
        for number, name in enumerate(self.centre):
            point = fitted.state[name]
            own, theta = theta[: point.numel()], theta[point.numel() :]
            found[f"point_{number}"] = point
            found[f"step_{number}"] = own.reshape(point.shape).to(point.dtype) - point
        return found

    def module(self, model: nn.Module) -> nn.Module:
        model = sharing(model, own=self.centre)
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in self.centre.items():
                parameters[name].copy_(value)
        return Linearised(model, list(self.centre), self.likelihood)


def _part(values: Any, part: slice, size: int) -> Any:
    return tree_map(lambda leaf: leaf[part] if isinstance(leaf, Tensor) and len(leaf) == size else leaf, values)
