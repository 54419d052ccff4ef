from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.detection.test_boxes import random_boxes
from tradi import metrics
from tradi.detection import Detections, Objects, combine, iou

CLASSES = 3


def made(seed: int, members: int = 6) -> list[Detections]:
    """Members that see noisy versions of some boxes, miss others, and imagine a few."""
    generator = torch.Generator().manual_seed(seed)
    true = random_boxes(8, seed, size=100)
    true[:, 2:] += 12
    found = []
    for _ in range(members):
        some = true[torch.rand(len(true), generator=generator) < 0.7]
        some = some + torch.randn(some.shape, generator=generator)
        some = torch.cat([some, random_boxes(2, int(torch.randint(10**6, (), generator=generator)), 100)])
        probs = 3 * torch.randn(len(some), CLASSES + 1, generator=generator)
        found.append(Detections(some, probs.softmax(1)[:, :-1]))
    return found


def by_hand(members: list[Detections], overlap: float) -> list[dict[int, int]]:
    """The same rule, one detection after another: every object as member -> number of its detection."""
    left = {(m, i): found.scores[i].item() for m, found in enumerate(members) for i in range(len(found))}
    objects = []
    while left:
        owner, first = max(left, key=left.__getitem__)
        group = {owner: first}
        for m, found in enumerate(members):
            near = iou(members[owner].boxes[[first]], found.boxes)[0]
            candidates = [i for i in range(len(found)) if (m, i) in left and near[i] >= overlap]
            if m != owner and candidates:
                group[m] = max(candidates, key=lambda i, near=near: near[i].item())  # type: ignore[misc]
        for pair in group.items():
            del left[pair]
        objects.append(group)
    return objects


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("overlap", [0.3, 0.7])
def test_objects_are_those_of_the_rule_by_hand_with_numpys_moments(seed: int, overlap: float) -> None:
    members = made(seed)
    found, groups = combine(members, overlap), by_hand(members, overlap)
    assert len(found) == len(groups)
    assert max(len(group) for group in groups) > 3
    means = {}
    for group in groups:
        boxes = np.stack([members[m].boxes[i].numpy() for m, i in group.items()])
        probs = torch.zeros(len(members), CLASSES + 1)
        probs[:, -1] = 1
        for m, i in group.items():
            row = members[m].probs[i]
            probs[m] = torch.cat([row, 1 - row.sum(0, keepdim=True)])
        means[probs.mean(0)[:-1].max().item()] = (boxes, probs)
    for place, score in enumerate(sorted(means, reverse=True)):
        boxes, probs = means[score]
        assert found.scores[place].item() == pytest.approx(score, rel=1e-5)
        assert found.seen[place] == len(boxes)
        np.testing.assert_allclose(found.boxes[place], boxes.mean(0), rtol=1e-4)
        covariance = np.cov(boxes.astype(np.float64), rowvar=False, bias=True)
        np.testing.assert_allclose(found.covariance[place], covariance, atol=1e-3)
        torch.testing.assert_close(found.member_probs[:, place], probs)


def test_the_order_of_members_does_not_matter() -> None:
    members = made(7)
    one, other = combine(members), combine(members[::-1])
    torch.testing.assert_close(one.boxes, other.boxes)
    torch.testing.assert_close(one.covariance, other.covariance)
    torch.testing.assert_close(one.member_probs, other.member_probs.flip(0))


def test_one_member_is_left_as_it_is() -> None:
    (member,) = made(1, members=1)
    found = combine([member])
    order = member.scores.argsort(descending=True)
    assert torch.equal(found.boxes, member.boxes[order])
    assert torch.equal(found.probs, member.probs[order])
    assert torch.equal(found.labels, member.labels[order])
    assert not found.covariance.any()
    assert not found.mutual_information.any()


def test_some_of_the_objects() -> None:
    found = combine(made(4))
    some = found.above(0.3)
    assert 0 < len(some) < len(found)
    assert some.scores.min() >= 0.3 > found.scores[len(some)]
    assert torch.equal(some.covariance, found.covariance[: len(some)])
    torch.testing.assert_close(some.ood_score, found.ood_score[: len(some)])


