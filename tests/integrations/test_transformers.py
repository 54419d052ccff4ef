"""TRADICallback in Hugging Face's own Trainer."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from peft import LoraConfig, TaskType, get_peft_model
from safetensors import safe_open
from torch import nn
from torch.multiprocessing.spawn import start_processes
from transformers import Trainer, TrainerCallback, TrainingArguments

import tradi
import tradi.integrations.transformers as room
from tests.integrations.texts import LENGTH, WORDS, batch, model, texts
from tests.training import same
from tradi.integrations.transformers import FILE, TRADICallback
from tradi.likelihoods import Bernoulli, Classification, SquaredError, Tokens
from tradi.storage.states import read_state

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # of peft

X = batch(texts(6, seed=2))["input_ids"]


def trainer(folder: Path, callback: TRADICallback, network: Any = None, labels: str = "texts", **options: Any) -> Any:
    quiet: dict[str, Any] = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    usual: dict[str, Any] = {
        "num_train_epochs": 3,
        "save_strategy": "no",
        "eval_strategy": "epoch",
        "learning_rate": 1e-2,
    }
    arguments = TrainingArguments(str(folder), per_device_train_batch_size=16, **quiet | usual | options)
    network = model("texts") if network is None else network
    data, other = texts(48, labels), texts(32, labels, seed=1)
    return Trainer(network, arguments, train_dataset=data, eval_dataset=other, callbacks=[callback])


def fitted(folder: Path, callback: TRADICallback, network: Any = None, labels: str = "texts", **options: Any) -> Any:
    run = trainer(folder, callback, network, labels, **options)
    run.train()
    return run


def lora(kind: str, task: TaskType, targets: list[str]) -> Any:
    return get_peft_model(model(kind), LoraConfig(task_type=task, r=2, target_modules=targets, lora_dropout=0.0))


def test_weights_are_tracked_under_the_names_of_the_model(tmp_path: Path) -> None:
    callback = TRADICallback()
    run = fitted(tmp_path, callback)
    assert callback.tracker is not None
    assert callback.tracker.steps == 9
    expected = [name for name, _ in run.model.named_parameters() if "LayerNorm" not in name]
    assert list(callback.posterior.mean) == expected


def test_a_run_with_the_callback_is_the_run_without_it(tmp_path: Path) -> None:
    with_it = fitted(tmp_path, TRADICallback())
    without = trainer(tmp_path, TRADICallback())
    without.pop_callback(TRADICallback)
    without.train()
    assert same(with_it.model.state_dict(), without.model.state_dict())


def test_accumulation_counts_steps(tmp_path: Path) -> None:
    callback = TRADICallback()
    fitted(tmp_path, callback, gradient_accumulation_steps=3)
    assert callback.tracker is not None
    assert callback.tracker.steps == 3


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    whole, resumed, elsewhere = TRADICallback(), TRADICallback(), TRADICallback(checkpoint=tmp_path / "checkpoint-6")
    fitted(tmp_path, whole, save_strategy="epoch")
    for callback, folder in ((resumed, tmp_path), (elsewhere, tmp_path / "elsewhere")):
        run = trainer(folder, callback, model("texts", seed=1))
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
        assert callback.tracker is not None
        assert callback.tracker.steps == 9
        assert same(callback.posterior.mean, whole.posterior.mean)
        assert same(callback.posterior.variance, whole.posterior.variance)


def test_a_resumed_run_whose_state_is_missing_or_of_other_weights_begins_to_track(tmp_path: Path) -> None:
    fitted(tmp_path / "other", TRADICallback(), learning_rate=1e-3, save_strategy="epoch")
    fitted(tmp_path, TRADICallback(), save_strategy="epoch")
    state = tmp_path / "checkpoint-6" / FILE
    state.write_bytes((tmp_path / "other" / "checkpoint-6" / FILE).read_bytes())
    for problem in ("belongs to other weights than the model has", f"there is no {FILE} in"):
        callback = TRADICallback()
        with pytest.warns(UserWarning, match=rf"{problem}.*tracking begins here.*TRADICallback\(checkpoint=folder\)"):
            trainer(tmp_path, callback).train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
        assert callback.tracker is not None
        assert callback.tracker.steps == 3
        state.unlink(missing_ok=True)


class Impatient(TrainerCallback):
    """Presses Ctrl-C."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 5:
            raise KeyboardInterrupt


def test_an_interrupted_training_is_fitted_too(tmp_path: Path) -> None:
    callback = TRADICallback(fit=True)
    run = trainer(tmp_path, callback)
    run.add_callback(Impatient())
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert callback.tracker is not None
    assert callback.tracker.steps == 5
    assert "last layer conditioned" in repr(callback.posterior)
    assert "chosen on 32 validation samples" in repr(callback.posterior)


