"""The report: one HTML page of tables and figures, or the tables alone as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tradi.bench import BENCHMARKS
from tradi.bench.declaration import Declaration, read_declarations
from tradi.bench.files import QUICK
from tradi.bench.results import Result, read_results
from tradi.bench.rounds import CURVE
from tradi.bench.tables import Overview
from tradi.report import charts, html
from tradi.report.cells import Table
from tradi.report.charts import Curves, Methods
from tradi.report.html import text
from tradi.report.learning import learning
from tradi.report.pictures import comparison
from tradi.report.problems import OURS, short_title, spelled
from tradi.report.summary import summary
from tradi.report.tables import BOLD, by_problem, in_order, of_benchmark, tables
from tradi.report.text import by_token
from tradi.storage.atomic import write_whole

GENERATED = (
    "Made by `tradi report results --tables docs/results.md` from the files in `results`, each of which names its "
    "command, seeds, commit and versions. Do not edit."
)
QUICK_RUNS = "QUICK RUNS: the numbers say nothing."
# By the end of a curve's name: its caption, and what draws it.
CHARTS: dict[str, tuple[str, Callable[[Curves, Methods], str]]] = {
    "accuracy_confidence": ("Accuracy above each threshold of confidence", charts.accuracy_confidence),
    "calibration": ("Calibration on test data", charts.calibration),
    "ap_calibration": ("Calibration by precision", charts.ap_calibration),
    CURVE: ("by number of labels: mean over runs and its standard error", learning),
}
# What learning curves are of, where a capital letter is not enough.
SPOKEN = {"nll": "NLL", "ece": "ECE", "rmse": "RMSE", "crps": "CRPS", "nll_mixture": "NLL of the mixture"}
SPOKEN |= {"coverage95": "Coverage of 95% intervals"}
PANELS: dict[str, tuple[str, Callable[[Curves, Methods], str]]] = {
    "confidence_histogram": (
        "Confidence: grey test data, coloured OOD data",
        partial(charts.histograms, xlabel="Confidence"),
    ),
    "information_histogram": (
        "Mutual information: grey test data, coloured OOD data",
        partial(charts.histograms, xlabel="Mutual information, nats"),
    ),
    "by_token": ("Mutual information of each token, of the first lines and seed", by_token),
    "regression_band": ("Predictions of the first seed", partial(charts.bands, size=charts.BAND)),
}


def write_report(folder: Path, out: Path, data: Path | None = None) -> Path:
    """Read a folder of results; write `report.html` to `out`, a page that needs nothing beside itself.

    Args:
        folder: of the results.
        out: folder of the report.
        data: root of the data; where it is given and has them, images and true classes stand beside predictions.
    """
    results, declarations = _read(folder)
    out.mkdir(parents=True, exist_ok=True)
    return write_whole(out / "report.html", page(results, declarations, folder, data))


def write_tables(folder: Path, path: Path) -> Path:
    """Read a folder of results; write its tables alone, as Markdown."""
    results, declarations = _read(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    made = tables(results, declarations)
    path.write_text(f"# Results\n\n{GENERATED}\n\n{BOLD}\n\n" + "\n".join(table.markdown() for table in made))
    return path


def page(
    results: Sequence[Result], declarations: Mapping[str, Declaration], folder: Path, data: Path | None = None
) -> str:
    """The summary, a section per benchmark, and at the end what made the results."""
    ordered = [one for name in _benchmarks(results) for one in in_order(_of(results, name), declarations[name])]
    methods = Methods(list(dict.fromkeys(result.key.method for result in ordered)))
    quick = f"<p class=warning>{QUICK_RUNS}</p>" if any(result.settings["quick"] for result in results) else ""
    sections = [("summary", "Summary", quick + summary(ordered, declarations, methods))]
    for name in _benchmarks(results):
        own = _section(_of(ordered, name), declarations[name], methods, folder, data)
        sections.append((name, declarations[name].title, own))
    sections.append(("provenance", "Provenance", _provenance(ordered, declarations)))
    titles = {name: short_title(one) for name, one in declarations.items()}
    parts = [
        f"<section id='{text(place)}'><h2>{text(title)}</h2>{inner}</section>\n" for place, title, inner in sections
    ]
    contents = [(place, titles.get(place, title)) for place, title, _ in sections]
    return html.page("TRADI: results", contents, "".join(parts))


def _read(folder: Path) -> tuple[list[Result], dict[str, Declaration]]:
    results = read_results(folder)
    if not results:
        quick = f", or report {folder / QUICK}" if (folder / QUICK).is_dir() else ""
        raise FileNotFoundError(f"no results under {folder}: run `tradi bench NAME --out {folder}` first{quick}")
    places = {name: place for place, name in enumerate(BENCHMARKS)}
    results.sort(key=lambda result: places.get(result.key.benchmark, len(places)))
    return results, read_declarations(folder, _benchmarks(results))


def _benchmarks(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(result.key.benchmark for result in results))


def _of(results: Sequence[Result], benchmark: str) -> list[Result]:
    return [result for result in results if result.key.benchmark == benchmark]


def _section(
    results: Sequence[Result], declared: Declaration, methods: Methods, folder: Path, data: Path | None
) -> str:
    """One benchmark: what is of all its variants, then a panel per variant, tables next to their figures."""
    made = of_benchmark(results, declared)
    whole = [html.table(_ours_first(table)) for table in made if table.variant is None]
    parts = [f"<div class=block>{''.join(f'<div class=tabled>{table}</div>' for table in whole)}</div>"]
    overviews = [table for table in declared.tables if isinstance(table, Overview)]
    drawn = [by_problem(results, table) for table in overviews]
    parts += [charts.ablation({spelled(name): one for name, one in each.items()}, OURS) for each in drawn]
    if not overviews and any(result.curves for result in results):
        parts.append(methods.legend(list(dict.fromkeys(result.key.method for result in results))))
    panels: dict[str, str] = {}
    for variant in dict.fromkeys(result.key.variant for result in results):
        own = [result for result in results if result.key.variant == variant]
        # An overview compares too many settings for figures of curves.
        curves = {} if overviews else _curves(own)
        inner = _variant([table for table in made if table.variant == variant], curves, methods)
        panels[spelled(variant)] = inner + comparison(own, folder, data)
    return "".join(parts) + html.tabs(f"Variants of {declared.name}", panels)


def _ours_first(table: Table) -> Table:
    """Where methods stand side by side, TRADI and the paper's figures of it come first: not all fit a window."""
    names = [head.title.removeprefix("paper: ") for head in table.heads]
    order = sorted(range(1, len(names)), key=lambda place: names[place] != OURS)
    heads = [table.heads[0], *(table.heads[place] for place in order)]
    return replace(
        table, heads=heads, rows=[(name, [cells[place - 1] for place in order]) for name, cells in table.rows]
    )


