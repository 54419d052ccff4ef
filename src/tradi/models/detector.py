"""A small anchor-free detector, after the idea of FCOS (Tian et al., 2019): every place says what it is the middle of.

At every fourth pixel there are logits of the classes, background last, and the logarithms of the distances to the four
sides of the box there. Nothing else is predicted: no anchors, no centredness.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tradi.detection import Detections, nms
from tradi.detection.boxes import check_boxes
from tradi.models.initialisation import he_initialised
from tradi.prediction.class_likelihoods import Classification
from tradi.prediction.likelihood import Likelihood, as_target

STRIDE = 4
MIDDLE = 0.5  # of a box's width and height: places in there are of its class, all others are background
SHORTEST = 0.5  # pixels from a place to a side
LONGEST = 10.0  # logarithm of the distance to a side, in strides: exp must not overflow before training
BACKGROUND = 4.0  # logit at the beginning: nearly all places are background
CANDIDATES = 300  # of an image, before NMS
SHARPEST = 1e-3  # spread of the sides that a fit may find
IGNORED = -1  # the class of a place that counts neither as an object nor as background

Output = dict[str, Tensor]


def detector(classes: int, *, width: int = 32, dropout: float = 0.1) -> Detector:
    """The detector with He initialisation, for colour images of any size.

    Args:
        classes: number of classes, without background.
        width: channels at a quarter of the image's size; there are four times as many at a sixteenth.
        dropout: rate at which whole channels are dropped before the last layers.

    Returns:
        the network, in training mode.
    """
    model = he_initialised(Detector(classes, width, dropout))
    assert model.classes.bias is not None
    nn.init.constant_(model.classes.bias[-1:], BACKGROUND)
    return model


class Detector(nn.Module):
    """Convolutions down to a sixteenth of the image's size, and back up to a quarter, where all is predicted.

    The output is a dict: `logits`, (batch, classes + 1, height, width), and `sides`, (batch, 4, height, width), the
    logarithms of the distances to the left, upper, right and lower side of a box, in strides of 4 pixels.

    Args:
        classes: number of classes, without background.
        width: channels at a quarter of the image's size.
        dropout: rate of Dropout2d before the last layers.
    """

    def __init__(self, classes: int, width: int, dropout: float) -> None:
        super().__init__()
        joint = 3 * width // 2
        self.stem = _activated(3, width // 2, stride=2)
        self.quarter = nn.Sequential(_activated(width // 2, width, stride=2), Block(width))
        self.eighth = nn.Sequential(_activated(width, 2 * width, stride=2), Block(2 * width))
        self.sixteenth = nn.Sequential(_activated(2 * width, 4 * width, stride=2), Block(4 * width), Block(4 * width))
        self.lateral = nn.ModuleList(nn.Conv2d(width * 2**i, joint, 1) for i in range(3))
        self.joint = nn.Sequential(_activated(joint, joint), _activated(joint, joint), nn.Dropout2d(dropout))
        self.classes = nn.Conv2d(joint, classes + 1, 1)
        self.sides = nn.Conv2d(joint, 4, 1)

    def forward(self, image: Tensor) -> Output:
        levels = [self.quarter(self.stem(image.contiguous(memory_format=torch.channels_last)))]
        levels.append(self.eighth(levels[0]))
        levels.append(self.sixteenth(levels[1]))
        x = self.lateral[2](levels[2])
        for level, lateral in ((levels[1], self.lateral[1]), (levels[0], self.lateral[0])):
            x = lateral(level) + F.interpolate(x, level.shape[2:])
        x = self.joint(x)
        return {"logits": self.classes(x), "sides": self.sides(x)}


class Block(nn.Module):
    """Two 3x3 convolutions, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.extension = nn.Sequential(_activated(channels, channels), conv, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.extension(x))