def best(**options: Any) -> dict[str, Any]:
    """The first epoch is the best, on purpose, and later checkpoints but the last are removed."""
    kept = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    return {"save_strategy": "epoch", "save_total_limit": 1} | kept | options


@pytest.mark.parametrize("adapters", [False, True])
def test_the_best_weights_have_their_own_posterior(tmp_path: Path, adapters: bool) -> None:
    def network() -> Any:
        return lora("texts", TaskType.SEQ_CLS, ["query", "value"]) if adapters else model("texts")

    short, last, callback = TRADICallback(), TRADICallback(), TRADICallback()
    fitted(tmp_path / "short", short, network(), max_steps=3, lr_scheduler_type="constant")
    fitted(tmp_path / "last", last, network(), lr_scheduler_type="constant")
    run = fitted(tmp_path, callback, network(), lr_scheduler_type="constant", **best())
    assert run.state.best_model_checkpoint.endswith("checkpoint-3")
    assert same(callback.posterior.mean, short.posterior.mean)
    assert not same(callback.posterior.mean, last.posterior.mean)
    weights = dict(run.model.named_parameters())
    assert all(torch.equal(weights[name], p) for name, p in short.posterior.model.named_parameters())


def test_best_weights_without_a_state_have_no_posterior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callback = TRADICallback()
    monkeypatch.setattr(callback, "on_save", lambda *args, **kwargs: None)
    with pytest.warns(UserWarning, match=f"best weights were loaded, and there is no {FILE}"):
        fitted(tmp_path, callback, **best())
    with pytest.raises(RuntimeError, match="nothing was tracked"):
        _ = callback.posterior


@pytest.mark.filterwarnings("ignore:scale 0")
@pytest.mark.parametrize(
    ("kind", "labels", "likelihood", "head"),
    [
        ("texts", "texts", Classification(), "classifier"),
        ("tokens", "tokens", Classification(class_axis=-1), "classifier"),
        ("gpt2 texts", "texts", Classification(), "score"),
        ("llama", "words", Tokens(), "lm_head"),
        ("gpt2", "words", Tokens(), "lm_head"),
    ],
)
def test_a_posterior_is_fitted_on_the_data_of_the_trainer(
    tmp_path: Path, kind: str, labels: str, likelihood: Any, head: str
) -> None:
    callback = TRADICallback(fit=True, members=3)
    options = {"tie_word_embeddings": False} if kind == "gpt2" else {}
    run = fitted(tmp_path, callback, model(kind, **options), labels)
    posterior: Any = callback.posterior
    assert posterior.likelihood == likelihood
    assert posterior.conditioning.head.name == head
    assert posterior.scale_search.samples == 32
    loader = run.get_eval_dataloader()
    measured, prediction = callback.evaluate(loader), posterior.sample(3).predict(loader)
    targets = batch(texts(32, labels, seed=1))["labels"]
    if labels == "words":
        targets, prediction = targets[:, 1:], tradi.ClassPrediction(prediction.logits[..., :-1])
    assert measured["tradi_nll"] == pytest.approx(-prediction.log_prob(targets).mean().item(), rel=1e-4)
    assert measured["tradi_accuracy"] == pytest.approx((prediction.labels == targets).float().mean().item())
    run.log(measured)
    assert run.state.log_history[-1]["tradi_mutual_information"] == measured["tradi_mutual_information"]


@pytest.mark.parametrize(
    ("labels", "problem", "likelihood", "metric"),
    [
        ("numbers", "regression", SquaredError, "tradi_rmse"),
        ("several", "multi_label_classification", Bernoulli, "tradi_ece"),
    ],
)
@pytest.mark.filterwarnings("ignore:scale 0")
def test_the_problem_type_says_what_outputs_mean(
    tmp_path: Path, labels: str, problem: str, likelihood: type, metric: str
) -> None:
    callback = TRADICallback(fit=True, members=3)
    network = model("texts", problem_type=problem, num_labels=1 if labels == "numbers" else 2)
    run = fitted(tmp_path, callback, network, labels)
    assert isinstance(callback.posterior.likelihood, likelihood)
    assert metric in callback.evaluate(run.get_eval_dataloader())


