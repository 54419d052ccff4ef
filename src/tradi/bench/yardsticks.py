"""OOD scores of the single network that need no ensemble, made from training data alone: what any method must beat."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from tradi import metrics
from tradi.bench.problem import Data, Problem
from tradi.bench.row import Detector, Notes, Row
from tradi.bench.training import Run
from tradi.methods import SingleNetwork
from tradi.metrics.distances import NEIGHBOURS, RIDGE
from tradi.posterior.features import penultimate

Score = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Yardstick(Row, ABC):
    """The single network, judged by a score other than its confidence."""

    @abstractmethod
    def score(self, model: nn.Module, data: Data) -> Score:
        """The score of inputs, given the trained network and its training data."""

    def ensemble(self, runs: Sequence[Run], data: Problem, seed: int) -> tuple[Detector, Notes]:
        del seed
        if not isinstance(data, Data):
            raise TypeError(f"{type(self).__name__} is for images in memory, not for {type(data).__name__}")
        return Detector(self.score(runs[0].model, data)), {}


@dataclass(frozen=True)
class Energy(Yardstick):
    """Minus the logarithm of the sum of the exponentials of all logits."""

    def score(self, model: nn.Module, data: Data) -> Score:
        network = SingleNetwork(model).sample(1)
        return lambda x: metrics.energy(network.outputs(list(x.split(data.at_once))))


@dataclass(frozen=True)
class Mahalanobis(Yardstick):
    """Mahalanobis distance of penultimate features to the nearest class."""

    ridge: float = RIDGE

    def score(self, model: nn.Module, data: Data) -> Score:
        x, labels = data.train
        training = _features(model, x, data)
        return lambda x: metrics.mahalanobis(_features(model, x, data), training, labels, self.ridge)


@dataclass(frozen=True)
class Neighbours(Yardstick):
    """Distance of penultimate features to the k-th nearest of training data."""

    k: int = NEIGHBOURS

    def score(self, model: nn.Module, data: Data) -> Score:
        training = _features(model, data.train[0], data)
        return lambda x: metrics.knn_distance(_features(model, x, data), training, self.k)


def _features(model: nn.Module, x: Tensor, data: Data) -> Tensor:
    return penultimate(model, list(x.split(data.at_once)), likelihood=data.likelihood)


YARDSTICKS: dict[str, Yardstick] = {
    "Single network: energy": Energy(),
    "Single network: Mahalanobis": Mahalanobis(),
    "Single network: kNN": Neighbours(),
}
