from __future__ import annotations

import math

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from tradi import metrics


def validation(members: int, n: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of members that share a signal, and labels drawn from the signal itself."""
    g = torch.Generator().manual_seed(seed)
    signal = torch.randn(n, 5, generator=g) * 2
    labels = torch.multinomial(signal.softmax(1), 1, generator=g).squeeze(1)
    return signal + 0.5 * torch.randn(members, n, 5, generator=g), labels


def ensemble_nll(logits: Tensor, labels: Tensor) -> float:
    return metrics.nll(logits.double().softmax(2).mean(0), labels)


@pytest.mark.parametrize("members", [1, 7])
@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_finds_the_minimum_scipy_finds(members: int, factor: float) -> None:
    logits, labels = validation(members)
    logits = logits * factor
    found = metrics.fit_temperature(logits, labels)
    theirs = minimize_scalar(
        lambda log_t: ensemble_nll(logits / math.exp(log_t), labels), bounds=(-4, 4), method="bounded"
    )
    assert found.temperature == pytest.approx(math.exp(theirs.x), rel=1e-3)
    assert ensemble_nll(found(logits.double()), labels) <= theirs.fun + 1e-7


def test_undoes_a_scaling_of_the_logits() -> None:
    logits, labels = validation(3)
    once, scaled = metrics.fit_temperature(logits, labels), metrics.fit_temperature(logits * 3, labels)
    assert scaled.temperature == pytest.approx(3 * once.temperature, rel=1e-4)
    torch.testing.assert_close(scaled(logits * 3), once(logits), rtol=1e-4, atol=1e-4)


def test_it_is_the_ensemble_that_is_scaled_not_each_member() -> None:
    logits, labels = validation(7)
    alone = metrics.fit_temperature(logits[:1], labels)
    assert metrics.fit_temperature(logits, labels).temperature < alone.temperature


def test_the_labels_classes_do_not_change() -> None:
    logits, labels = validation(1)
    assert metrics.fit_temperature(logits, labels)(logits).argmax(2).equal(logits.argmax(2))


def test_pixels_are_samples() -> None:
    logits, labels = validation(3, 60)
    image = logits.view(3, 5, 4, 3, 5).movedim(-1, 2)
    found = metrics.fit_temperature(image, labels.view(5, 4, 3))
    assert found.temperature == pytest.approx(metrics.fit_temperature(logits, labels).temperature, rel=1e-9)


def test_separable_data_stop_at_the_end_of_the_range() -> None:
    logits = torch.eye(3).unsqueeze(0)
    assert metrics.fit_temperature(logits, torch.arange(3)).temperature == pytest.approx(0.01, rel=1e-4)
    assert metrics.fit_temperature(-logits, torch.arange(3)).temperature == pytest.approx(100, rel=1e-4)


def test_bad_arguments_are_named() -> None:
    logits, labels = validation(2, 4)
    with pytest.raises(ValueError, match="logits must be finite, got nan"):
        metrics.fit_temperature(logits * math.nan, labels)
    with pytest.raises(ValueError, match=r"\(4,\).*\(3,\)"):
        metrics.fit_temperature(logits, labels[:3])
    with pytest.raises(ValueError, match=r"labels must be in \[0, 5\), got 9"):
        metrics.fit_temperature(logits, labels * 0 + 9)
    with pytest.raises(ValueError, match=r"\(members, batch, classes, ...\), got shape \(4, 5\)"):
        metrics.fit_temperature(logits[0], labels)
    with pytest.raises(ValueError, match="must not be empty"):
        metrics.fit_temperature(logits[:, :0], labels[:0])
    with pytest.raises(ValueError, match="temperature must be positive and finite, got 0"):
        metrics.Temperature(0)


def test_void_labels_are_left_out() -> None:
    logits, labels = validation(3)
    void = torch.where(torch.arange(len(labels)) % 3 == 0, -100, labels)
    assert metrics.fit_temperature(logits, void) == metrics.fit_temperature(logits[:, void >= 0], labels[void >= 0])
    with pytest.raises(ValueError, match="must not all be negative"):
        metrics.fit_temperature(logits, torch.full_like(labels, -1))


def test_many_pixels_are_thinned_out_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = validation(3, n=4000)
    whole = metrics.fit_temperature(logits * 3, labels).temperature
    monkeypatch.setattr("tradi.metrics.calibration.ENOUGH", 1000)
    thinned = metrics.fit_temperature(logits * 3, labels).temperature
    assert thinned != whole
    assert thinned == pytest.approx(whole, rel=0.15)  # the standard error of 1,000 labels is about 4%


def test_half_precision_logits_do_not_overflow() -> None:
    assert metrics.Temperature(0.01)(torch.full((1, 2, 3), 1000.0, dtype=torch.float16)).isfinite().all()


def test_targets_are_thinned_out_evenly_and_not_from_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = validation(3, n=4000)
    sharp = torch.cat([logits[:, :2000] * 4, logits[:, 2000:] / 4], 1)  # two halves that need other temperatures
    whole = metrics.fit_temperature(sharp, labels).temperature
    monkeypatch.setattr("tradi.metrics.calibration.ENOUGH", 1000)
    assert metrics.fit_temperature(sharp, labels) == metrics.fit_temperature(sharp[:, ::4], labels[::4])
    front = metrics.fit_temperature(sharp[:, :1000], labels[:1000]).temperature
    assert abs(math.log(front / whole)) > 3 * abs(math.log(metrics.fit_temperature(sharp, labels).temperature / whole))
