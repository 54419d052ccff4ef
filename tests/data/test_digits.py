from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from tradi.data import digits


def test_held_out_classes_are_nowhere_but_in_ood() -> None:
    data = digits(held_out=(3, 7), seed=1)
    source = load_digits()
    inside = len(data.train[0]) + len(data.validation[0]) + len(data.test[0])
    assert len(data.ood["unknown digits"]) == int(((source.target == 3) | (source.target == 7)).sum())
    assert inside + len(data.ood["unknown digits"]) == len(source.target)
    assert data.classes == 8
    for _, labels in (data.train, data.validation, data.test):
        assert labels.unique().tolist() == list(range(8))


def test_inputs_are_standardised_with_training_statistics() -> None:
    data = digits()
    assert abs(data.train[0].mean().item()) < 1e-5
    assert abs(data.train[0].std().item() - 1) < 1e-5
    assert data.test[0].mean().item() != 0


def test_splits_share_no_image() -> None:
    data = digits()
    parts = [data.train[0], data.validation[0], data.test[0]]
    together = torch.cat(parts)
    assert len(torch.unique(together, dim=0)) == len(together)
