"""Which objects has a detector never seen the like of? python examples/detection.py (needs tradi[demo]).

A small detector learns squares and discs on noise; triangles come up in testing alone. Ten members' boxes are put
together to objects, and drawn with the ellipses in which members place two of the corners.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from matplotlib import patches
from torch import Tensor

import tradi
from tradi import metrics
from tradi.detection import Objects, combine, ellipse
from tradi.models import DetectorLikelihood, detections, detector, detector_loss, detector_target

SIZE, NAMES = 48, ("square", "disc", "triangle")
COLOURS = ([1.0, -1.0, 0.5], [0.5, 1.0, -1.0], [1.2, 0.0, 0.0])  # the third between the first two


def shapes(images: int, triangles: bool, seed: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Images (n, 3, 48, 48) of a square, a disc and perhaps a triangle in places of their own, boxes, and classes."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(images, 3, SIZE, SIZE, generator=generator)
    down, across = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
    boxes, labels = [], []
    for image in x:
        own = []
        quarters = torch.randperm(4, generator=generator)
        for shape in range(2 + triangles):
            row, column = divmod(int(quarters[shape]), 2)
            half = 5 + 4 * torch.rand((), generator=generator)
            middle = 24 * torch.tensor([column, row]) + half + (24 - 2 * half) * torch.rand(2, generator=generator)
            a, d = across - middle[0], down - middle[1]
            inside = [
                d.abs().maximum(a.abs()) < half,
                d * d + a * a < half**2,
                (d.abs() < half) & (2 * a.abs() < d + half),
            ]
            image[:, inside[shape]] += torch.tensor(COLOURS[shape])[:, None]
            rows, columns = inside[shape].nonzero().T
            own.append([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        boxes.append(torch.tensor(own).float())
        labels.append(torch.arange(2 + triangles))
    return x, boxes, labels


def batches(images: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Images without triangles, and what the detector should say of them."""
    x, boxes, labels = shapes(images, False, seed)
    y = [detector_target(own, classes, (SIZE, SIZE), 2) for own, classes in zip(boxes, labels, strict=True)]
    return list(zip(x.split(8), torch.stack(y).split(8), strict=True))


def draw(image: Tensor, found: Objects) -> None:
    """One image with its objects."""
    figure, axes = plt.subplots(figsize=(5, 5), layout="constrained")
    picture = image.permute(1, 2, 0)
    axes.imshow(((picture - picture.min()) / (picture.max() - picture.min())).numpy(), extent=(0, SIZE, SIZE, 0))
    for place, (x0, y0, x1, y1) in enumerate(found.boxes.tolist()):
        axes.add_patch(patches.Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, color="white"))
        for x, y, corner in ((x0, y0, slice(0, 2)), (x1, y1, slice(2, 4))):
            half, angle = ellipse(found.covariance[place, corner, corner])
            long, short = (2 * half).tolist()
            axes.add_patch(patches.Ellipse((x, y), long, short, angle=angle.item(), fill=False, color="white"))
        said = f"{NAMES[found.labels[place]]} {found.scores[place]:.2f}, OOD {found.ood_score[place]:.2f}"
        ground = {"facecolor": "black", "alpha": 0.6, "linewidth": 0, "pad": 2}
        axes.text((x0 + x1) / 2, y0 + 0.8, said, ha="center", va="top", color="white", fontsize="small", bbox=ground)
    axes.axis("off")
    figure.savefig("detection.png", dpi=150)
    print("drew detection.png")


def main(epochs: int = 12) -> None:
    """Train, fit, find objects in test images, and draw one of them."""
    train, validation = batches(96, 0), batches(32, 1)
    images, boxes, labels = shapes(16, True, 2)
    torch.manual_seed(0)
    model = detector(2, width=16)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    tracker = tradi.TRADI(model, optimizer)
    for _ in range(epochs):
        for number in torch.randperm(len(train)).tolist():
            x, y = train[number]
            optimizer.zero_grad()
            detector_loss(model(x), y).backward()
            optimizer.step()

    ensemble = tracker.posterior().fit(train, validation, likelihood=DetectorLikelihood()).sample(10)
    members = [detections(output) for _, _, output, _ in ensemble.iterate([images])]
    found = [combine(own).above(0.1) for own in zip(*members, strict=True)]

    doubt: dict[str, list[Tensor]] = {name: [] for name in NAMES}
    for objects, true, classes in zip(found, boxes, labels, strict=True):
        place = metrics.match_boxes(objects.boxes, objects.scores, objects.labels * 0, true, classes * 0)
        for score, number in zip(objects.ood_score[place >= 0], place[place >= 0], strict=True):
            doubt[NAMES[classes[number]]].append(score)
    for name, scores in doubt.items():
        average = f", average OOD score {torch.stack(scores).mean():.3f} nats" if scores else ""
        print(f"{name}s found: {len(scores)} of {len(images)}{average}")
    draw(images[0], found[0])


if __name__ == "__main__":
    main()
