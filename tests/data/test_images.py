from __future__ import annotations

import pytest
import torch

from tests.data.samples import random_bytes
from tradi.data.images import Standardise, kept, standardised


def test_every_part_is_standardised_by_training_pixels_over_the_given_dimensions() -> None:
    parts = [(random_bytes(6, 2, 4, 4, high=200, seed=seed), torch.zeros(6)) for seed in range(3)]
    data = standardised(parts, {"others": parts[0][0]}, 1, over=(0, 2, 3))
    torch.testing.assert_close(data.train[0].mean((0, 2, 3)), torch.zeros(2))
    torch.testing.assert_close(data.train[0].std((0, 2, 3)), torch.ones(2))
    assert torch.equal(data.ood["others"], data.train[0])
    for raw, (images, _) in zip(parts, (data.train, data.validation, data.test), strict=True):
        train = parts[0][0].float()
        for channel in range(2):
            expected = (raw[0].float()[:, channel] - train[:, channel].mean()) / train[:, channel].std()
            torch.testing.assert_close(images[:, channel], expected)


def test_what_is_standardised_stays_as_it_is() -> None:
    images = torch.rand(3, 4)
    before = images.clone()
    assert not torch.equal(Standardise(torch.tensor(1.0), torch.tensor(2.0))(images), before)
    assert torch.equal(images, before)


def test_classes_are_held_out_by_their_names_and_a_text_is_no_list_of_them() -> None:
    assert kept(("dog", "cat", "frog"), {"cat"}) == ["dog", "frog"]
    with pytest.raises(ValueError, match="unknown classes in held_out: lorry; choose from dog, cat"):
        kept(("dog", "cat"), ["lorry", "cat"])
    with pytest.raises(TypeError, match=r"such as \('dog',\), got the string 'dog'"):
        kept(("dog", "cat"), "dog")
