"""TRADI inside Lightning's Trainer: `Trainer(callbacks=[TRADICallback()])`, and nothing else changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD

from tradi.ensemble.ensemble import Ensemble
from tradi.extras import require
from tradi.integrations.measuring import Mapped, Measures, has_weights_of
from tradi.methods.tradi import TRADI
from tradi.posterior.posterior import Posterior
from tradi.prediction.likelihoods import Likelihood, check_likelihood
from tradi.tracking.tracker import Tracker

require("lightning.pytorch", "lightning")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402 (after the error that names the extra)


class TRADICallback(Callback):
    """Tracks the weights of a LightningModule through `trainer.fit`, and measures the posterior in `trainer.test`.

    What was tracked goes into every checkpoint: `trainer.fit(ckpt_path=...)` resumes bit for bit, and after
    `trainer.test(ckpt_path="best")` (or `validate`) the posterior is that of the best weights.

    Args:
        fit: condition the posterior on the trainer's training data and choose its scale on the first of its
            validation loaders, when it is first asked for.
        members: of the ensemble that `trainer.test` measures.
        likelihood: what outputs of the module's `forward` mean, where that cannot be inferred.
        tracker: makes a tracker from the module and its optimizers, such as `TRADI.paper`.
        name: tells several of these callbacks apart, in checkpoints and in the names of logged metrics.
        as_pair: makes (inputs, target) of a batch, where the loaders give something else, such as
            `lambda batch: (batch["image"], batch["class"])`.

    Raises:
        ValueError: if `members` is below 1.
        TypeError: if the likelihood is not one.
    """

    def __init__(
        self,
        *,
        fit: bool = False,
        members: int = 20,
        likelihood: Likelihood | None = None,
        tracker: Callable[[nn.Module, Any], Tracker] = TRADI,
        name: str = "tradi",
        as_pair: Callable[[Any], Any] | None = None,
    ) -> None:
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        check_likelihood(likelihood)
        self.fit, self.members, self.likelihood, self.name = fit, members, likelihood, name
        self.tracker: Tracker | None = None
        self._make_tracker = tracker
        self._as_pair = as_pair or _unchanged
        self._held: dict[str, Any] | None = None  # of a checkpoint, until the model is where it will be
        self._data: tuple[Any, Any] | None = None
        self._processes = 1
        self._posterior: Posterior | None = None
        self._ensemble: Ensemble | None = None
        self._measures: dict[int, Measures] = {}  # by test loader

    @property
    def state_key(self) -> str:
        return self._generate_state_key(name=self.name)

    @property
    def posterior(self) -> Posterior:
        """The posterior of the weights that the module has now, fitted if that was asked for.

        Raises:
            RuntimeError: if nothing was tracked, or there is no data to fit on.
        """
        if self.tracker is None:
            raise RuntimeError("nothing was tracked: call trainer.fit, or trainer.test with a ckpt_path, first")
        if self._posterior is None or not has_weights_of(self._posterior, self.tracker.model):
            with torch.inference_mode(False), torch.enable_grad():
                self._posterior = self._fitted(self.tracker.posterior())
        return self._posterior

    def _fitted(self, posterior: Posterior) -> Posterior:
        if not self.fit:
            return posterior
        if self._processes > 1:
            raise RuntimeError(
                f"fit=True needs all training data in one process, and {self._processes} trained: take "
                "TRADICallback(fit=False).posterior and call its fit(train, validation) in one of them"
            )
        if self._data is None:
            raise RuntimeError(
                "fit=True needs the data of trainer.fit, which did not run in this process: take "
                "TRADICallback(fit=False).posterior and call its fit(train, validation)"
            )
        return posterior.fit(*self._data, likelihood=self.likelihood)

    def state_dict(self) -> dict[str, Any]:
        if self.tracker is not None and self._held is None:
            return self.tracker.state_dict()
        return self._held or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._held = state_dict or None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._detach()
        self._processes = trainer.world_size
        self.tracker = self._make_tracker(pl_module, trainer.optimizers)
        self._take_over_state()

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self._posterior = self._ensemble = None  # of weights that are no more

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if trainer.state.fn == "fit":  # interrupted: what was tracked until then is a posterior too
            self._end(trainer)

    def _end(self, trainer: Trainer) -> None:
        """Keep the data to fit on."""
        precision = trainer.precision_plugin

        def convert(batch: Any) -> Any:
            return precision.convert_input(self._as_pair(batch))

        validation = trainer.val_dataloaders
        validation = validation[0] if isinstance(validation, list | tuple) and validation else validation
        train = trainer.train_dataloader
        if train is not None:
            self._data = Mapped(train, convert), Mapped(validation, convert) if validation else None
        self._detach()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._restore(pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore(pl_module)
        with torch.inference_mode(False), torch.enable_grad():
            self._ensemble = self.posterior.sample(self.members, likelihood=self.likelihood)
        self._measures = {}

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert self._ensemble is not None
        measures = self._measures.setdefault(dataloader_idx, Measures())
        try:
            measures.run(self._ensemble, self._as_pair(batch))
        except (ValueError, TypeError, NotImplementedError) as problem:  # the module's own test goes on
            warnings.warn(
                f"no {self.name}/ metrics of test data: {problem}. If batches are of another form, pass "
                "TRADICallback(as_pair=function from a batch to (inputs, target))",
                stacklevel=2,
            )

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for place, measures in self._measures.items():
            which = f"/dataloader_idx_{place}" if len(self._measures) > 1 else ""  # as Lightning names its own
            found = {f"{self.name}/{name}{which}": value for name, value in measures.result().items()}
            pl_module.log_dict(found, sync_dist=True, add_dataloader_idx=False)

    def _restore(self, pl_module: LightningModule) -> None:
        """Take over what a checkpoint held, which `ckpt_path=` has read after the module's weights."""
        if self._held is None:
            return
        if self.tracker is None:  # another process trained
            stand_ins = [SGD(pl_module.parameters(), 0.0) for _ in self._held["taken"]]
            self.tracker = self._make_tracker(pl_module, stand_ins)
        self._take_over_state()
        self._detach()

    def _take_over_state(self) -> None:
        self._posterior = self._ensemble = None
        if self.tracker is not None and self._held is not None:
            self.tracker.load_state_dict(self._held)
            self._held = None

    def _detach(self) -> None:
        if self.tracker is not None and self.tracker.steps:
            self.tracker.detach()


def _unchanged(batch: Any) -> Any:
    return batch
