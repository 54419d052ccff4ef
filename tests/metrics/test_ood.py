from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from tradi import metrics
from tradi.metrics import OODMetrics


def reference(score: Tensor, is_ood: Tensor) -> OODMetrics:
    s, y = score.double().numpy().ravel(), is_ood.numpy().ravel()
    fpr, tpr, _ = roc_curve(y, s, drop_intermediate=False)
    return OODMetrics(
        auroc=float(roc_auc_score(y, s)),
        aupr_out=float(average_precision_score(y, s)),
        aupr_in=float(average_precision_score(~y, -s)),
        fpr95=float(fpr[np.argmax(tpr >= 0.95)]),
    )


def agree(ours: OODMetrics, theirs: OODMetrics) -> None:
    for name in ("auroc", "aupr_out", "aupr_in", "fpr95"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), abs=1e-6), name


def sample(n: int, seed: int, prevalence: float = 0.3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    is_ood = torch.rand(n, generator=g) < prevalence
    return torch.randn(n, generator=g) + is_ood, is_ood


ADVERSARIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda s: s,
    "all equal": lambda s: torch.zeros_like(s),
    "few values, many ties": lambda s: s.round(),
    "far outside [0, 1], where a sigmoid saturates": lambda s: s * 1e4,
    "inside [0, 1]": lambda s: s.sigmoid(),
    "nearly 0": lambda s: s * 1e-30,
    "differences only float64 sees": lambda s: 1 + s.double() * 1e-12,
    "half precision": lambda s: s.half(),
    "an image": lambda s: s.view(2, 5, -1),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_agrees_with_scikit_learn(name: str, seed: int) -> None:
    score, is_ood = sample(500, seed)
    score = ADVERSARIAL[name](score)
    is_ood = is_ood.view(score.shape)
    agree(metrics.ood_metrics(score, is_ood), reference(score, is_ood))


def test_a_missing_torchmetrics_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.classification", None)
    with pytest.raises(ImportError, match=r"pip install 'tradi\[metrics\]'"):
        metrics.auroc(*sample(10, 0))


def test_one_function_a_metric() -> None:
    score, is_ood = sample(300, 5)
    expected = reference(score, is_ood)
    assert metrics.auroc(score, is_ood) == pytest.approx(expected.auroc, abs=1e-6)
    assert metrics.aupr_out(score, is_ood) == pytest.approx(expected.aupr_out, abs=1e-6)
    assert metrics.aupr_in(score, is_ood) == pytest.approx(expected.aupr_in, abs=1e-6)
    assert metrics.fpr95(score, is_ood) == pytest.approx(expected.fpr95, abs=1e-6)


def test_ood_is_positive_and_high_scores_mean_ood() -> None:
    is_ood = torch.tensor([False] * 6 + [True] * 2)
    perfect = metrics.ood_metrics(torch.arange(8.0), is_ood)
    assert perfect == OODMetrics(auroc=1, aupr_out=1, aupr_in=1, fpr95=0)
    constant = metrics.ood_metrics(torch.zeros(8), is_ood)
    assert constant == OODMetrics(auroc=0.5, aupr_out=0.25, aupr_in=0.75, fpr95=1)
    assert metrics.auroc(-torch.arange(8.0), is_ood) == 0


def test_exactly_95_percent_is_enough() -> None:
    score = torch.cat([torch.arange(1.0, 21), torch.tensor([1.5, 0.5, 0.0, -1.0])])
    is_ood = torch.arange(24) < 20
    # 19 of 20 OOD samples lie above every other sample; the 20th is below 1.5.
    assert metrics.fpr95(score, is_ood) == 0


@pytest.mark.parametrize("marked", [True, False])
def test_a_missing_class_is_an_error(marked: bool) -> None:
    with pytest.raises(ValueError, match=f"marks {5 * marked} of 5"):
        metrics.auroc(torch.rand(5), torch.full((5,), marked))


@pytest.mark.parametrize("metric", [metrics.ood_metrics, metrics.image_average, metrics.score_histogram])
def test_bad_arguments_are_named(metric: Callable[[Tensor, Tensor], object]) -> None:
    is_ood = torch.tensor([True, False])
    with pytest.raises(ValueError, match=r"score must be finite, got nan \(1 of 2"):
        metric(torch.tensor([math.nan, 1.0]), is_ood)
    with pytest.raises(ValueError, match="score must be finite, got -inf"):
        metric(torch.tensor([1.0, -math.inf]), is_ood)
    with pytest.raises(ValueError, match=r"score \(3,\) and is_ood \(2,\)"):
        metric(torch.rand(3), is_ood)
    with pytest.raises(TypeError, match=r"is_ood must be torch\.bool"):
        metric(torch.rand(2), is_ood.long())
    with pytest.raises(ValueError, match="score must not be empty"):
        metric(torch.rand(0), is_ood[:0])


def test_image_average_is_over_the_images_that_have_both_kinds() -> None:
    images = [sample(200, seed) for seed in range(4)]
    images[2] = (images[2][0], torch.zeros(200, dtype=torch.bool))
    total = metrics.Accumulator(metrics.image_average)
    for score, is_ood in images:
        total.update(score, is_ood)
    average = total.compute()
    assert (average.images, average.skipped) == (3, 1)
    each = [reference(*images[i]) for i in (0, 1, 3)]
    assert average.metrics.auroc == pytest.approx(np.mean([e.auroc for e in each]), abs=1e-6)
    assert average.metrics.fpr95 == pytest.approx(np.mean([e.fpr95 for e in each]), abs=1e-6)
    assert average.metrics.aupr_in == pytest.approx(np.mean([e.aupr_in for e in each]), abs=1e-6)


def test_no_image_with_both_kinds_is_an_error() -> None:
    average = metrics.image_average(torch.rand(5), torch.ones(5, dtype=torch.bool))
    with pytest.raises(ValueError, match="none of the 1 images"):
        average.metrics
