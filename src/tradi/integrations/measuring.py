"""How good and how sure predictions are, gathered batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tradi.ensemble.batches import LABELS
from tradi.ensemble.ensemble import Ensemble
from tradi.metrics import ece
from tradi.posterior.posterior import Posterior
from tradi.prediction.bernoulli import BernoulliPrediction
from tradi.prediction.class_likelihoods import Tokens
from tradi.prediction.gaussian import GaussianMixture

LEVEL = 0.9  # of the central interval that coverage is counted in


class Mapped:
    """A loader whose batches go through a function first."""

    def __init__(self, loader: Iterable[Any], function: Callable[[Any], Any]) -> None:
        self._loader, self._function = loader, function

    def __iter__(self) -> Iterator[Any]:
        return map(self._function, self._loader)


class Measures:
    """Values of every sample, and what they come to: for labels and for numbers."""

    def __init__(self) -> None:
        self._values: list[dict[str, Tensor]] = []

    def run(self, ensemble: Ensemble, batch: Any) -> None:
        """Predict one batch, (inputs, target) or a dict with `labels`, and take note of it.

        Raises:
            ValueError: if it has no target.
        """
        dictionary = isinstance(batch, Mapping)
        if (LABELS not in batch) if dictionary else not (isinstance(batch, tuple | list) and len(batch) == 2):
            what = f"a dict of {sorted(map(str, batch))}" if dictionary else f"a {type(batch).__name__}"
            what += f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
            raise ValueError(f"a batch must be (inputs, target), or a dict with {LABELS!r}, got {what}")
        target = batch[LABELS] if dictionary else batch[1]
        task = ensemble.likelihood
        self.add(ensemble.predict([batch]), task.row_targets(target) if isinstance(task, Tokens) else target)

    def add(self, prediction: Any, target: Any) -> None:
        """Take note of one batch; labels below 0 do not count."""
        if isinstance(prediction, GaussianMixture):
            values = _of_numbers(prediction, target)
        else:
            values = _of_labels(prediction, target)
        self._values.append({name: value.detach().flatten().cpu() for name, value in values.items()})

    def result(self) -> dict[str, float]:
        """`nll`; for labels `accuracy`, `ece`, `entropy`, `mutual_information`; for numbers `rmse`, `coverage_90`."""
        if not self._values:
            return {}
        whole = {name: torch.cat([one[name] for one in self._values]) for name in self._values[0]}
        found = {name: value.double().mean().item() for name, value in whole.items() if name != "confidence"}
        if "square" in found:
            found["rmse"] = found.pop("square") ** 0.5
        if "confidence" in whole:
            found["ece"] = ece(whole["confidence"], whole["accuracy"].bool())
        return found


def measured(ensemble: Ensemble, loader: Iterable[Any]) -> dict[str, float]:
    """Metrics of a whole loader, as in `Measures.result`."""
    measures = Measures()
    for batch in loader:
        measures.run(ensemble, batch)
    return measures.result()


def _of_numbers(prediction: GaussianMixture, target: Any) -> dict[str, Tensor]:
    y = torch.as_tensor(target).to(prediction.mean).reshape(prediction.mean.shape)
    within = (prediction.cdf(y) - 0.5).abs() <= LEVEL / 2
    square = (y - prediction.mean).square()
    return {"nll": -prediction.log_prob(y), "square": square, "coverage_90": within}


def _of_labels(prediction: Any, target: Any) -> dict[str, Tensor]:
    labels = torch.as_tensor(target).to(prediction.confidence.device)
    if isinstance(prediction, BernoulliPrediction):
        labels = labels.reshape(prediction.labels.shape)
    known = labels >= 0
    log_prob = prediction.log_prob(labels.clamp_min(0))
    values = {
        "nll": -log_prob,
        "accuracy": prediction.labels == labels,
        "confidence": prediction.confidence,
        "entropy": prediction.entropy,
        "mutual_information": prediction.mutual_information,
    }
    return {name: value[known] for name, value in values.items()}


def has_weights_of(posterior: Posterior, model: nn.Module) -> bool:
    """Whether a posterior that was kept is that of the weights that the model has now."""
    own = dict(model.named_parameters())
    return all(torch.equal(p, own[name].to(p)) for name, p in posterior.model.named_parameters() if name in own)
