"""Pictures of images ranked by how much the members disagree about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tradi.extras import require
from tradi.report import charts
from tradi.report.charts import Curves, Methods
from tradi.report.html import text
from tradi.report.pictures import webp
from tradi.report.style import GREY, VERMILLION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 14  # images of each row


@dataclass(frozen=True)
class Ranking:
    """Images, the least in doubt first.

    Args:
        images: (images, height, width), from 0 to 1.
        labels: what each was taken for.
        information: mutual information, in nats.
        unknown: whether its class was never seen in training.
    """

    images: Tensor
    labels: Tensor
    information: Tensor
    unknown: Tensor

    @property
    def rows(self) -> dict[str, Tensor]:
        """Places of the images to show, by what they have in common."""
        count = len(self.images)
        middle = torch.linspace(0, count - 1, SHOWN + 2)[1:-1].round().long()
        return {
            "least in doubt": torch.arange(SHOWN),
            "evenly through the ranking": middle,
            "most in doubt": torch.arange(count - SHOWN, count),
        }

    @property
    def message(self) -> str:
        """How many of as many images as are unknown, taken from the end of the ranking, are unknown."""
        count = int(self.unknown.sum())
        found = int(self.unknown[len(self.unknown) - count :].sum())
        return f"Of the {count} most in doubt, {found} are digits that were never seen; there are {count} of these."


def figure(ranking: Ranking) -> Figure:
    """Three rows of images; those in an orange frame were never seen in training."""
    module = require("matplotlib.figure", "figures")
    drawn: Figure = module.Figure(figsize=(0.72 * SHOWN, 4.1), layout="constrained", dpi=120)
    parts: Any = drawn.subfigures(len(ranking.rows), 1)
    for part, (name, places) in zip(parts, ranking.rows.items(), strict=True):
        part.suptitle(name.capitalize(), fontsize="medium", x=0.005, ha="left")
        for axes, place in zip(part.subplots(1, SHOWN), places.tolist(), strict=True):
            axes.imshow(ranking.images[place].numpy(), cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
            unknown = bool(ranking.unknown[place])
            axes.spines[:].set(color=VERMILLION if unknown else GREY, linewidth=3 if unknown else 0.6)
            axes.set_xlabel(f"“{ranking.labels[place]}”\n{ranking.information[place]:.3f}", fontsize=7)
    legend = "Orange frame: a digit that was never seen. Below: what it was taken for, and mutual information in nats."
    drawn.supxlabel(legend, fontsize="small")
    return drawn


def drawn(ranking: Ranking, histograms: Curves, methods: Methods) -> str:
    """The same for the page, and histograms of confidence."""
    rows = "".join(
        f"<h4>{text(name.capitalize())}</h4>"
        f"<ol class=ranked>{''.join(_image(ranking, place) for place in places.tolist())}</ol>"
        for name, places in ranking.rows.items()
    )
    note = "Framed: a digit that was never seen. Below: what it was taken for, and mutual information in nats."
    shares = charts.histograms(histograms, methods, "Confidence")
    caption = "Confidence: grey test images, coloured unknown digits and inverted images"
    return f"{rows}<p class=note>{note}</p>" + charts.figure(caption, shares, "wide")


def _image(ranking: Ranking, place: int) -> str:
    pixels = (255 * (1 - ranking.images[place])).round().to(torch.uint8).numpy()
    source = webp(np.repeat(pixels[:, :, None], 3, 2), lossless=True)
    kind = "a digit never seen" if ranking.unknown[place] else "a known digit"
    taken = f"“{ranking.labels[place]}” {ranking.information[place]:.3f}"
    return (
        f"<li{' class=unknown' if ranking.unknown[place] else ''}>"
        f"<img alt='{kind}, taken for {ranking.labels[place]}' src='{source}'><span>{taken}</span></li>"
    )
