"""TRADICallback in Lightning's own Trainer."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import tradi
from tests.training import same
from tradi.integrations.lightning import TRADICallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*`isinstance.treespec, LeafSpec.`"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(LightningModule):
    """As users write them; nothing in it knows of tradi."""

    def __init__(self, numbers: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1 if numbers else 3))
        self.numbers = numbers

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out

    def loss(self, batch: Any) -> Tensor:
        x, y = batch
        out = self(x)
        return F.mse_loss(out, y.to(out.dtype)) if self.numbers else F.cross_entropy(out, y)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-2)

    @classmethod
    def seeded(cls) -> dict[str, Tensor]:
        torch.manual_seed(0)
        return cls().state_dict()


class Manual(Classifier):
    """Two optimizers, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:  # type: ignore[override]
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.zero_grad()
            self.manual_backward(self.loss(batch))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[i].parameters(), 0.1) for i in (0, 2)]


class Impatient(Callback):
    """Presses Ctrl-C."""

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == 6:
            raise KeyboardInterrupt


def loader(seed: int = 0, numbers: bool = False) -> DataLoader[Any]:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))
    y = x.sum(1, keepdim=True).sin() if numbers else x[:, :3].argmax(1)
    return DataLoader(TensorDataset(x, y), batch_size=16)


def trainer(folder: Path, callback: TRADICallback, *others: Any, epochs: int = 3, **options: Any) -> Trainer:
    options = {"enable_checkpointing": bool(others), "devices": 1} | options
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    return Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=[callback, *others],
        **quiet,  # type: ignore[arg-type]
        **options,
    )


def fitted(folder: Path, callback: TRADICallback, module: LightningModule | None = None, **options: Any) -> Trainer:
    seed_everything(0)
    run = trainer(folder, callback, **options)
    numbers = isinstance(module, Classifier) and module.numbers
    run.fit(module or Classifier(), loader(0, numbers), loader(1, numbers))
    return run


def test_weights_are_tracked_under_the_names_of_the_module(tmp_path: Path) -> None:
    callback = TRADICallback()
    fitted(tmp_path, callback)
    assert callback.tracker is not None
    assert callback.tracker.steps == 12
    assert list(callback.posterior.mean) == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]


def test_accumulation_counts_steps_and_manual_optimizers_are_followed(tmp_path: Path) -> None:
    accumulated, manual = TRADICallback(), TRADICallback()
    fitted(tmp_path, accumulated, accumulate_grad_batches=2)
    fitted(tmp_path, manual, Manual())
    assert accumulated.tracker is not None
    assert manual.tracker is not None
    assert (accumulated.tracker.steps, manual.tracker.steps, manual.tracker.rounds) == (6, 24, 12)
    assert len(manual.posterior.mean) == 4


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_half_precision(tmp_path: Path, precision: Any) -> None:
    callback = TRADICallback(fit=precision == "bf16-mixed")
    fitted(tmp_path, callback, precision=precision)
    dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
    member = callback.posterior.sample(2)(torch.randn(3, 4, dtype=dtype))
    assert member.dtype == dtype
    assert callback.posterior.mean["net.0.weight"].dtype == torch.float32


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    whole, first, second = TRADICallback(), TRADICallback(), TRADICallback()
    fitted(tmp_path, whole, epochs=4)
    fitted(tmp_path, first, epochs=2, enable_checkpointing=True).save_checkpoint(tmp_path / "half.ckpt")
    run = trainer(tmp_path, second, epochs=4)
    run.fit(Classifier(), loader(0), loader(1), ckpt_path=tmp_path / "half.ckpt")
    assert second.tracker is not None
    assert second.tracker.steps == 16
    assert same(second.posterior.mean, whole.posterior.mean)
    assert same(second.posterior.variance, whole.posterior.variance)


