"""Members' detections, and the objects that they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tradi.detection.boxes import check_boxes, check_overlap, iou

ROUNDING = 1e-4  # by which float32 probabilities may add up to more than 1


@dataclass(frozen=True, eq=False)
class Detections:
    """What one member detects in one image, after its own NMS; none at all is fine.

    Args:
        boxes: (detections, 4), as (x0, y0, x1, y1) in pixels.
        probs: of every class, (detections, classes). What a row lacks to 1 is the probability of background.

    Raises:
        ValueError: if shapes differ, a box is none, or probabilities are not.
    """

    boxes: Tensor
    probs: Tensor

    def __post_init__(self) -> None:
        check_boxes("boxes", self.boxes)
        if self.probs.ndim != 2 or len(self.probs) != len(self.boxes) or self.probs.shape[1] == 0:
            raise ValueError(
                f"probs must be ({len(self.boxes)}, classes) beside so many boxes, got shape {tuple(self.probs.shape)}"
            )
        if not ((self.probs >= 0).all() and (self.probs.sum(1) <= 1 + ROUNDING).all()):
            raise ValueError(
                "probs must not be negative and add up to at most 1 over classes, without background: sigmoid scores "
                "of several classes must be divided by their sum, or given by Detections.labelled"
            )

    @classmethod
    def labelled(cls, boxes: Tensor, scores: Tensor, labels: Tensor, classes: int) -> Detections:
        """Of a detector that says one class and how sure it is: what its score lacks to 1 goes to background.

        Args:
            boxes: (detections, 4).
            scores: in [0, 1], (detections,).
            labels: classes from 0, without one for background, (detections,).
            classes: how many there are.

        Returns:
            the same, with class probabilities.

        Raises:
            ValueError: if a label is no class, or shapes differ.
        """
        if labels.is_floating_point() or ((labels < 0) | (labels >= classes)).any():
            raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}, without background")
        return cls(boxes, F.one_hot(labels.long(), classes).to(scores) * scores[:, None])

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def scores(self) -> Tensor:
        """The probability of the most probable class, (detections,)."""
        return self.probs.amax(1)

    @property
    def labels(self) -> Tensor:
        """The most probable class, (detections,)."""
        return self.probs.argmax(1)


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects in one image, the highest score first.

    Args:
        boxes: mean over the members that saw the object, (objects, 4).
        covariance: of x0, y0, x1 and y1 over these members, divided by their number, (objects, 4, 4); all 0 where one
            member saw it.
        member_probs: each member's class probabilities, background last, (members, objects, classes + 1); a member
            that missed the object says background.
        seen: how many members saw the object, (objects,).
    """

    boxes: Tensor
    covariance: Tensor
    member_probs: Tensor
    seen: Tensor

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, some: Tensor) -> Objects:
        return Objects(self.boxes[some], self.covariance[some], self.member_probs[:, some], self.seen[some])

    def above(self, score: float) -> Objects:
        """The objects with this score or a higher one.

        Args:
            score: in [0, 1].

        Returns:
            the others left out; the order stays.
        """
        return self[self.scores >= score]

    def __repr__(self) -> str:
        members, found, classes = self.member_probs.shape
        return f"Objects({found} objects, {classes - 1} classes, {members} members)"

    @cached_property
    def probs(self) -> Tensor:
        """Mean over all members of each class's probability, without background, (objects, classes)."""
        return self._mean[:, :-1]

    @property
    def scores(self) -> Tensor:
        """The probability of the most probable class, (objects,)."""
        return self.probs.amax(1)

    @property
    def labels(self) -> Tensor:
        """The most probable class, (objects,)."""
        return self.probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        """The score under the name that metrics know, (objects,)."""
        return self.scores

    @property
    def one_minus_confidence(self) -> Tensor:
        """1 - score, (objects,)."""
        return 1 - self.scores

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of the mean probabilities, background among them, in nats, (objects,)."""
        return torch.special.entr(self._mean).sum(1)

    @cached_property
    def expected_entropy(self) -> Tensor:
        """Mean of the members' entropies: what they agree upon, (objects,)."""
        return torch.special.entr(self.member_probs).sum(2).mean(0)

    @property
    def mutual_information(self) -> Tensor:
        """The members' disagreement on what it is and whether it is there, (objects,)."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    def ood_score(self) -> Tensor:
        """How much an object seems to be of no learnt class, (objects,): `entropy`.

        It is high where members give several classes, or where some see an object and others do not, and of use with
        one network too. It is low for what nearly all members take for background, which is no object.
        """
        return self.entropy

    @cached_property
    def _mean(self) -> Tensor:
        return self.member_probs.mean(0)


def combine(members: Sequence[Detections], overlap: float = 0.5) -> Objects:
    """Put together what members detect in one image, whatever the classes.

    The detection of the highest score begins an object, and from every other member the one joins it that overlaps it
    most, if that is an IoU of `overlap` or more. What is left begins further objects in the same way, until nothing
    is. So every detection is in one object, and an object has at most one detection of a member.

    Args:
        members: detections of every member, of as many as each has, for the same classes.
        overlap: IoU with the first detection of an object, from which another one is of the same object.

    Returns:
        the objects, which do not depend on the order of members unless scores tie.

    Raises:
        ValueError: if there is no member, members know different numbers of classes, or the overlap is out of range.
    """
    check_overlap(overlap)
    if len({found.probs.shape[1] for found in members}) != 1:
        raise ValueError(
            f"members must be one or more, and of the same classes, got {[f.probs.shape[1] for f in members]} classes"
        )
    boxes = pad_sequence([found.boxes for found in members], batch_first=True)  # (members, most, 4)
    probs = pad_sequence([found.probs for found in members], batch_first=True)
    lengths = torch.tensor([len(found) for found in members], device=boxes.device)
    size, most = boxes.shape[:2]
    free = torch.arange(most, device=boxes.device) < lengths[:, None]
    near = iou(boxes.flatten(0, 1), boxes.flatten(0, 1)).fill_diagonal_(1.0)  # itself, even without an area
    scores = torch.where(free, probs.amax(2), -1.0).flatten()
    places, seen = [], []
    for first in scores.argsort(descending=True, stable=True)[: int(lengths.sum())].tolist():
        owner, place = divmod(first, most)
        if not free[owner, place]:
            continue
        best, chosen = torch.where(free, near[first].view(size, most), -1.0).max(1)
        chosen[owner], here = place, best >= overlap
        free[here, chosen[here]] = False
        places.append(chosen)
        seen.append(here)
    if not places:
        return _none(boxes, probs)
    return _objects(boxes, probs, torch.stack(places, 1), torch.stack(seen, 1))


def _objects(boxes: Tensor, probs: Tensor, places: Tensor, seen: Tensor) -> Objects:
    """Objects from the place of each member's detection in what it detects, (members, objects), and whether it did."""
    members = torch.arange(len(places), device=places.device)[:, None]
    probs = probs[members, places] * seen[..., None]
    weight = (seen / seen.sum(0)).to(boxes)[..., None]
    found = boxes[members, places]
    mean = (weight * found).sum(0)
    away = found - mean
    covariance = torch.einsum("mni,mnj->nij", weight * away, away)
    background = (1 - probs.sum(2, keepdim=True)).clamp_min(0)
    order = probs.mean(0).amax(1).argsort(descending=True, stable=True)
    member_probs = torch.cat([probs, background], 2)[:, order]
    return Objects(mean[order], covariance[order], member_probs, seen.sum(0)[order])


def _none(boxes: Tensor, probs: Tensor) -> Objects:
    size, classes = len(boxes), probs.shape[2]
    return Objects(
        boxes.new_zeros(0, 4),
        boxes.new_zeros(0, 4, 4),
        probs.new_zeros(size, 0, classes + 1),
        torch.zeros(0, dtype=torch.long, device=boxes.device),
    )
