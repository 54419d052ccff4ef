from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import tradi
from tradi.detection import combine, iou
from tradi.models import DetectorLikelihood, detections, detector, detector_loss, detector_target

SIZE, CLASSES = (45, 61), 3
BOXES = torch.tensor([[4.0, 4, 30, 40], [10, 10, 16, 16], [49, 1, 53, 7]])
LABELS = torch.tensor([0, 1, 2])


def outputs(target: Tensor, sure: float = 20.0) -> dict[str, Tensor]:
    """What a detector would say that knows the target, ignored places being background to it."""
    classes = torch.where(target[:, 0] < 0, CLASSES, target[:, 0]).long()
    logits = sure * torch.nn.functional.one_hot(classes, CLASSES + 1).movedim(-1, 1).float()
    return {"logits": logits, "sides": target[:, 1:].clone()}


def target() -> Tensor:
    return detector_target(BOXES, LABELS, SIZE, CLASSES)[None]


def test_the_output_has_a_place_for_every_fourth_pixel() -> None:
    output = detector(CLASSES, width=8)(torch.randn(2, 3, *SIZE))
    assert output["logits"].shape == (2, CLASSES + 1, *target().shape[2:]) == (2, 4, 12, 16)
    assert output["sides"].shape == (2, 4, 12, 16)


def test_boxes_come_back_from_the_target_that_was_made_of_them() -> None:
    (found,) = detections(outputs(target()))
    assert sorted(found.labels.tolist()) == [0, 1, 2]
    torch.testing.assert_close(found.boxes[found.labels.argsort()], BOXES)


def test_places_are_of_the_middle_and_small_boxes_lie_over_large_ones() -> None:
    classes = target()[0, 0]
    assert set(classes.unique().tolist()) == {0, 1, 2, 3}
    y, x = (classes == 0).nonzero().T * 4 + 2.0
    assert ((x - 17).abs() <= 6.5).all()
    assert ((y - 22).abs() <= 9).all()
    assert (classes == 1).any(), "it lies in the first box"
    assert classes[0, 12] == 2, "the smallest box has a place too"


def test_ignored_pixels_are_neither_background_nor_in_the_way_of_objects() -> None:
    ignored = torch.zeros(SIZE, dtype=torch.bool)
    ignored[:, 30:] = True
    found = detector_target(BOXES, LABELS, SIZE, CLASSES, ignored)[0]
    assert (found[:, 8:] < 0).sum() == found[:, 8:].numel() - (found[:, 8:] == 2).sum()
    assert torch.equal(found[:, :7], target()[0, 0, :, :7])
    with pytest.raises(ValueError, match="ignored must be"):
        detector_target(BOXES, LABELS, SIZE, CLASSES, ignored[:4])


def test_detections_are_within_the_limits_and_the_image() -> None:
    torch.manual_seed(0)
    output = {"logits": torch.randn(2, 4, 6, 8), "sides": torch.randn(2, 4, 6, 8) * 5}
    for found in detections(output, score=0.4, most=5):
        assert 0 < len(found) <= 5
        assert found.scores.min() >= 0.4
        assert torch.equal(found.scores, found.scores.sort(descending=True).values)
        assert found.boxes.min() >= 0
        assert (found.boxes <= torch.tensor([32, 24, 32, 24])).all()
    assert [len(found) for found in detections(output, score=1.0)] == [0, 0]


def test_the_likelihood_is_a_class_and_a_laplace_density_of_the_sides() -> None:
    torch.manual_seed(0)
    y = target()
    y[0, 0, 0, 0] = -1
    output = {"logits": torch.randn(1, 4, 12, 16), "sides": torch.randn(1, 4, 12, 16)}
    found = DetectorLikelihood(spread=0.3).log_prob(output, y)
    expected = output["logits"].log_softmax(1).gather(1, y[:, :1].long().clamp_min(0))[:, 0]
    density = torch.distributions.Laplace(output["sides"], 0.3).log_prob(y[:, 1:]).sum(1)
    objects = (y[:, 0] >= 0) & (y[:, 0] < CLASSES)
    expected = torch.where(objects, expected + density, expected)
    expected[0, 0, 0] = math.nan
    torch.testing.assert_close(found, expected, equal_nan=True)
    loss = -DetectorLikelihood().log_prob(output, y).nansum() / objects.sum()
    torch.testing.assert_close(detector_loss(output, y), loss)
    assert torch.equal(DetectorLikelihood().row_targets(y), y[:, 0].long().flatten(1))


def test_the_spread_is_the_mean_distance_of_the_sides() -> None:
    y = target()
    output = outputs(y)
    output["sides"] += 0.1 * torch.tensor([1.0, -1, 2, 0])[:, None, None]
    found = DetectorLikelihood().fitted([(output, y), (outputs(y), y)])
    assert isinstance(found, DetectorLikelihood)
    assert found.spread == pytest.approx(0.05)
    nothing = torch.cat([torch.full((1, 1, 12, 16), float(CLASSES)), y[:, 1:]], 1)
    assert DetectorLikelihood().fitted([(output, nothing)]) == DetectorLikelihood()


def test_the_loss_has_a_gradient_where_places_are_ignored_and_where_there_are_no_objects() -> None:
    model = detector(CLASSES, width=8)
    x = torch.randn(2, 3, *SIZE)
    y = detector_target(BOXES[:0], LABELS[:0], SIZE, CLASSES, torch.ones(SIZE, dtype=torch.bool)).repeat(2, 1, 1, 1)
    y[0, 0, 0] = CLASSES
    detector_loss(model(x), y).backward()
    gradient = model.classes.weight.grad
    assert gradient is not None
    assert gradient.isfinite().all()
    assert gradient.any()


def test_it_is_tracked_conditioned_and_sampled_and_members_find_the_objects() -> None:
    torch.manual_seed(0)
    model = detector(2, width=8)
    x = torch.zeros(8, 3, 32, 32)
    boxes = torch.tensor([[4.0, 4, 16, 16], [18, 12, 30, 28]])
    for image in x:
        image[0, 4:16, 4:16] = image[2, 12:28, 18:30] = 2
    x += 0.2 * torch.randn(x.shape)
    y = detector_target(boxes, torch.tensor([0, 1]), (32, 32), 2).repeat(8, 1, 1, 1)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    tracker = tradi.TRADI(model, optimizer)
    for _ in range(100):
        optimizer.zero_grad()
        detector_loss(model(x), y).backward()
        optimizer.step()
    train = [(x[:4], y[:4]), (x[4:], y[4:])]
    posterior = tracker.posterior().condition(train, likelihood=DetectorLikelihood())
    assert isinstance(posterior.likelihood, DetectorLikelihood)
    assert posterior.likelihood.spread != DetectorLikelihood().spread
    assert "Laplace" in str(posterior.conditioning)
    ensemble = posterior.sample(3, seed=0)
    outputs = [output for _, _, output, _ in ensemble.iterate([x[:2]])]
    assert not torch.equal(outputs[0]["logits"], outputs[1]["logits"])
    found = combine([detections(output)[0] for output in outputs])
    overlaps = iou(boxes, found.boxes)
    assert (overlaps.amax(1) > 0.4).all()
    assert found.labels[overlaps.argmax(1)].tolist() == [0, 1]
    assert ensemble.predict(x[:2]).labels.shape == (2, 8, 8)
