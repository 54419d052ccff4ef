from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.bench.segmentations import scenes
from tradi import metrics
from tradi.bench.evaluate import evaluate
from tradi.bench.evaluation import as_lists
from tradi.bench.pixels import Counts, pooled
from tradi.ensemble.ensemble import Ensemble
from tradi.prediction.classes import ClassPrediction
from tradi.prediction.likelihoods import Classification


def members(count: int) -> Ensemble:
    """Networks of one convolution each, that see what they see with much confidence."""
    torch.manual_seed(0)
    weights = [torch.randn(8, 3, 3, 3) for _ in range(count)]
    return Ensemble(nn.Conv2d(3, 8, 3, padding=1), lambda i: {"weight": weights[i]}, count)


@pytest.mark.parametrize("count", [1, 3])
def test_streamed_numbers_are_those_of_all_pixels_in_memory(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, ensemble = replace(scenes(tmp_path), at_once=2), members(count)
    monkeypatch.setattr("tradi.bench.segmentation.POOLED", 5 * 48)  # two chunks
    measured = evaluate(ensemble, problem)
    ((x, (labels, ood)),) = problem.source.testing(9)
    whole = ClassPrediction(ensemble(x))
    inside, known = labels >= 0, (labels >= 0) | ood
    assert (~known).any(), "void pixels, which count nowhere"
    right = whole.labels == labels
    found = measured.metrics
    confusion = metrics.confusion(whole.labels, labels, 8)
    assert found["miou"] == pytest.approx(confusion.mean_iou)
    assert found["iou/road"] == pytest.approx(confusion.iou[3].item())
    assert found["accuracy"] == pytest.approx(right[inside].double().mean().item())
    log_probs = whole.log_probs.movedim(1, -1)[inside]
    assert found["nll"] == pytest.approx(metrics.nll_from_log_probs(log_probs, labels[inside]), rel=1e-6)
    assert found["ece"] == pytest.approx(metrics.ece(whole.confidence[inside], right[inside]), abs=1e-6)
    outcomes = whole.confidence[inside], right[inside]
    assert found["OOD/joint_ece"] == pytest.approx(metrics.joint_ece(*outcomes, whole.confidence[ood]), abs=1e-6)
    scores = {
        "confidence": whole.one_minus_confidence,
        "entropy": whole.entropy,
        "information": whole.mutual_information,
    }
    for name, score in list(scores.items())[: 2 if count == 1 else 3]:
        exact = metrics.ood_metrics(score[known], ood[known])
        images = [
            metrics.ood_metrics(s[k], o[k])
            for s, o, k in zip(score, ood, known, strict=True)
            if o.any() and (k & ~o).any()
        ]
        for metric in ("auroc", "aupr_out", "fpr95"):
            # Scores alike to 0.05% count as equal.
            assert found[f"OOD/{name}/{metric}"] == pytest.approx(getattr(exact, metric), abs=5e-3)
            mean = sum(getattr(image, metric) for image in images) / len(images)
            assert found[f"OOD/by image/{name}/{metric}"] == pytest.approx(mean, abs=1e-4)
    assert ("OOD/information/auroc" in found) == (count > 1), "one network cannot disagree with itself"
    joint = metrics.accuracy_confidence(*metrics.with_ood(*outcomes, whole.confidence[ood]))
    assert measured.curves["OOD/accuracy_confidence"]["count"] == as_lists(joint)["count"]
    if count == 1:
        assert "OOD/information_histogram" not in measured.curves
    else:
        expected = metrics.information_histogram(whole.mutual_information[known], ood[known], 8)
        assert measured.curves["OOD/information_histogram"]["ood"] == as_lists(expected)["ood"]
        assert sum(measured.curves["OOD/information_histogram"]["inside"]) == int((known & ~ood).sum())


def test_members_are_pooled_batch_by_batch(tmp_path: Path) -> None:
    problem, ensemble = scenes(tmp_path), members(4)
    batches = problem.source.testing(4)
    for (prediction, expected, _), (x, _) in zip(pooled(ensemble, batches), batches, strict=True):
        whole = ClassPrediction(ensemble(x))
        torch.testing.assert_close(prediction.log_probs, whole.log_probs)
        torch.testing.assert_close(expected, whole.expected_entropy)


def test_what_an_ensemble_knows_of_its_outputs_counts_for_pixels_too(tmp_path: Path) -> None:
    """A row that is recalibrated has a temperature."""
    problem, ensemble = scenes(tmp_path), members(2)
    plain = evaluate(ensemble, problem).metrics
    ensemble.likelihood = Classification(temperature=3.0)
    found = evaluate(ensemble, problem).metrics
    ((x, (labels, _)),) = problem.source.testing(9)
    log_probs = ClassPrediction(ensemble(x) / 3).log_probs.movedim(1, -1)[labels >= 0]
    assert found["nll"] == pytest.approx(metrics.nll_from_log_probs(log_probs, labels[labels >= 0]), rel=1e-6)
    assert found["nll"] != pytest.approx(plain["nll"], rel=1e-2)


def test_pictures_are_predictions_of_a_few_images_in_bytes(tmp_path: Path) -> None:
    problem, ensemble = replace(scenes(tmp_path), at_once=2), members(2)
    kept = evaluate(ensemble, problem).pictures
    assert kept["index"].tolist() == problem.shown
    held_out = ["car (OOD)", "pedestrian (OOD)", "bicyclist (OOD)"]
    assert kept["names"].tolist() == [*problem.source.names, *held_out]
    assert kept["colours"][: problem.classes].tolist() == problem.source.colours.tolist()
    assert kept["colours"][-1].tolist() == [0, 128, 192]
    ((x, _),) = problem.source.testing(9)
    whole = ClassPrediction(ensemble(x[problem.shown]))
    assert kept["labels"].tolist() == whole.labels.tolist()
    assert kept["confidence"].dtype == "uint8"
    torch.testing.assert_close(torch.from_numpy(kept["confidence"]) / 255, whole.confidence, atol=1 / 255, rtol=0)


def test_images_of_void_alone_or_of_nothing_known_do_not_count() -> None:
    counts = Counts(("a", "b"), several=False)
    prediction = ClassPrediction(torch.tensor([2.0, 0.0]).view(1, 1, 2, 1, 1).expand(1, 3, 2, 1, 2).clone())
    entropy = prediction.entropy
    void, ood = torch.full((3, 1, 2), -1), torch.zeros(3, 1, 2, dtype=torch.bool)
    counts.update(prediction, entropy, void, ood)
    with_ood = ood.clone()
    with_ood[0, 0, 0] = True
    counts.update(prediction, entropy, void, with_ood)  # nothing in distribution
    labels = void.clone()
    labels[1, 0] = torch.tensor([0, 1])
    counts.update(prediction, entropy, labels, with_ood)
    with pytest.raises(ValueError, match="none of the 3 images has both"):
        counts.compute()
    labels[0, 0, 1] = 0
    counts.update(prediction, entropy, labels, with_ood)
    numbers, _ = counts.compute()
    assert numbers["accuracy"] == pytest.approx(3 / 5)
    assert numbers["OOD/confidence/auroc"] == 0.5
