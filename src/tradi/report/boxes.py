"""Pictures of detections: every object's box, and at two of its corners the ellipse of where members put them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from tradi.bench.evaluation import Pictures
from tradi.detection import ellipse
from tradi.report.html import text
from tradi.report.style import PALETTE

DEVIATIONS = 2.0  # that a half axis of an ellipse is long


def boxed(kept: Mapping[str, Pictures], views: Mapping[int, str], absent: str) -> str:
    """What methods found in a few test images, one row of pictures a method.

    Args:
        kept: what was kept of each method's objects.
        views: addresses of the images themselves, by their number; empty where they are left out.
        absent: what is said then.
    """
    first = next(iter(kept.values()))
    names = first["names"].tolist()
    rows = "".join(
        f"<h4>{text(method)}</h4><div class=stacks>"
        + "".join(picture(one, index, views.get(index)) for index in one["index"].tolist())
        + "</div>"
        for method, one in kept.items()
    )
    swatches = "".join(
        f"<li><span class=swatch style='background:{PALETTE[place % len(PALETTE)]}'></span>{text(name)}</li>"
        for place, name in enumerate(names)
    )
    return (
        "<div class=comparison><h3>Test images</h3><p class=note>Boxes are the members' mean, the fainter the lower "
        f"their score. Ellipses hold {DEVIATIONS:g} standard deviations of the members' corners; one network has none. "
        "Point at a box to read its score, how many members saw it, and its OOD score.</p>"
        f"{rows}<div class=classes><ul>{swatches}</ul></div>"
        f"{'' if views else f'<p class=note>{text(absent)}</p>'}</div>\n"
    )


def picture(kept: Pictures, index: int, view: str | None) -> str:
    """One image with what a method found in it.

    Args:
        kept: of the method.
        index: number of the image.
        view: address of the image itself; None leaves it out.
    """
    height, width = kept["size"].tolist()
    ground = "" if view is None else f"<image href='{view}' width='{width}' height='{height}'/>"
    objects = "".join(_object(kept, place) for place in np.flatnonzero(kept["image"] == index).tolist())
    return (
        f"<figure><svg viewBox='0 0 {width} {height}' role=img aria-label='Objects in image {index}' "
        f"style='width:100%;background:var(--soft)'>{ground}{objects}</svg><figcaption>Image {index}</figcaption>"
        "</figure>"
    )


def _object(kept: Pictures, place: int) -> str:
    x0, y0, x1, y1 = kept["boxes"][place].tolist()
    label, score = int(kept["labels"][place]), float(kept["scores"][place])
    said = (
        f"{kept['names'][label]}, score {score:.2f}, seen by {int(kept['seen'][place])} of {int(kept['members'][0])}, "
        f"OOD score {float(kept['ood_score'][place]):.2f}"
    )
    corners = ((x0, y0, kept["covariance"][place, :2, :2]), (x1, y1, kept["covariance"][place, 2:, 2:]))
    return (
        f"<g fill=none stroke='{PALETTE[label % len(PALETTE)]}' opacity='{0.3 + 0.7 * score:.2f}'>"
        f"<title>{text(said)}</title>"
        f"<rect x='{x0:.1f}' y='{y0:.1f}' width='{x1 - x0:.1f}' height='{y1 - y0:.1f}' pointer-events=all />"
        f"{''.join(_ellipse(*corner) for corner in corners)}</g>"
    )


def _ellipse(x: float, y: float, covariance: NDArray[np.float32]) -> str:
    axes, angle = ellipse(torch.from_numpy(covariance), DEVIATIONS)
    long, short = axes.tolist()
    if long == 0:
        return ""
    turn = f"rotate({angle.item():.1f} {x:.1f} {y:.1f})"
    return f"<ellipse cx='{x:.1f}' cy='{y:.1f}' rx='{long:.2f}' ry='{short:.2f}' transform='{turn}'/>"
