"""Pictures of predictions. Of segmentations: what each method sees in an image, and how sure it is, beside a slider."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tradi.bench import BENCHMARKS
from tradi.bench.boxes import DetectionProblem
from tradi.bench.evaluation import Pictures
from tradi.bench.problem import Problem
from tradi.bench.results import Result, read_pictures
from tradi.bench.segmentation import SegmentationProblem
from tradi.extras import require
from tradi.report.boxes import boxed
from tradi.report.html import text
from tradi.report.problems import OURS

SCALE = ((0, 32, 77), (65, 77, 107), (124, 123, 120), (188, 175, 111), (255, 234, 70))  # blue to yellow, for any eye
ABSENT = "The images and their true classes are not shown: tradi report did not find the data (--data)."
UNLABELLED = "without a class", (0, 0, 0)

Image = NDArray[np.uint8]
View = tuple[Image, Image]  # an image and its true classes in colours


def comparison(results: Sequence[Result], folder: Path, data: Path | None) -> str:
    """What methods made of a few test images of one problem, if pictures were kept; of the first seed that has any.

    Args:
        results: of one variant of a benchmark, in the order of its methods.
        folder: of the results.
        data: root of the data; where it is given, the images and their true classes can be chosen too.
    """
    kept: dict[str, Pictures] = {}
    for result in results:
        pictures = None if result.key.method in kept else read_pictures(result.key, folder)
        if pictures is not None:
            kept[result.key.method] = pictures
    if not kept:
        return ""
    problem = None if data is None else _problem([r for r in results if r.key.method in kept], data)
    first = next(iter(kept.values()))
    if "boxes" in first:
        images = {}
        if isinstance(problem, DetectionProblem):
            images = {index: webp(problem.view(index), quality=75) for index in first["index"].tolist()}
        return boxed(kept, images, ABSENT)
    scenes = problem if isinstance(problem, SegmentationProblem) else None
    views = {index: None if scenes is None else scenes.view(index) for index in first["index"].tolist()}
    stacks = "".join(stack(kept, place, view) for place, view in enumerate(views.values()))
    names = [*kept, *([] if scenes is None else ["image", "true classes"])]
    right = OURS if OURS in kept else names[-1]
    choices = (
        ("left", "Left", names, "true classes" if scenes is not None else names[0]),
        ("right", "Right", names, right),
        ("kind", "Show", ["confidence", "predicted classes"], "confidence"),
    )
    absent = f"<p class=note>{text(ABSENT)}</p>" if scenes is None else ""
    return (
        "<div class=comparison><h3>Test images</h3><p class=note>Drag the divider, or move it by the arrow keys. "
        "Red frames are around pixels that are out of distribution.</p>"
        f"<div class=controls>{''.join(_choice(*choice) for choice in choices)}</div>"
        f"<div class=stacks>{stacks}</div>{_legend(first, unlabelled=scenes is not None)}{absent}</div>\n"
    )


def stack(kept: Mapping[str, Pictures], place: int, view: View | None) -> str:
    """Pictures of one image on top of each other, with a slider.

    Args:
        kept: what was kept of each method's predictions.
        place: of the image among those kept.
        view: the image itself and its true classes; None leaves them out.
    """
    first = next(iter(kept.values()))
    height, width = first["labels"].shape[1:]
    layers = []
    for name, one in kept.items():
        layers.append(_layer(name, "confidence", webp(confidence_colours()[one["confidence"][place]], quality=25)))
        layers.append(_layer(name, "predicted classes", webp(first["colours"][one["labels"][place]], lossless=True)))
    if view is not None:
        layers += [
            _layer("image", "", webp(view[0], quality=75)),
            _layer("true classes", "", webp(view[1], lossless=True)),
        ]
    top, left, tall, wide = first["zoom"][place].tolist()
    frame = f"top:{top / height:.2%};left:{left / width:.2%};height:{tall / height:.2%};width:{wide / width:.2%}"
    index = int(first["index"][place])
    slider = (
        f"<input type=range min=0 max=100 value=50 aria-label='Image {index}: share of the left picture, in per cent'>"
    )
    return (
        f"<figure class=stack><div class=layers style='aspect-ratio:{width}/{height}'>{''.join(layers)}"
        f"<span class=hole style='{frame}'></span><span class=divider></span>{slider}</div>"
        f"<figcaption><span>Image {index}</span><span class=names></span></figcaption></figure>"
    )


def _layer(name: str, kind: str, source: str) -> str:
    shown = f"{kind} by {name}" if kind else f"the {name}"
    return f"<img alt='{text(shown)}' data-name='{text(name)}' data-kind='{kind}' src='{source}'>"


def _choice(kind: str, label: str, names: Sequence[str], chosen: str) -> str:
    options = "".join(f"<option{' selected' if name == chosen else ''}>{text(name)}</option>" for name in names)
    return f"<label>{label} <select data-choose={kind}>{options}</select></label>"


def _legend(kept: Pictures, *, unlabelled: bool) -> str:
    classes = [*zip(kept["names"], kept["colours"].tolist(), strict=True), *([UNLABELLED] if unlabelled else [])]
    swatches = "".join(
        f"<li><span class=swatch style='background:rgb({','.join(map(str, colour))})'></span>{text(name)}</li>"
        for name, colour in classes
    )
    ends = ",".join(f"rgb{colour}".replace(" ", "") for colour in SCALE)
    scale = f"<p class=ramp>unsure <span style='background:linear-gradient(90deg,{ends})'></span> sure</p>"
    return f"<div class=classes>{scale}<ul>{swatches}</ul></div>"


def confidence_colours() -> Image:
    """The colour of each of 256 levels of confidence, (levels, 3)."""
    places = np.linspace(0, len(SCALE) - 1, 256)
    channels = [np.interp(places, range(len(SCALE)), channel) for channel in zip(*SCALE, strict=True)]
    return np.stack(channels, 1).round().astype(np.uint8)


def webp(image: Image, **options: Any) -> str:
    """An image as an address that holds all of it."""
    written = io.BytesIO()
    picture = require("PIL.Image", "images").fromarray(np.ascontiguousarray(image))
    picture.save(written, "WEBP", method=6, **options)
    return f"data:image/webp;base64,{base64.b64encode(written.getvalue()).decode()}"


def _problem(results: Sequence[Result], data: Path) -> Problem | None:
    """The problem that results are of, for its images; None where these, and no others, are not to be had."""
    key = results[0].key
    variants = BENCHMARKS[key.benchmark].variants if key.benchmark in BENCHMARKS else ()
    variant = next((variant for variant in variants if variant.name == key.variant), None)
    if variant is None:  # of another version
        return None
    try:
        problem = variant.problem(data, key.split, key.seed, results[0].settings["quick"])
    except FileNotFoundError:
        return None
    except ValueError as error:
        warnings.warn(f"the images of {key.benchmark} below {data} are left out: {error}", stacklevel=2)
        return None
    if any(result.settings.get("data") != problem.about for result in results):
        warnings.warn(
            f"the images of {key.benchmark} below {data} are not those that {key.variant} was evaluated on: they are "
            "left out",
            stacklevel=2,
        )
        return None
    return problem
