"""IVON (Shen et al., ICML 2024): the published optimizer, from the package `ivon-opt`, in place of the recipe's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from tradi.bench.methods import Following
from tradi.bench.recipe import Recipe
from tradi.ensemble.copying import copied
from tradi.posterior.covariance import Independent
from tradi.posterior.layers import by_layer
from tradi.posterior.posterior import Posterior
from tradi.tracking.tracker import Rates, Tracker


class Variational(Tracker):
    r"""The posterior that IVON has learnt, $\mathcal N(w, 1 / \lambda (h + \delta))$ for every weight.

    $\lambda$ is the number of training samples, $h$ the Hessian's diagonal and $\delta$ the weight decay. IVON holds
    all of it, so that nothing is tracked here.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        super().__init__(model, optimizer, "*")

    @property
    def options(self) -> dict[str, Any]:
        return {}

    def observe(self, moved: Rates) -> None:
        del moved

    def snapshot(self) -> Posterior:
        variances = self._variances()
        variance = {name: variances[weight.parameter] for name, weight in self.selected.items()}
        model = copied(self.model)
        final = {name: parameter.detach() for name, parameter in model.named_parameters()}
        return Posterior(model, by_layer(final, {n: w.clone() for n, w in final.items()}, variance), Independent())

    def _variances(self) -> dict[nn.Parameter, Tensor]:
        """By weight: a group of the optimizer holds the Hessian of all its weights in a row."""
        found = {}
        for group in self._optimizer.param_groups:
            variance = 1 / (group["ess"] * (group["hess"] + group["weight_decay"]))
            sizes = [parameter.numel() for parameter in group["params"]]
            for parameter, part in zip(group["params"], variance.split(sizes), strict=True):
                found[parameter] = part.view(parameter.shape)
        return found

    def tracked_state(self) -> dict[str, Any]:
        return {"weights": {}}

    def load_tracked_state(self, state: dict[str, Any]) -> None:
        del state


@dataclass(frozen=True, kw_only=True)
class Ivon(Following):
    """A training of its own by IVON, at the published settings but for epochs and decay, which are the recipe's.

    Args:
        lr: as in the package's example; its other settings are the package's defaults.
    """

    lr: float = 0.1

    @property
    def tracker_name(self) -> str:
        return "IVON"

    def recipe(self, usual: Recipe) -> Recipe:
        return replace(usual, optimizer="ivon", lr=self.lr, weight_decay=1e-4, momentum=0.9)

    def build(self, model: nn.Module, optimizer: Optimizer, steps: int, recipe: Recipe) -> Variational:
        del steps, recipe
        return Variational(model, optimizer)