@pytest.mark.parametrize("fresh", [False, True])
def test_the_best_checkpoint_gives_the_posterior_of_the_best_weights(tmp_path: Path, fresh: bool) -> None:
    short, callback = TRADICallback(), TRADICallback()
    fitted(tmp_path, short, epochs=1)
    best = ModelCheckpoint(tmp_path, monitor="val_loss", mode="max")  # the first epoch, on purpose
    seed_everything(0)
    run = trainer(tmp_path, callback, best)
    run.fit(Classifier(), loader(0), loader(1))
    last = callback.posterior
    if fresh:
        callback = TRADICallback()
        trainer(tmp_path, callback).test(Classifier(), loader(2), ckpt_path=best.best_model_path, verbose=False)
    else:
        run.test(dataloaders=loader(2), ckpt_path="best", verbose=False)
    assert same(callback.posterior.mean, short.posterior.mean)
    assert not same(callback.posterior.mean, last.mean)
    weights = dict(callback.posterior.model.named_parameters())
    assert all(torch.equal(weights[name], p) for name, p in short.posterior.model.named_parameters())


def test_test_logs_metrics_of_labels_that_are_those_of_the_ensemble(tmp_path: Path) -> None:
    callback = TRADICallback(fit=True, members=5)
    run = fitted(tmp_path, callback)
    (logged,) = run.test(run.lightning_module, loader(2), verbose=False)
    prediction = callback.posterior.sample(5).predict(loader(2))
    labels = torch.cat([y for _, y in loader(2)])
    assert logged["tradi/nll"] == pytest.approx(-prediction.log_prob(labels).mean().item(), rel=1e-4)
    confidence, correct = prediction.confidence, prediction.labels == labels
    assert logged["tradi/ece"] == pytest.approx(tradi.metrics.ece(confidence, correct), rel=1e-4)
    assert {"tradi/accuracy", "tradi/entropy", "tradi/mutual_information", "test_loss"} <= logged.keys()


def test_test_logs_metrics_of_numbers(tmp_path: Path) -> None:
    callback = TRADICallback(fit=True, members=5, name="mine")
    run = fitted(tmp_path, callback, Classifier(numbers=True))
    (logged,) = run.test(run.lightning_module, loader(2, True), verbose=False)
    assert {"mine/nll", "mine/rmse", "mine/coverage_90"} <= logged.keys()
    assert 0 <= logged["mine/coverage_90"] <= 1
    assert callback.state_key != TRADICallback().state_key


class Named(Classifier):
    """Batches are dicts, with parts that no forward takes; several test loaders."""

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self(batch["x"]), batch["y"])

    def test_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        self.log("test_loss", self.loss(batch))


def named(seed: int, shift: float = 0) -> DataLoader[Any]:
    xs, ys = loader(seed).dataset[:]
    rows = [{"x": x + shift, "y": y, "row": i} for i, (x, y) in enumerate(zip(xs, ys, strict=True))]
    return DataLoader(rows, batch_size=16)  # type: ignore[arg-type]


def test_batches_of_any_form_and_metrics_of_every_test_loader(tmp_path: Path) -> None:
    callback = TRADICallback(fit=True, members=3, as_pair=lambda batch: (batch["x"], batch["y"]))
    run = trainer(tmp_path, callback)
    run.fit(Named(), named(0), named(1))
    found = run.test(run.lightning_module, [named(2), named(2, shift=3)], verbose=False)
    for place, shift in enumerate((0, 3)):
        x, y = next(iter(DataLoader(loader(2).dataset, batch_size=64)))
        nll = -callback.posterior.sample(3).predict(x + shift).log_prob(y).mean().item()
        assert found[place][f"tradi/nll/dataloader_idx_{place}"] == pytest.approx(nll, rel=1e-4)


class Silent(Classifier):
    """Has no forward; its steps call the network itself."""

    forward: Any = LightningModule.forward

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("module", "data", "problem"),
    [
        (Named, named(2), r"a dict with 'labels', got a dict of \['row', 'x', 'y'\]"),
        (Silent, loader(2), 'missing the required "forward"'),
    ],
)
def test_a_test_that_cannot_be_measured_goes_on(
    tmp_path: Path, module: type[Classifier], data: Any, problem: str
) -> None:
    run = trainer(tmp_path, TRADICallback(members=2), epochs=1)
    run.fit(module(), data, data)
    with pytest.warns(UserWarning, match=f"no tradi/ metrics of test data: .*{problem}.*as_pair=function"):
        (logged,) = run.test(run.lightning_module, data, verbose=False)
    assert logged.keys() == {"test_loss"}


