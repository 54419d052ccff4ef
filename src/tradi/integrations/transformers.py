"""TRADI inside Hugging Face's Trainer: `Trainer(..., callbacks=[TRADICallback()])`, and nothing else changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tradi.ensemble.batches import LABELS
from tradi.extras import require
from tradi.integrations.measuring import Mapped, has_weights_of, measured
from tradi.methods.tradi import TRADI
from tradi.posterior.posterior import Posterior
from tradi.prediction.likelihoods import (
    Bernoulli,
    Classification,
    Likelihood,
    SquaredError,
    Tokens,
    check_likelihood,
)
from tradi.storage.states import read_state, write_state
from tradi.storage.tensors import digest
from tradi.tracking.tracker import Tracker

require("transformers", "transformers")
require("accelerate", "transformers")

from transformers import TrainerCallback  # noqa: E402 (after the error that names the extra)

FILE = "tradi.safetensors"  # beside the weights in every checkpoint

# What the names of transformers' own classes say of their outputs. Of the others inference finds out.
BY_NAME: dict[str, Likelihood] = {
    "ForCausalLM": Tokens(),
    "LMHeadModel": Tokens(),
    "ForMaskedLM": Classification(class_axis=-1),
    "ForTokenClassification": Classification(class_axis=-1),
}
BY_PROBLEM: dict[str, Likelihood] = {"regression": SquaredError(), "multi_label_classification": Bernoulli()}


class TRADICallback(TrainerCallback):
    """Tracks the weights that a Trainer trains; of a model with adapters (PEFT) these are the adapters and saved heads.

    What was tracked goes into every checkpoint, as `tradi.safetensors`: `trainer.train(resume_from_checkpoint=...)`
    resumes bit for bit, and with `load_best_model_at_end` the posterior is that of the best weights.

    Args:
        fit: condition the posterior on the trainer's training data and choose its scale on the data that it evaluated
            on, when it is first asked for.
        members: of the ensemble that `evaluate` measures.
        likelihood: what outputs of the model mean, where neither its class nor outputs and labels say so.
        tracker: makes a tracker from the model and its optimizer, such as `TRADI.paper`.
        checkpoint: the folder that training resumes from, where it is not in the trainer's `output_dir`.

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
        checkpoint: str | PathLike[str] | None = None,
    ) -> None:
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        check_likelihood(likelihood)
        self.fit, self.members, self.likelihood, self.checkpoint = fit, members, likelihood, checkpoint
        self.tracker: Tracker | None = None
        self._make_tracker = tracker
        self._train: Iterable[Any] | None = None
        self._validation: Iterable[Any] | None = None
        self._labels = LABELS
        self._training = False
        self._processes = 1
        self._posterior: Posterior | None = None

    @property
    def posterior(self) -> Posterior:
        """The posterior of the weights that the model has now, fitted if that was asked for.

        Raises:
            RuntimeError: if nothing was tracked, or `fit` was asked for and several processes trained.
        """
        if self.tracker is None:
            raise RuntimeError("nothing was tracked: call trainer.train() first")
        if self._posterior is None or not has_weights_of(self._posterior, self.tracker.model):
            posterior = self.tracker.posterior()
            task = self.likelihood or likelihood_of(posterior.model)
            posterior = posterior if task is None else posterior.with_likelihood(task)
            self._posterior = self._fitted(posterior) if self.fit else posterior
        return self._posterior

    def _fitted(self, posterior: Posterior) -> Posterior:
        if self._processes > 1:
            raise RuntimeError(
                f"fit=True needs all training data in one process, and {self._processes} trained: take "
                "TRADICallback(fit=False).posterior and call its fit(train, validation) in one of them"
            )
        assert self._train is not None  # as there is a tracker
        validation = None if self._validation is None else self._with_labels(self._validation)
        return posterior.fit(self._with_labels(self._train), validation)

    def _with_labels(self, loader: Iterable[Any]) -> Iterable[Any]:
        """The loader, its target called `labels` where the trainer's `label_names` calls it something else."""
        if self._labels == LABELS:
            return loader

        def named(batch: Any) -> Any:
            if not isinstance(batch, Mapping):
                return batch
            return {LABELS if key == self._labels else key: value for key, value in batch.items()}

        return Mapped(loader, named)

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Metrics of an ensemble on batches with labels, such as `trainer.get_eval_dataloader()`.

        Returns:
            `tradi_nll`; for labels `tradi_accuracy`, `tradi_ece`, `tradi_entropy` and `tradi_mutual_information`; for
            numbers `tradi_rmse` and `tradi_coverage_90`. `trainer.log` takes them.

        Raises:
            RuntimeError: as `posterior` does.
            ValueError: if a batch has no labels.
        """
        ensemble = self.posterior.sample(self.members)
        return {f"tradi_{name}": value for name, value in measured(ensemble, self._with_labels(loader)).items()}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._detach()
        self._posterior = self._validation = None
        self._training, self._processes = True, args.world_size
        self._train = kwargs["train_dataloader"]
        self._labels = args.label_names[0] if len(args.label_names or ()) == 1 else LABELS
        self.tracker = self._make_tracker(kwargs["model"], kwargs["optimizer"])
        if state.global_step:
            own = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self._resume(own if self.checkpoint is None else Path(self.checkpoint))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._posterior = None  # of weights that are no more

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._training and self._validation is None:  # what is evaluated on afterwards may be test data
            self._validation = kwargs["eval_dataloader"]

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.tracker is not None
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if args.should_save and folder.is_dir():  # a search for hyperparameters saves elsewhere
            write_state(folder / FILE, {"weights": _digests(self.tracker), "state": self.tracker.state_dict()})
        if args.world_size > 1:
            torch.distributed.barrier()  # whoever reads it next waits until it is written

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training = False
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._posterior = None
            self._take_best(Path(state.best_model_checkpoint))
        self._detach()

    def _resume(self, folder: Path) -> None:
        assert self.tracker is not None
        problem = self._read(folder, self.tracker)
        if problem:
            warnings.warn(
                f"training resumes, and {problem}: tracking begins here. If the checkpoint is elsewhere, pass "
                "TRADICallback(checkpoint=folder)",
                stacklevel=4,
            )

    def _take_best(self, folder: Path) -> None:
        assert self.tracker is not None
        problem = self._read(folder, self.tracker)
        if problem:
            self._detach()
            self.tracker = None
            warnings.warn(f"the best weights were loaded, and {problem}: they have no posterior", stacklevel=4)

    def _read(self, folder: Path, tracker: Tracker) -> str | None:
        """Resume from what is in a checkpoint, if it belongs to the weights that the model has; else say why not."""
        if not (folder / FILE).is_file():
            return f"there is no {FILE} in {folder}"
        saved = read_state(folder / FILE)
        if not _belongs(saved["weights"], tracker.model):
            return f"{folder / FILE} belongs to other weights than the model has"
        tracker.load_state_dict(saved["state"])
        return None

    def _detach(self) -> None:
        if self.tracker is not None and self.tracker.steps:
            self.tracker.detach()


def likelihood_of(model: nn.Module) -> Likelihood | None:
    """What the outputs of one of transformers' models mean, by the name of its class or its `problem_type`."""
    base: Callable[[], nn.Module] | None = getattr(model, "get_base_model", None)  # of PEFT
    model = model if base is None else base()
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    for ending, likelihood in BY_NAME.items():
        if type(model).__name__.endswith(ending):
            return likelihood
    return BY_PROBLEM.get(problem or "")


def _digests(tracker: Tracker) -> dict[str, str]:
    """What the tracked weights are, to tell whether a state belongs to them."""
    return {weight.name: digest({"": weight.parameter}, {}) for weight in tracker.tracked}


def _belongs(digests: dict[str, str], model: nn.Module) -> bool:
    own = dict(model.named_parameters())
    return all(name in own and digest({"": own[name]}, {}) == expected for name, expected in digests.items())
