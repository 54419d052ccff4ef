"""All members in one module that returns tensors: for servers, export, and libraries that take a network."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from tradi.ensemble.copying import copied
from tradi.ensemble.joining import joined, stacked
from tradi.ensemble.packing import check_tensors
from tradi.prediction.bernoulli import BernoulliPrediction
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.gaussian import GaussianMixture
from tradi.prediction.likelihood import Likelihood

State = dict[str, Tensor]

OF_LABELS = ("probs", "labels", "confidence", "entropy", "mutual_information")
OF_NUMBERS = ("mean", "variance", "aleatoric", "epistemic")
FIELDS: dict[type, tuple[str, ...]] = {
    ClassPrediction: OF_LABELS,
    BernoulliPrediction: OF_LABELS,
    GaussianMixture: OF_NUMBERS,
}


class ServingModule(nn.Module):
    """All members, run one after another; it returns the fields of the prediction by name.

    Labels have `probs`, `labels`, `confidence`, `entropy` and `mutual_information`, numbers `mean`, `variance`,
    `aleatoric` and `epistemic`: the values that `Ensemble.predict` gives. What members share is held once, and no
    weight requires a gradient.

    A loop, and not `torch.vmap`: it runs whatever the network runs, keeps the size of the batch free when it is
    exported, and does not hold the activations of all members of a batch of images at once (docs/serving.md).

    Args:
        model: gives the architecture and what a member does not hold itself.
        members: what each holds in place of the model's own, by name.
        likelihood: what outputs mean.

    Raises:
        ValueError: if there is more to members than the tensors of a network.
    """

    def __init__(self, model: nn.Module, members: list[State], likelihood: Likelihood) -> None:
        super().__init__()
        held = check_tensors(model, members, "be served as one module")
        members = [{name: tensor for name, tensor in own.items() if name in held} for own in members]
        model = copied(model).requires_grad_(False)
        self.members = nn.ModuleList(_member(model, own) for own in members)
        self.likelihood = likelihood
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The fields of the prediction for inputs as the network takes them, each (batch, ...).

        Raises:
            TypeError: if the likelihood gives a prediction of another kind than tradi's.
        """
        outputs = [self.likelihood.output(member(*args, **kwargs)) for member in self.members]
        prediction: Any = self.likelihood.predict(joined(stacked, outputs))
        names = FIELDS.get(type(prediction))
        if names is None:
            raise TypeError(f"{self.likelihood!r} gives a {type(prediction).__name__}, whose fields are not known")
        return {name: getattr(prediction, name) for name in names}


def _member(model: nn.Module, own: State) -> nn.Module:
    """A module with a member's tensors, and the model's own, not copies of them, in all other places."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    kept: dict[int, Any] = {id(tensor): tensor for tensor in (*parameters.values(), *buffers.values())}
    kept |= {
        id(p): nn.Parameter(own[name].clone(), requires_grad=False) for name, p in parameters.items() if name in own
    }
    kept |= {id(buffer): own[name].clone() for name, buffer in buffers.items() if name in own}
    return copy.deepcopy(model, kept)