def test_compiled_modules_have_members_of_their_own(tmp_path: Path) -> None:
    whole, part, plain = TRADICallback(fit=True), TRADICallback(fit=True), TRADICallback(fit=True)
    module = Classifier()
    module.net = torch.compile(module.net, backend="eager")  # type: ignore[assignment]
    for callback, network in ((plain, Classifier()), (whole, Classifier()), (part, module)):
        network.load_state_dict(dict(zip(network.state_dict(), Classifier.seeded().values(), strict=True)))
        compiled: Any = torch.compile(network, backend="eager") if callback is whole else network
        trainer(tmp_path, callback).fit(compiled, loader(0), loader(1))
    assert whole.posterior.mean.keys() == plain.posterior.mean.keys()
    x = loader(2).dataset[:][0]
    expected = plain.posterior.sample(3)(x)
    assert torch.allclose(whole.posterior.sample(3)(x), expected, atol=1e-5)
    for found in (expected, part.posterior.sample(3)(x)):  # names are those of the user's model, and so is the noise
        assert not torch.equal(found[0], found[1])


def test_asking_before_training_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"call trainer.fit"):
        TRADICallback().posterior


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="members must be at least 1, got 0"):
        TRADICallback(members=0)
    with pytest.raises(TypeError, match="likelihood must be one of"):
        TRADICallback(likelihood="labels")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("processes", "message"),
    [(2, "needs all training data in one process, and 2 trained"), (1, "needs the data of trainer.fit, which did not")],
)
def test_a_fit_without_all_of_the_data_names_the_remedy(processes: int, message: str) -> None:
    """As in one of several processes, and where training was interrupted before the end of `trainer.fit`."""
    module, callback = Classifier(), TRADICallback(fit=True)
    optimizer = module.configure_optimizers()
    callback.on_fit_start(SimpleNamespace(world_size=processes, optimizers=[optimizer]), module)  # type: ignore[arg-type]
    for batch in loader():
        module.loss(batch).backward()
        optimizer.step()
    with pytest.raises(RuntimeError, match=rf"{message}.*TRADICallback\(fit=False\)\.posterior and call its fit"):
        callback.posterior


class Saving(TRADICallback):
    """Every process writes its posterior, and what has run in a process is gone with it."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_fit_end(trainer, pl_module)
        if trainer.global_rank == 1:
            self.fit = True
            with pytest.raises(RuntimeError, match="all training data in one process, and 2 trained"):
                self.posterior
            self.fit = False
        self.posterior.save(Path(trainer.default_root_dir) / f"{trainer.global_rank}.safetensors")


@pytest.mark.filterwarnings("ignore:It is recommended to use `self.log")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_data_parallel_processes_track_the_same_posterior(tmp_path: Path) -> None:
    whole = TRADICallback()
    fitted(tmp_path / "whole", whole, epochs=1)
    fitted(tmp_path, Saving(), epochs=1, devices=2, strategy="ddp_fork", enable_checkpointing=True)
    first, second = (tradi.load_posterior(tmp_path / f"{rank}.safetensors", Classifier()) for rank in (0, 1))
    assert list(first.mean) == list(whole.posterior.mean)
    assert same(first.mean, second.mean)
    assert same(first.variance, second.variance)
    assert not same(first.mean, whole.posterior.mean), "half as many steps on batches twice as large"


def test_an_interrupted_training_is_fitted_too(tmp_path: Path) -> None:
    module, callback = Classifier(), TRADICallback(fit=True, members=3)
    run = trainer(tmp_path, callback, Impatient(), enable_checkpointing=False)
    with suppress(SystemExit):  # as newer versions of Lightning end
        run.fit(module, loader(0), loader(1))
    assert callback.tracker is not None
    assert callback.tracker.steps == 6
    assert "last layer conditioned" in repr(callback.posterior)
