"""The report: Markdown tables, figures, and one HTML page that holds both."""

from __future__ import annotations

import base64
import html
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tradi import metrics
from tradi.bench import BENCHMARKS
from tradi.bench.declaration import Declaration, read_declarations
from tradi.bench.evaluation import Pictures
from tradi.bench.files import QUICK, folder_name
from tradi.bench.results import Result, read_pictures, read_results
from tradi.bench.segmentation import SegmentationProblem
from tradi.bench.tables import Overview
from tradi.report import figures
from tradi.report.pictures import panels
from tradi.report.tables import by_problem, in_order, tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GENERATED = (
    "Made by `tradi report results --tables docs/results.md` from the files in `results`, each of which names its "
    "command, seeds, commit and versions. Do not edit."
)
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.5rem 0}th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:right}
th:first-child,td:first-child{text-align:left}td.best{font-weight:700}img{max-width:100%}main{overflow-x:auto}"""


def write_report(folder: Path, out: Path, data: Path | None = None) -> list[Path]:
    """Read a folder of results; write `report.md`, `report.html` and the figures to `out`.

    Args:
        folder: of the results.
        out: folder of the report.
        data: root of the data; where it is given, pictures of predictions stand beside the images themselves.
    """
    results, declarations = _read(folder)
    out.mkdir(parents=True, exist_ok=True)
    made = tables(results, declarations)
    drawn = draw(results, declarations) | draw_pictures(results, declarations, folder, data)
    written = [out / "report.md", out / "report.html"]
    for name, figure in drawn.items():
        written.append(out / f"{name}.png")
        figure.savefig(written[-1])
    images = "\n".join(f"![{name}]({name}.png)" for name in drawn)
    about = _about(results)
    written[0].write_text(
        "# Results\n\n" + about + "\n\n" + "\n".join(t.markdown() for t in made) + "\n" + images + "\n"
    )
    written[1].write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>TRADI results</title><style>{STYLE}</style><main><h1>Results</h1><p>{html.escape(about)}</p>\n"
        + "\n".join(table.html() for table in made)
        + "".join(
            f"<h3>{html.escape(name)}</h3><img alt='{html.escape(name)}' src='{_inline(out / f'{name}.png')}'>"
            for name in drawn
        )
        + "</main></html>\n"
    )
    return written


def write_tables(folder: Path, path: Path) -> Path:
    """Read a folder of results; write its tables alone, as Markdown."""
    results, declarations = _read(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = tables(results, declarations)
    path.write_text(f"# Results\n\n{GENERATED}\n\n" + "\n".join(table.markdown() for table in made))
    return path


def _read(folder: Path) -> tuple[list[Result], dict[str, Declaration]]:
    results = read_results(folder)
    if not results:
        quick = f", or report {folder / QUICK}" if (folder / QUICK).is_dir() else ""
        raise FileNotFoundError(f"no results under {folder}: run `tradi bench NAME --out {folder}` first{quick}")
    return results, read_declarations(folder, dict.fromkeys(result.key.benchmark for result in results))


def draw(results: Sequence[Result], declarations: Mapping[str, Declaration]) -> dict[str, Figure]:
    """By file name: the figure of every overview, and the curves of the first seed and split of other problems.

    A benchmark with an overview compares too many methods for one figure of curves.
    """
    drawn = {}
    overviews = {
        name: table for name, one in declarations.items() for table in one.tables if isinstance(table, Overview)
    }
    for name, table in overviews.items():
        own = in_order([r for r in results if r.key.benchmark == name], declarations[name])
        drawn[name] = figures.ablation(by_problem(own, table), "TRADI")
    others = [r for r in results if r.key.benchmark not in overviews]
    for benchmark, variant in dict.fromkeys((r.key.benchmark, r.key.variant) for r in others):
        own = [r for r in results if (r.key.benchmark, r.key.variant) == (benchmark, variant)]
        own = in_order(own, declarations[benchmark])
        first = min((r.key.seed, r.key.split) for r in own)
        shown = {r.key.method: r.curves for r in own if (r.key.seed, r.key.split) == first}
        for curve in dict.fromkeys(name for curves in shown.values() for name in curves):
            # Markdown ends a link at a blank or a bracket.
            name = folder_name("-".join([benchmark, variant, *curve.split("/")])).replace("_", "-")
            drawn[name] = _draw(curve.split("/")[-1], {m: c[curve] for m, c in shown.items() if curve in c})
    return drawn


def draw_pictures(
    results: Sequence[Result], declarations: Mapping[str, Declaration], folder: Path, data: Path | None
) -> dict[str, Figure]:
    """What methods made of a few test images, for problems of which pictures were kept, by file name."""
    kept: dict[tuple[str, str], dict[str, tuple[Result, Pictures]]] = {}
    for result in results:
        pictures = read_pictures(result.key, folder)
        if pictures is not None:
            methods = kept.setdefault((result.key.benchmark, result.key.variant), {})
            methods[result.key.method] = result, pictures
    drawn = {}
    for (benchmark, variant), methods in kept.items():
        ordered = in_order([result for result, _ in methods.values()], declarations[benchmark])
        scenes = None if data is None else _scenes(ordered, data)
        by_method = {result.key.method: methods[result.key.method][1] for result in ordered}
        for place, index in enumerate(next(iter(by_method.values()))["index"].tolist()):
            beside = None if scenes is None else scenes.view(index)
            drawn[f"{benchmark}-{variant}-image-{index}"] = panels(by_method, place, beside)
    return drawn


def _scenes(results: Sequence[Result], data: Path) -> SegmentationProblem | None:
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
    return problem if isinstance(problem, SegmentationProblem) else None


def _draw(kind: str, curves: dict[str, dict[str, Any]]) -> Figure:
    if kind == "regression_band":
        one = next(iter(curves.values()))
        bands = {
            m: metrics.RegressionBand(**_tensors({k: c[k] for k in ("x", "mean", "sd", "epistemic_sd")}))
            for m, c in curves.items()
        }
        truth, x, y = (torch.tensor(one[name]) for name in ("truth", "train_x", "train_y"))
        return figures.regression_band(bands, truth, x, y)
    if kind == "accuracy_confidence":
        return figures.accuracy_confidence({m: metrics.AccuracyConfidence(**_tensors(c)) for m, c in curves.items()})
    if kind == "calibration":
        return figures.calibration({m: metrics.Calibration(**_tensors(c)) for m, c in curves.items()})
    if kind == "ap_calibration":
        return figures.ap_calibration({m: metrics.APCalibration(**_tensors(c)) for m, c in curves.items()})
    return figures.confidence_histogram({m: metrics.ConfidenceHistogram(**_tensors(c)) for m, c in curves.items()})


def _tensors(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(value) if isinstance(value, list) else value for name, value in fields.items()}


def _about(results: Sequence[Result]) -> str:
    versions = dict.fromkeys(
        f"tradi {r.made_by['tradi']} at {r.made_by.get('commit')}, torch {r.made_by['torch']}" for r in results
    )
    quick = " QUICK RUNS: the numbers say nothing." if any(r.settings["quick"] for r in results) else ""
    commands = ", ".join(dict.fromkeys(f"`{r.made_by['command']}`" for r in results))
    return f"{len(results)} results of {'; '.join(versions)}. Commands: {commands}.{quick}"


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
