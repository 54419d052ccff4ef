from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tradi import metrics
from tradi.metrics import Accumulator, OODMetrics, ScoreHistogram
from tradi.metrics.streaming import BINS


def pixels(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """1 - max probability of an overconfident network: most scores are tiny, as on real images."""
    g = torch.Generator().manual_seed(seed)
    is_ood = torch.rand(n, generator=g) < 0.05
    score = (torch.randn(n, generator=g) * 4 - 8 + 4 * is_ood).sigmoid()
    return score, is_ood


def bounds(histogram: ScoreHistogram) -> OODMetrics:
    """The errors the docstring allows."""
    n, p = histogram.inside.double().flip(0), histogram.ood.double().flip(0)

    def average_precision(positive: Tensor, negative: Tensor) -> float:
        t, f = positive.cumsum(0), negative.cumsum(0)
        before, fbefore = t - positive, f - negative
        spread = t / (t + fbefore).clamp_min(1) - (before + 1) / (before + 1 + f)
        return float((positive * spread).sum() / positive.sum())

    crossing = int((p.cumsum(0) / p.sum() >= 0.95).int().argmax())
    return OODMetrics(
        auroc=float((p * n).sum() / (2 * p.sum() * n.sum())),
        aupr_out=average_precision(p, n),
        aupr_in=average_precision(n.flip(0), p.flip(0)),
        fpr95=float(n[crossing] / n.sum()),
    )


SHAPES = {
    "probabilities": lambda s: s,
    "negative and positive logits": lambda s: s.logit(),
    "large": lambda s: s * 1e20,
    "tiny": lambda s: s * 1e-30,
    "all in a few bins": lambda s: 1 + s * 1e-3,
    "all in one bin": lambda s: 1 + s * 1e-5,
}


@pytest.mark.parametrize("name", SHAPES)
def test_binning_error_is_within_the_stated_bounds(name: str) -> None:
    score, is_ood = pixels(20_000)
    score = SHAPES[name](score)
    exact = metrics.ood_metrics(score, is_ood)
    histogram = metrics.score_histogram(score, is_ood)
    binned, bound = histogram.metrics, bounds(histogram)
    for field in ("auroc", "aupr_out", "aupr_in", "fpr95"):
        assert abs(getattr(binned, field) - getattr(exact, field)) <= getattr(bound, field) + 1e-6, field
    assert binned.fpr95 >= exact.fpr95 - 1e-6


@pytest.mark.parametrize("name", ["probabilities", "negative and positive logits", "large", "tiny"])
def test_binning_error_is_negligible_on_ordinary_scores(name: str) -> None:
    score, is_ood = pixels(20_000)
    score = SHAPES[name](score)
    exact, binned = metrics.ood_metrics(score, is_ood), metrics.score_histogram(score, is_ood).metrics
    for field in ("auroc", "aupr_out", "aupr_in", "fpr95"):
        assert getattr(binned, field) == pytest.approx(getattr(exact, field), abs=1e-3), field


def test_scores_the_bins_can_tell_apart_are_exact() -> None:
    g = torch.Generator().manual_seed(1)
    score = torch.randint(-2000, 2000, (5000,), generator=g).float()
    score[:50] = -0.0
    is_ood = torch.rand(5000, generator=g) < 0.2
    exact, binned = metrics.ood_metrics(score, is_ood), metrics.score_histogram(score, is_ood).metrics
    for field in ("auroc", "aupr_out", "aupr_in", "fpr95"):
        assert getattr(binned, field) == pytest.approx(getattr(exact, field), abs=1e-6), field


def test_bins_are_in_the_order_of_the_scores() -> None:
    extremes = torch.tensor([-3e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3e38])
    index = [int(metrics.score_histogram(s.view(1), torch.tensor([True])).ood.argmax()) for s in extremes]
    assert index == sorted(index)
    assert index[3] == index[4] == BINS // 2
    assert len(set(index)) == 6, "-1e-45 has a bin below 0; +1e-45 is one with 0"


def test_all_equal_scores() -> None:
    is_ood = torch.tensor([True, False, False, False])
    found = metrics.score_histogram(torch.full((4,), 0.3), is_ood).metrics
    assert found == OODMetrics(auroc=0.5, aupr_out=0.25, aupr_in=0.75, fpr95=1)


def test_a_missing_class_is_an_error_only_at_the_end() -> None:
    pooled = Accumulator(metrics.score_histogram)
    pooled.update(torch.rand(4), torch.zeros(4, dtype=torch.bool))
    with pytest.raises(ValueError, match="0 of 4 are OOD"):
        pooled.compute().metrics
    pooled.update(torch.full((1,), 2.0), torch.ones(1, dtype=torch.bool))
    assert pooled.compute().metrics.auroc == 1


def test_overflow_of_float32_is_an_error() -> None:
    with pytest.raises(ValueError, match="score must be finite, got inf"):
        metrics.score_histogram(torch.tensor([1e300], dtype=torch.float64), torch.tensor([True]))


def test_batches_add_up_to_the_whole() -> None:
    score, is_ood = pixels(3000)
    predicted = torch.arange(3000) % 4
    correct = (torch.arange(3000) % 3 > 0) & ~is_ood
    pooled, bins = Accumulator(metrics.score_histogram), Accumulator(metrics.calibration_curve)
    precision, split = Accumulator(metrics.ap_calibration), Accumulator(metrics.confidence_histogram)
    for part in (slice(start, start + 700) for start in range(0, 3000, 700)):
        pooled.update(score[part], is_ood[part])
        bins.update(1 - score[part], correct[part], bins=10)
        precision.update(1 - score[part], predicted[part], correct[part], classes=4)
        split.update(1 - score[part], is_ood[part])
    assert pooled.compute().metrics == metrics.score_histogram(score, is_ood).metrics
    assert bins.compute().ece == pytest.approx(metrics.ece(1 - score, correct, 10), rel=1e-12)
    whole = metrics.ap_calibration(1 - score, predicted, correct, 4)
    torch.testing.assert_close(precision.compute().precision, whole.precision, equal_nan=True)
    histogram = metrics.confidence_histogram(1 - score, is_ood)
    assert split.compute().inside.equal(histogram.inside)
    assert split.compute().ood.equal(histogram.ood)


def test_memory_does_not_grow_with_the_data() -> None:
    pooled = Accumulator(metrics.score_histogram)
    for seed in range(3):
        pooled.update(*pixels(1000, seed))
        state = pooled.compute()
        assert state.inside.numel() == state.ood.numel() == BINS
    assert int(state.inside.sum() + state.ood.sum()) == 3000


def test_nothing_to_compute() -> None:
    with pytest.raises(ValueError, match="update was never called"):
        Accumulator(metrics.score_histogram).compute()


def test_fpr_where_exactly_95_per_cent_are_found() -> None:
    # 19 of 20 OOD scores reach 5, one in-distribution score too: TPR is exactly 0.95 there, and FPR 1 of 4.
    score = torch.tensor([1.0] + [5.0] * 19 + [0.0, 0.0, 0.0, 5.0])
    is_ood = torch.tensor([True] * 20 + [False] * 4)
    assert metrics.score_histogram(score, is_ood).metrics.fpr95 == 0.25
    assert metrics.fpr95(score, is_ood) == 0.25


def test_counts_in_different_bins_cannot_be_added() -> None:
    confidence, correct = torch.rand(40), torch.rand(40) < 0.5
    with pytest.raises(ValueError, match="counts in different bins cannot be added"):
        metrics.confidence_histogram(confidence, correct, 10) + metrics.confidence_histogram(confidence, correct, 1)
    with pytest.raises(ValueError, match="counts in different bins cannot be added"):
        metrics.calibration_curve(confidence, correct, 10) + metrics.calibration_curve(confidence, correct, 1)
    classes = torch.randint(0, 3, (40,))
    with pytest.raises(ValueError, match="must have the same shape"):
        metrics.confusion(classes, classes, 3) + metrics.confusion(classes, classes, 4)