class Own(nn.Module):
    """A model of the user's, whose target has another name."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, target: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.words(input_ids).mean(1))
        loss = {} if target is None else {"loss": nn.functional.cross_entropy(logits, target)}
        return {**loss, "logits": logits}


@pytest.mark.filterwarnings("ignore:scale 0")
def test_labels_may_have_another_name(tmp_path: Path) -> None:
    callback = TRADICallback(fit=True, members=3)
    run = trainer(tmp_path, callback, Own(), label_names=["target"])
    for data in (run.train_dataset, run.eval_dataset):
        for sample in data:
            sample["target"] = sample.pop("labels")
    run.train()
    assert callback.posterior.likelihood == Classification()
    assert "tradi_accuracy" in callback.evaluate(run.get_eval_dataloader())


def test_a_tied_head_leaves_the_scale(tmp_path: Path) -> None:
    callback = TRADICallback(fit=True)
    run = fitted(tmp_path, callback, model("gpt2"), "words")
    with pytest.raises(ValueError, match=r"'lm_head' is shared with another layer.*choose_scale\(validation\)"):
        _ = callback.posterior
    callback.fit = False
    posterior = callback.posterior.choose_scale(run.get_eval_dataloader())
    assert posterior.scale_search is not None
    assert posterior.sample(2).predict({"input_ids": X}).probs.shape == (6, WORDS, LENGTH)


@pytest.mark.parametrize("kind", ["texts", "llama"])
def test_of_a_model_with_adapters_the_adapters_are_tracked(tmp_path: Path, kind: str) -> None:
    texts_too = kind == "texts"
    task, targets = (TaskType.SEQ_CLS, ["query", "value"]) if texts_too else (TaskType.CAUSAL_LM, ["q_proj", "v_proj"])
    network, callback = lora(kind, task, targets), TRADICallback(fit=texts_too)
    fitted(tmp_path, callback, network, "texts" if texts_too else "words", save_strategy="epoch")
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert callback.posterior.mean.keys() == trained
    assert len(trained) == (10 if texts_too else 8)
    assert all("lora_" in name or "classifier.modules_to_save" in name for name in trained)
    ensemble = callback.posterior.rescaled(100).sample(2)
    found = ensemble.predict({"input_ids": X}).logits
    assert not torch.equal(found[0], found[1])
    assert read_state(tmp_path / "checkpoint-9" / FILE)["state"]["weights"].keys() == trained
    callback.posterior.rescaled(100).save(tmp_path / "posterior")
    with safe_open(tmp_path / "posterior", "pt") as file:
        assert {key.removeprefix("0/model/") for key in file.keys() if key.startswith("0/model/")} == trained  # noqa: SIM118
    loaded = tradi.load_posterior(tmp_path / "posterior", lora(kind, task, targets)).sample(2)
    assert torch.equal(loaded.predict({"input_ids": X}, likelihood=ensemble.likelihood).logits, found)


def test_bf16(tmp_path: Path) -> None:
    callback = TRADICallback(fit=True)
    fitted(tmp_path, callback, bf16=True)
    member = callback.posterior.rescaled(100).sample(2)(input_ids=X).logits
    assert member.dtype == callback.posterior.mean["classifier.weight"].dtype == torch.float32
    assert not torch.equal(member[0], member[1]), "members run with their own weights, not in the live model"


def process(rank: int, folder: Path, port: int) -> None:
    """One of two data-parallel processes: trains, resumes the best weights, and writes its posterior."""
    AcceleratorState._reset_state(reset_partial_state=True)  # of the process that this one was forked from
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    if rank == 1:
        vars(room)["write_state"] = None  # the other process writes
    callback = TRADICallback(fit=rank == 1)
    fitted(folder, callback, **best(ddp_backend="gloo"))
    if rank == 1:
        with pytest.raises(RuntimeError, match="all training data in one process, and 2 trained"):
            _ = callback.posterior
        callback.fit = False
    callback.posterior.save(folder / f"{rank}.safetensors")
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_data_parallel_processes_track_the_same_posterior(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start_processes(process, (tmp_path, port), nprocs=2, start_method="fork")
    first, second = (tradi.load_posterior(tmp_path / f"{rank}.safetensors", model("texts")) for rank in (0, 1))
    assert "classifier.weight" in first.mean
    assert same(first.mean, second.mean)
    assert same(first.variance, second.variance)


def test_asking_before_training_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"call trainer.train\(\)"):
        _ = TRADICallback().posterior


def test_data_without_labels_cannot_be_evaluated(tmp_path: Path) -> None:
    callback = TRADICallback()
    fitted(tmp_path, callback)
    for data, found in (({"input_ids": X}, r"a dict of \['input_ids'\]"), (X, "a Tensor")):
        with pytest.raises(ValueError, match=rf"\(inputs, target\), or a dict with 'labels', got {found}"):
            callback.evaluate([data])


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="members must be at least 1, got 0"):
        TRADICallback(members=0)
    with pytest.raises(TypeError, match="likelihood must be one of"):
        TRADICallback(likelihood="labels")  # type: ignore[arg-type]