def _activated(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def detector_target(
    boxes: Tensor, labels: Tensor, size: tuple[int, int], classes: int, ignored: Tensor | None = None
) -> Tensor:
    """What the detector should say of an image: a class and four sides for every place, (5, height / 4, width / 4).

    A place in the middle half of a box, across and down, is of its class, and so are those within 2 pixels of its
    centre; where boxes meet, the smallest counts. All others are background.

    Args:
        boxes: (objects, 4), as (x0, y0, x1, y1) in pixels.
        labels: classes from 0, (objects,).
        size: height and width of the image.
        classes: number of classes: the label of background.
        ignored: torch.bool, (height, width): pixels that are neither object nor background.

    Returns:
        the class, -1 where ignored, and the logarithms of the distances to the left, upper, right and lower side.

    Raises:
        ValueError: if they are no boxes, or `ignored` has another size.
    """
    check_boxes("boxes", boxes)
    if ignored is not None and ignored.shape != size:
        raise ValueError(f"ignored must be {size} like the image, got {tuple(ignored.shape)}")
    height, width = (math.ceil(side / STRIDE) for side in size)
    places = _places(height, width, boxes)
    target = places.new_zeros(5, height, width)
    target[0] = classes
    if ignored is not None:
        down, across = ((places[..., i].long()).clamp_max(size[1 - i] - 1) for i in (1, 0))
        target[0, ignored[down, across]] = IGNORED
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    for i in area.argsort(descending=True, stable=True).tolist():  # small ones over large ones
        first, last = boxes[i, :2], boxes[i, 2:]
        reach = (MIDDLE * (last - first) / 2).clamp_min(STRIDE / 2)
        here = ((places - (first + last) / 2).abs() <= reach).all(2)
        target[0, here] = labels[i].to(target)
        distances = torch.cat([places - first, last - places], 2)[here].clamp_min(SHORTEST)
        target[1:, here] = (distances / STRIDE).log().T
    return target


def detections(output: Output, *, score: float = 0.05, overlap: float = 0.5, most: int = 50) -> list[Detections]:
    """Boxes from the detector's output, for each image of a batch, after NMS within classes.

    Args:
        output: of one network, for a batch.
        score: the lowest probability of a class that is shown.
        overlap: the largest IoU of two boxes of a class.
        most: detections of an image.

    Returns:
        what is found in each image, the highest score first.
    """
    probs = output["logits"].softmax(1)[:, :-1].flatten(2).mT
    height, width = output["logits"].shape[2:]
    places = _places(height, width, output["sides"])
    reach = STRIDE * output["sides"].clamp_max(LONGEST).exp().movedim(1, -1)
    boxes = torch.cat([places - reach[..., :2], places + reach[..., 2:]], 3).flatten(1, 2)
    edge = (places[-1, -1] + STRIDE / 2).repeat(2)
    boxes = boxes.clamp_min(0).minimum(edge)
    found = []
    for own, sure in zip(boxes, probs, strict=True):
        best = sure.amax(1)
        first = best.argsort(descending=True, stable=True)[:CANDIDATES]
        first = first[best[first] >= score]
        kept = first[nms(own[first], best[first], sure[first].argmax(1), overlap)[:most]]
        found.append(Detections(own[kept], sure[kept]))
    return found


def detector_loss(output: Output, target: Tensor) -> Tensor:
    """What the detector minimises: minus `DetectorLikelihood().log_prob`, summed and divided by the places of objects.

    Args:
        output: of the detector, for a batch.
        target: of `detector_target`, (batch, 5, height / 4, width / 4).

    Returns:
        one number.
    """
    objects = (target[:, 0] >= 0) & (target[:, 0] < output["logits"].shape[1] - 1)
    return -DetectorLikelihood().log_prob(output, target).nansum() / objects.sum().clamp_min(1)


@dataclass(frozen=True)
class DetectorLikelihood(Classification):
    r"""What a `Detector` says of every place: a class, and where it is an object, the logarithms of its four sides.

    $$ \log p(c) + [c \text{ is an object}] \sum_s \log \mathrm{Laplace}(t_s; \hat t_s, b) $$

    `condition` works on the logits, `choose_scale` judges noise by both terms. `ensemble.predict` gives the classes of
    places; `detections` makes boxes of each member's outputs. Files do not keep it: pass it again after loading.

    Args:
        class_axis: as in `tradi.likelihoods.Classification`; always 1.
        temperature: as there.
        spread: b; 1 in training, and what `fit` estimates afterwards.
    """

    spread: float = 1.0

    def log_prob(self, output: Any, target: Any) -> Tensor:
        target = as_target(target)
        classes = super().log_prob(output, target[:, 0].long())
        away, here = _off(output, target)
        return torch.where(here, classes - away / self.spread - 4 * math.log(2 * self.spread), classes)

    def row_targets(self, target: Any) -> Tensor:
        return super().row_targets(as_target(target)[:, 0].long())

    def fitted(self, data: Iterable[tuple[Any, Any]]) -> Likelihood:
        total, count = 0.0, 0
        for output, target in data:
            away, here = _off(output, as_target(target))
            total, count = total + away[here].double().sum().item(), count + 4 * int(here.sum())
        return replace(self, spread=max(total / count, SHARPEST)) if count else self


def _off(output: Output, target: Tensor) -> tuple[Tensor, Tensor]:
    """How far the four sides of each place are off, added up, (batch, height, width), and which places are objects."""
    target = target.to(output["sides"])
    background = output["logits"].shape[1] - 1
    return (output["sides"] - target[:, 1:]).abs().sum(1), (target[:, 0] >= 0) & (target[:, 0] < background)


def _places(height: int, width: int, like: Tensor) -> Tensor:
    """x and y of every place in pixels, (height, width, 2)."""
    down, across = ((torch.arange(side).to(like) + 0.5) * STRIDE for side in (height, width))
    return torch.stack(torch.meshgrid(across, down, indexing="xy"), 2)
