"""TRADI inside skorch: `NeuralNetClassifier(..., callbacks=[TRADICallback()])`, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from tradi.ensemble.copying import unwrap
from tradi.extras import require
from tradi.integrations.measuring import has_weights_of, measured
from tradi.methods.tradi import TRADI
from tradi.posterior.posterior import Posterior
from tradi.prediction.likelihoods import Bernoulli, Likelihood, check_likelihood
from tradi.tracking.tracker import Tracker

require("skorch", "skorch")

from skorch import NeuralNetBinaryClassifier  # noqa: E402 (after the error that names the extra)
from skorch.callbacks import Callback, Checkpoint, EarlyStopping  # noqa: E402


class TRADICallback(Callback):  # type: ignore[misc] # skorch has no types
    """Tracks the weights of `net.module_` through `fit` and `partial_fit`.

    `fit` begins again, `partial_fit` goes on, and a pickled net takes what was tracked with it. Where `Checkpoint` or
    `EarlyStopping` puts the best weights back, the posterior is that of the best weights.

    Args:
        fit: condition the posterior on the net's training data and choose its scale on the data that it holds back for
            validation, when it is first asked for.
        members: of the ensemble that `evaluate` measures.
        likelihood: what outputs of the module mean, where the net's class, outputs and targets do not say.
        tracker: makes a tracker from the module and its optimizers, such as `TRADI.paper`.
    """

    # skorch and scikit-learn take attributes that do not end in "_" for options, which clones are made from.
    def __init__(
        self,
        fit: bool = False,
        members: int = 20,
        likelihood: Likelihood | None = None,
        tracker: Callable[[nn.Module, Any], Tracker] = TRADI,
    ) -> None:
        self.fit, self.members, self.likelihood, self.tracker = fit, members, likelihood, tracker
        self.tracker_: Tracker | None = None
        self.net_: Any = None
        self.optimizers_: list[Optimizer] = []
        self.held_: dict[str, Any] | None = None  # of a pickle, until the net around it is whole
        self.data_: tuple[Any, Any] | None = None
        self.trained_ = False  # since it was last asked which weights are the best
        self.posterior_: Posterior | None = None

    def initialize(self) -> TRADICallback:
        """Check the options, which `set_params` may have changed.

        Raises:
            ValueError: if `members` is below 1.
            TypeError: if the likelihood is not one.
        """
        if self.members < 1:
            raise ValueError(f"members must be at least 1, got {self.members}")
        check_likelihood(self.likelihood)
        return self

    @property
    def posterior(self) -> Posterior:
        """The posterior of the weights that the net has now, fitted if that was asked for.

        Raises:
            RuntimeError: if nothing was tracked, or there is no data to fit on.
        """
        self._take_over_held()
        if self.tracker_ is None:
            raise RuntimeError("nothing was tracked: call net.fit(X, y) first")
        if self.posterior_ is None or not has_weights_of(self.posterior_, self.tracker_.model):
            posterior = self.tracker_.posterior()
            task = self.likelihood or (Bernoulli() if isinstance(self.net_, NeuralNetBinaryClassifier) else None)
            posterior = posterior if task is None else posterior.with_likelihood(task)
            self.posterior_ = self._fitted(posterior) if self.fit else posterior
        return self.posterior_

    def _fitted(self, posterior: Posterior) -> Posterior:
        if self.data_ is None:
            raise RuntimeError(
                "fit=True needs the data of net.fit, which is in no pickle: take "
                "TRADICallback(fit=False).posterior and call its fit(train, validation)"
            )
        train, validation = self.data_
        held_back = None if validation is None else self.net_.get_iterator(validation)
        return posterior.fit(self.net_.get_iterator(train), held_back)

    def evaluate(self, X: Any, y: Any = None) -> dict[str, float]:
        """Metrics of an ensemble on labelled data.

        Args:
            X: as `net.fit` takes it.
            y: likewise.

        Returns:
            `nll`; for labels `accuracy`, `ece`, `entropy` and `mutual_information`; for numbers `rmse` and
            `coverage_90`.

        Raises:
            RuntimeError: as `posterior` does.
        """
        ensemble = self.posterior.sample(self.members)
        return measured(ensemble, self.net_.get_iterator(self.net_.get_dataset(X, y)))

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        self._take_over_held()
        optimizers = [value for value in vars(net).values() if isinstance(value, Optimizer)]
        before = self.tracker_
        goes_on = before is not None and len(net.history) > 0 and before.model is unwrap(net.module_)
        self.net_ = net
        if before is None or not goes_on or optimizers != self.optimizers_:
            self.tracker_, self.optimizers_ = self.tracker(net.module_, optimizers), optimizers
            if before is not None and before.steps:
                before.detach()
                if goes_on:  # with another optimizer
                    self.tracker_.load_state_dict(before.state_dict())

    def on_epoch_begin(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        self.data_ = (dataset_train, dataset_valid) if self.fit else None
        if len(net.history) > 1:
            self._mark_best(net, net.history[-2])

    def on_batch_end(self, net: Any, batch: Any = None, training: bool | None = None, **kwargs: Any) -> None:
        self.trained_ = self.trained_ or bool(training)

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        if len(net.history):
            self._mark_best(net, net.history[-1])

    def _mark_best(self, net: Any, epoch: Any) -> None:
        """Keep what was tracked beside weights that another callback has kept, whichever of them is called first."""
        assert self.tracker_ is not None
        if self.trained_ and any(_kept(callback, epoch) for _, callback in net.callbacks_):
            self.tracker_.mark_best()
        self.trained_ = False

    def _take_over_held(self) -> None:
        if self.held_ is not None:
            self.optimizers_ = [value for value in vars(self.net_).values() if isinstance(value, Optimizer)]
            self.tracker_ = self.tracker(self.net_.module_, self.optimizers_)
            self.tracker_.load_state_dict(self.held_)
            self.held_ = None

    def __getstate__(self) -> dict[str, Any]:
        """The options, the net, and what was tracked as tensors and numbers; no data."""
        held = self.held_ if self.tracker_ is None or not self.tracker_.steps else self.tracker_.state_dict()
        gone: dict[str, Any] = {"tracker_": None, "optimizers_": [], "data_": None, "posterior_": None}
        return {**self.__dict__, **gone, "held_": held}


def _kept(callback: Any, epoch: Any) -> bool:
    """Whether a callback has kept the weights at the end of this epoch, to put them back later."""
    if isinstance(callback, Checkpoint):
        return bool(epoch.get(callback.event_name))
    return isinstance(callback, EarlyStopping) and callback.load_best and callback.best_epoch_ == epoch["epoch"]