def test_who_missed_an_object_says_background() -> None:
    box = torch.tensor([[10.0, 10, 30, 30]])
    sees = Detections.labelled(box, torch.tensor([0.8]), torch.tensor([1]), classes=2)
    misses = Detections(box[:0], torch.zeros(0, 2))
    found = combine([sees, misses, misses, sees])
    assert found.seen.tolist() == [2]
    torch.testing.assert_close(found.probs, torch.tensor([[0.0, 0.4]]))
    torch.testing.assert_close(found.member_probs[1, 0], torch.tensor([0.0, 0.0, 1.0]))
    expected = -0.4 * math.log(0.4) - 0.6 * math.log(0.6)
    assert found.ood_score.item() == pytest.approx(expected)
    assert found.expected_entropy.item() == pytest.approx(-(0.8 * math.log(0.8) + 0.2 * math.log(0.2)) / 2)
    assert repr(found) == "Objects(1 objects, 2 classes, 4 members)"


def test_members_of_other_classes_share_an_object_and_doubt_it() -> None:
    box = torch.tensor([[10.0, 10, 30, 30]])
    says = [Detections.labelled(box + i, torch.tensor([0.9]), torch.tensor([i]), classes=2) for i in range(2)]
    alike, apart = combine([says[0], says[0]]), combine(says)
    assert len(alike) == len(apart) == 1
    assert apart.ood_score > alike.ood_score
    assert apart.mutual_information > alike.mutual_information == 0
    torch.testing.assert_close(apart.covariance, torch.full((1, 4, 4), 0.25))


def test_metrics_take_objects_for_a_prediction() -> None:
    found = combine(made(3))
    assert torch.equal(metrics.mutual_information(found), found.mutual_information)
    assert torch.equal(metrics.one_minus_confidence(found), 1 - found.scores)
    assert torch.equal(metrics.predictive_entropy(found), found.ood_score)


def test_boxes_without_an_area_and_twins_of_one_member_are_objects_of_their_own() -> None:
    flat = torch.tensor([[5.0, 5, 5, 9], [5.0, 5, 15, 15], [5.0, 5, 15, 15]])
    found = combine([Detections(flat, torch.tensor([[0.9], [0.5], [0.4]]))] * 2)
    assert sorted(found.seen.tolist()) == [1, 1, 2, 2]  # the flat one overlaps nothing, not even its like
    assert len(found) == 4


@pytest.mark.parametrize("members", [1, 3])
def test_nothing_detected_is_no_object(members: int) -> None:
    found = combine([Detections(torch.zeros(0, 4), torch.zeros(0, CLASSES))] * members)
    assert len(found) == 0
    shapes = [
        tuple(t.shape) for t in (found.boxes, found.covariance, found.member_probs, found.scores, found.ood_score)
    ]
    assert shapes == [(0, 4), (0, 4, 4), (members, 0, CLASSES + 1), (0,), (0,)]
    assert isinstance(found, Objects)


def test_mistakes_are_named() -> None:
    boxes = torch.tensor([[0.0, 0, 1, 1]])
    with pytest.raises(ValueError, match="add up to at most 1"):
        Detections(boxes, torch.tensor([[0.9, 0.9]]))
    with pytest.raises(ValueError, match=r"probs must be \(1, classes\)"):
        Detections(boxes, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="whole numbers from 0 to 1"):
        Detections.labelled(boxes, torch.ones(1), torch.tensor([2]), classes=2)
    with pytest.raises(ValueError, match="x0 <= x1"):
        Detections(torch.tensor([[9.0, 9, 2, 2]]), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="members must be one or more"):
        combine([])
    with pytest.raises(ValueError, match=r"of the same classes, got \[2, 3\]"):
        combine([Detections(boxes, torch.zeros(1, n)) for n in (2, 3)])


def half(x: Tensor) -> Tensor:
    return x.to(torch.float64)


def test_double_precision_is_kept() -> None:
    found = combine([Detections(half(one.boxes), half(one.probs)) for one in made(2)])
    assert found.boxes.dtype == found.covariance.dtype == found.member_probs.dtype == torch.float64
