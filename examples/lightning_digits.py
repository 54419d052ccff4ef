"""TRADI inside Lightning: one callback, and nothing else changes.

    pip install 'tradi[lightning]'
    python examples/lightning_digits.py

Trains on the eight digits other than 3 and 9, and tests with uncertainty metrics. Ends in a table: how sure the
ensemble is of the digits that it has learnt, and of the two that it has never seen.
"""

from __future__ import annotations

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tradi.integrations.lightning import TRADICallback


class Digits(L.LightningModule):
    """An ordinary LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self(x), y))

    def test_step(self, batch: list[Tensor], index: int) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-3)


def main(epochs: int = 20) -> None:
    """Train, test, and look at digits that were never seen."""
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    images, digits = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)
    known = ~torch.isin(digits, torch.tensor([3, 9]))
    classes = torch.unique(digits[known])
    x, y = images[known], torch.searchsorted(classes, digits[known])
    order = torch.randperm(len(x))
    train, validation, test = (TensorDataset(x[part], y[part]) for part in order.split([900, 250, len(x) - 1150]))

    callback = TRADICallback(fit=True, members=20)
    trainer = L.Trainer(max_epochs=epochs, callbacks=[callback], logger=False, enable_progress_bar=False)
    model = Digits()
    trainer.fit(model, DataLoader(train, 32, shuffle=True), DataLoader(validation, 250))
    trainer.test(model, DataLoader(test, 250), ckpt_path="best")

    ensemble = callback.posterior.sample(20, seed=0)
    print(f"{'':22}{'images':>8}{'mean confidence':>17}{'mean mutual information, nats':>31}")
    for name, shown in (("digits it has learnt", x), ("digits it never saw", images[~known])):
        found = ensemble.predict(shown)
        print(f"{name:22}{len(shown):>8}{found.confidence.mean():>17.3f}{found.mutual_information.mean():>31.4f}")


if __name__ == "__main__":
    main()
