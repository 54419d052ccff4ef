"""Posteriors of numbers depend on training rows, and files hold none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tradi
from tests.fitted import TRAIN_NUMBERS, VALIDATION_NUMBERS, X, regressor, small, two_heads, with_batchnorm
from tradi.posterior.loudness import Averaged

NETWORKS = [with_batchnorm, small, two_heads]
ROWS = [*TRAIN_NUMBERS, *VALIDATION_NUMBERS]
Make = Callable[..., nn.Module]
every_network = pytest.mark.parametrize("make", NETWORKS)


def loaded(make: Make, folder: Path) -> tradi.Posterior:
    regressor(make).save(folder / "posterior")
    return tradi.load_posterior(folder / "posterior", make(seed=5))


@every_network
def test_the_same_rows_give_the_same_members(make: Make, tmp_path: Path) -> None:
    before = regressor(make).sample(6, seed=3).predict(X)
    posterior = loaded(make, tmp_path)
    found = posterior.sample(6, seed=3, refresh=ROWS).predict(X)
    torch.testing.assert_close(found.mean, before.mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.variance, before.variance, rtol=1e-4, atol=1e-4)
    assert before.epistemic.min() > 0
    again = posterior.reconditioned(ROWS)
    assert isinstance(again.conditioning, Averaged)
    assert torch.equal(again.sample(6, seed=3).predict(X).mean, found.mean)


@every_network
def test_without_rows_members_are_an_error_that_names_both_remedies(make: Make, tmp_path: Path) -> None:
    posterior = loaded(make, tmp_path)
    for members in (lambda: posterior.sample(20), lambda: posterior.draw(0), lambda: posterior.rescaled(2.0).sample(1)):
        with pytest.raises(ValueError, match=r"96 training samples.*refresh=.*ensemble\.save\(path\)"):
            members()
    with pytest.raises(ValueError, match=r"call fit\(train, validation\) again"):
        posterior.choose_scale(VALIDATION_NUMBERS, refresh=TRAIN_NUMBERS)
    assert "to be conditioned on 96 training samples" in repr(posterior)
    assert torch.is_tensor(posterior.final()(X)[0])  # the network itself needs none


def test_other_rows_give_a_warning_that_says_how_many_there_were(tmp_path: Path) -> None:
    posterior = loaded(small, tmp_path)
    with pytest.warns(UserWarning, match="conditioned on 96 samples, and refresh has 64") as caught:
        posterior.sample(2, refresh=TRAIN_NUMBERS)
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="targets are needed"), pytest.warns(UserWarning, match="refresh has 64"):
        posterior.sample(2, refresh=[x for x, _ in TRAIN_NUMBERS])
    with pytest.raises(TypeError, match="one-pass iterator"):
        posterior.sample(2, refresh=iter(ROWS))


def test_a_loaded_posterior_can_be_saved_rescaled_and_fitted_again(tmp_path: Path) -> None:
    posterior, original = loaded(small, tmp_path), regressor(small)
    posterior.save(tmp_path / "again")
    twice = tradi.load_posterior(tmp_path / "again", small())
    pairs = [
        (twice.sample(3, refresh=ROWS), original.sample(3)),
        (posterior.rescaled(2.0).sample(3, refresh=ROWS), original.rescaled(2.0).sample(3)),
        (posterior.fit(TRAIN_NUMBERS, VALIDATION_NUMBERS).sample(3), original.sample(3)),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found(X), expected(X), rtol=1e-4, atol=1e-4)


def test_a_posterior_that_is_conditioned_and_not_searched_is_saved_too(tmp_path: Path) -> None:
    posterior = regressor(small).condition(TRAIN_NUMBERS)
    posterior.save(tmp_path / "p")
    found = tradi.load_posterior(tmp_path / "p", small()).sample(3, refresh=TRAIN_NUMBERS)
    torch.testing.assert_close(found(X), posterior.sample(3)(X), rtol=1e-4, atol=1e-4)
