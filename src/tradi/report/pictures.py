"""Pictures of segmentations: what each method sees in an image, and how sure it is of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tradi.bench.evaluation import Pictures
from tradi.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 2.6  # inches of a panel
NAME = 1.25  # inches that the name of a class takes in the legend, at the most
FRAME = "#FF2222"  # seen on every confidence and on every class
ABSENT = "The image and its true classes are left out: `tradi report --data` shows them where the data is."

Image = NDArray[np.uint8]


def panels(methods: Mapping[str, Pictures], place: int, beside: tuple[Image, Image] | None) -> Figure:
    """One test image as in the paper's figures: confidence, predicted classes and a closer look, one column a method.

    Args:
        methods: what was kept of each method's predictions.
        place: of the image among those kept.
        beside: the image itself and its true classes in colours, for a column of their own; None leaves it out.
    """
    first = next(iter(methods.values()))
    zoom = first["zoom"][place].tolist()
    height, width = first["labels"].shape[1:]
    columns = len(methods) + (beside is not None)
    module = require("matplotlib.figure", "figures")
    size = (WIDTH * columns + 0.8, 3 * WIDTH * height / width + 1.4)
    figure: Figure = module.Figure(figsize=size, layout="constrained", dpi=100)
    grid = figure.subplots(3, columns, squeeze=False)
    if beside is not None:
        image, truth = beside
        _column(grid[:, 0], "Image, true classes", [image, truth, _cut(image, zoom)], zoom)
    for axes, (name, kept) in zip(grid[:, columns - len(methods) :].T, methods.items(), strict=True):
        confidence = kept["confidence"][place] / 255
        classes = first["colours"][kept["labels"][place]]
        _column(axes, name, [confidence, classes, _cut(confidence, zoom)], zoom)
    figure.colorbar(grid[0, -1].images[0], ax=grid[[0, 2], -1].tolist(), label="Confidence", shrink=0.8)
    _legend(figure, first)
    if beside is None:
        figure.supxlabel(ABSENT, fontsize="small")
    return figure


def _column(axes: Any, title: str, images: list[NDArray[Any]], zoom: list[int]) -> None:
    for one, image in zip(axes, images, strict=True):
        one.imshow(image, vmin=0, vmax=1, cmap="viridis", interpolation="nearest")
        one.set_axis_off()
    axes[0].set_title(title, fontsize="medium")
    for one in axes[:2]:
        _frame(one, zoom)


def _frame(axes: Axes, zoom: list[int]) -> None:
    patches = require("matplotlib.patches", "figures")
    top, left, height, width = zoom
    axes.add_patch(
        patches.Rectangle((left - 0.5, top - 0.5), width, height, fill=False, edgecolor=FRAME, linewidth=1.5)
    )


def _cut(image: NDArray[Any], zoom: list[int]) -> NDArray[Any]:
    top, left, height, width = zoom
    return image[top : top + height, left : left + width]


def _legend(figure: Figure, kept: Pictures) -> None:
    patches = require("matplotlib.patches", "figures")
    handles = [
        patches.Patch(color=(colour / 255).tolist(), label=str(name))
        for name, colour in zip(kept["names"], kept["colours"], strict=True)
    ]
    columns = max(1, int(figure.get_figwidth() / NAME))
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False, fontsize="small")
