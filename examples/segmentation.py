"""Which pixels are unlike any in the training images? python examples/segmentation.py (needs tradi[demo,images]).

ENet learns CamVid without cars, pedestrians and cyclists, if `TRADI_DATA` has CamVid; otherwise a small network learns
squares and discs on noise, and white triangles appear only in testing. Ends in a picture of a test image, the predicted
classes, and where the members disagree.
"""

from __future__ import annotations

import os
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tradi
from tradi.data.camvid import HELD_OUT, camvid
from tradi.data.segmentation import IGNORED
from tradi.report.style import MATPLOTLIB

Batches = list[tuple[Tensor, Tensor]]
COLOURS = ([1.0, -1.0, 0.5], [0.5, 1.0, -1.0], [2.0, 2.0, 2.0])  # of square, disc and triangle


def shapes(images: int, triangles: bool, seed: int) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) of a square and a disc, and their classes; -1 where a triangle is, which counts nowhere."""
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(images, 3, 32, 32, generator=generator)
    y = torch.zeros(images, 32, 32, dtype=torch.long)
    down, across = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    for image, classes in zip(x, y, strict=True):
        for shape in (1, 2, *[3] * triangles):
            top, left = (int(torch.randint(4, 28, (), generator=generator)) for _ in range(2))
            d, a = down - top, across - left
            inside = [d.abs().maximum(a.abs()) < 4, d * d + a * a < 20, (d.abs() < 5) & (a.abs() * 2 < d + 5)][
                shape - 1
            ]
            image[:, inside] += torch.tensor(COLOURS[shape - 1])[:, None]
            classes[inside] = shape if shape < 3 else IGNORED
    return x, y


def made() -> tuple[Batches, Batches, Batches, int]:
    """Training, validation and test batches of shapes, and the number of classes."""
    parts = [shapes(n, triangles, seed) for seed, (n, triangles) in enumerate([(96, False), (32, False), (8, True)])]
    train, validation, test = (list(zip(x.split(8), y.split(8), strict=True)) for x, y in parts)
    return train, validation, test, 3


def real(root: Path) -> tuple[Batches, Batches, Batches, int]:
    """The same of CamVid at an eighth of its size."""
    source = camvid(root, (60, 45), HELD_OUT)
    train, validation, test = (
        list(source.batches(part, 8)) for part in (source.train, source.validation, source.test[:8])
    )
    return train, validation, test, source.classes


def small(classes: int) -> nn.Module:
    """Four convolutions that see 15 x 15 pixels."""
    layers: list[nn.Module] = []
    for inputs, spread in ((3, 1), (24, 2), (24, 4)):
        layers += [nn.Conv2d(inputs, 24, 3, padding=spread, dilation=spread), nn.BatchNorm2d(24), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(24, classes, 1))


def main(epochs: int = 8) -> None:
    """Train, fit, and draw one test image."""
    root = Path(os.environ.get("TRADI_DATA", ""))
    has_camvid = (root / "CamVid").is_dir()
    train, validation, test, classes = real(root) if has_camvid else made()
    torch.manual_seed(0)
    model = tradi.models.enet(classes) if has_camvid else small(classes)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    tracker = tradi.TRADI(model, optimizer)
    for _ in range(epochs):
        for number in torch.randperm(len(train)).tolist():
            x, y = train[number]
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, ignore_index=IGNORED).backward()
            optimizer.step()

    ensemble = tracker.posterior().fit(train, validation).sample(10)
    images, labels = test[0]
    prediction = ensemble.predict(images)
    known = labels >= 0
    print(f"accuracy on pixels of learnt classes: {100 * (prediction.labels == labels)[known].float().mean():.1f}%")
    for name, pixels in (("learnt classes", known), ("others", ~known)):
        print(f"average mutual information on {name}: {prediction.mutual_information[pixels].mean():.4f} nats")

    picture = images[0].permute(1, 2, 0)
    picture = (picture - picture.min()) / (picture.max() - picture.min())
    panels = {
        "image": picture,
        "predicted classes": prediction.labels[0],
        "disagreement": prediction.mutual_information[0],
    }
    plt.rcParams.update(MATPLOTLIB)
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3), layout="constrained")
    for ax, (title, values) in zip(axes, panels.items(), strict=True):
        shown = ax.imshow(values.numpy(), cmap="cividis")
        ax.set_title(title)
        ax.axis("off")
    figure.colorbar(shown, ax=axes[2], label="mutual information, nats")
    figure.savefig("segmentation.png", dpi=150)
    print("drew segmentation.png")


if __name__ == "__main__":
    main()