def _variant(made: Sequence[Table], curves: Mapping[str, Curves], methods: Methods) -> str:
    """Each table with the figures that are about the same, such as one OOD set."""
    parts, drawn = [], set()
    for number, table in enumerate(made):
        about = [name for name in curves if name not in drawn and _is_about(name, table.kind, first=number == 0)]
        drawn |= set(about)
        parts.append(_block(table, {name: curves[name] for name in about}, methods))
    rest = {name: found for name, found in curves.items() if name not in drawn}
    return "".join(parts) + _figures(rest, methods)


def _is_about(curve: str, kind: str, *, first: bool) -> bool:
    """Whether a curve, such as "notMNIST/calibration", belongs to a table, such as that against notMNIST."""
    place, _, _ = curve.rpartition("/")
    return first if not place else kind == f"against {place}" or kind.split(" ")[0] == place


def _block(table: Table, curves: Mapping[str, Curves], methods: Methods) -> str:
    title = ", ".join(part for part in (spelled(table.variant or ""), table.kind) if part) or table.title
    return (
        f"<h3>{text(title)}</h3><div class=block><div class=tabled>{html.table(table, title)}</div>"
        f"{_figures(curves, methods)}</div>"
    )


def _figures(curves: Mapping[str, Curves], methods: Methods) -> str:
    found = [(name.rpartition("/"), own) for name, own in curves.items()]
    overlaid = [
        charts.figure(_caption(CHARTS[kind][0], place), CHARTS[kind][1](own, methods))
        for (place, _, kind), own in found
        if kind in CHARTS
    ]
    panels = [
        charts.figure(_caption(PANELS[kind][0], place), PANELS[kind][1](own, methods), "wide")
        for (place, _, kind), own in found
        if kind in PANELS
    ]
    row = f"<div class=charts>{''.join(overlaid)}</div>" if overlaid else ""
    return row + "".join(panels)


def _caption(what: str, place: str) -> str:
    if what.startswith("by "):  # the place is a measure
        return f"{SPOKEN.get(place, place.capitalize())} {what}"
    return f"{what.removesuffix(' on test data')}, with {place}" if place else what


def _curves(results: Sequence[Result]) -> dict[str, Curves]:
    """By the name of a curve: every method's, of all seeds and splits."""
    found: dict[str, dict[str, list[charts.Curve]]] = {}
    for result in results:
        for name, curve in result.curves.items():
            found.setdefault(name, {}).setdefault(result.key.method, []).append(curve)
    return dict(found)


def _provenance(results: Sequence[Result], declarations: Mapping[str, Declaration]) -> str:
    """Folded away: which commands made how many results, at which commits and with which versions."""
    rows = Counter((one.key.benchmark, one.made_by["command"], _versions(one)) for one in results)
    body = "".join(
        f"<tr><th scope=row>{text(name)}</th><td><code>{text(command)}</code></td><td>{text(versions)}</td>"
        f"<td>{count}</td></tr>"
        for (name, command, versions), count in rows.items()
    )
    heads = "".join(f"<th scope=col>{head}</th>" for head in ("benchmark", "command", "versions", "results"))
    table = (
        "<div class=scroll tabindex=0 role=region aria-label='Commands and versions'><table class=commands>"
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    made = [(table.title, table.made) for table in tables(results, declarations) if table.made]
    commits = "".join(f"<li>{text(title)}: {text(commits)}</li>" for title, commits in made)
    return (
        f"<p>{len(results)} result files, each of which names its command, seeds, settings, commit and versions.</p>"
        + html.folded("Commands and versions", table)
        + html.folded("Commits of each table", f"<ul class=commits>{commits}</ul>")
    )


def _versions(result: Result) -> str:
    made = result.made_by
    return f"tradi {made['tradi']} at {str(made.get('commit'))[:12]}, torch {made['torch']}"
