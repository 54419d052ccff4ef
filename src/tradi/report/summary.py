"""What a page opens with: where TRADI is ahead and where it is behind, and what each method costs; all is derived."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tradi.bench.declaration import Declaration
from tradi.bench.results import Result
from tradi.report import html, svg
from tradi.report.cells import Cell, Head, Table
from tradi.report.charts import Methods
from tradi.report.compare import deviation, mean
from tradi.report.html import text
from tradi.report.problems import DETECTION, LIKELIHOOD, OURS, Problem, problems
from tradi.report.style import FIRST, Style, is_first, known
from tradi.report.tables import BOLD, time

STRIP = 280, 46
LANES = 6
EVERYTHING = 100.0  # no AUC is above it
# A question, what it is about in two words, and how it is answered.
QUESTIONS = {
    DETECTION: (
        "Does it notice the unknown?",
        "detecting the unknown",
        "How often an input from elsewhere gets a higher score than a familiar one (AUC, %): 50 is chance, 100 is "
        "always. The score is mutual information, or one minus the confidence where there is a single network.",
    ),
    LIKELIHOOD: (
        "Are its probabilities right?",
        "probabilities",
        "Negative log-likelihood of the truth (NLL, nats per target): lower is better.",
    ),
}
UNITS = (
    "Time until it predicts: training, tracking, and what comes after training, in units of one training of the same "
    "network without tracking. Medians over the runs of a benchmark, and then over benchmarks."
)
VERDICTS = {"ahead": "Ahead of every rival", "level": "Level with the best rival", "behind": "Behind a rival"}
CONTROL = "tradinothingtracked"
LEAD = (
    "TRADI makes an ensemble out of one training run. Here it is compared with the same network alone, with a Deep "
    "Ensemble (several networks, each trained from scratch), and with other methods."
)
COSTS = "What does it cost?"
# The two that a reader asks about first.
ASKED = {"singlenetwork": "the single network", "deepensemble": "a Deep Ensemble"}
IN_TABLES = f"In tables, {BOLD[0].lower()}{BOLD[1:]}"
SCALES = "Every row has a scale of its own, better to the right; a triangle at the left end is further off."
ABOUT = (
    "Ahead and behind mean: by more than the standard deviation of the difference, run by run, over seeds and splits. "
    "Anything less, and all single runs, is level. Bars are one standard deviation."
)


def summary(results: Sequence[Result], declarations: Mapping[str, Declaration], methods: Methods) -> str:
    """The opening: the score against each rival, a figure of all problems, and the costs."""
    compared = problems(results, declarations)
    names = list(dict.fromkeys(name for one in compared for name in one.numbers))
    parts = [f"<p class=lead>{LEAD}</p>"]
    if compared:
        benchmarks = {one.benchmark for one in compared}
        paid = costs([result for result in results if result.key.benchmark in benchmarks], names)
        if any(one.verdict for one in compared):
            parts += [_answers(compared, paid), _scores(compared, paid), _places(compared)]
        parts += [
            f"<p class=note>{text(f'{ABOUT} {SCALES} {IN_TABLES}')}</p>",
            methods.legend(names),
            "<div class=questions>",
        ]
        for question, (title, _, about) in QUESTIONS.items():
            own = [one for one in compared if one.question == question]
            if own:
                parts.append(_figure(title, about, own, methods))
        parts += [_costs(paid), "</div>"]
    return "".join(parts)


def rivals(compared: Sequence[Problem]) -> dict[str, list[tuple[Problem, str]]]:
    """By a name for all sizes of an ensemble: the problems on which TRADI meets a well-known method or the control."""
    found: dict[str, list[tuple[Problem, str]]] = {}
    for one in compared:
        for name in one.numbers:
            if known(name) != known(OURS) and (is_first(name) or known(name) == CONTROL) and one.lead(name):
                found.setdefault(name.partition(" of ")[0], []).append((one, name))
    order = [*reversed(FIRST), CONTROL]
    return dict(sorted(found.items(), key=lambda item: order.index(known(item[0]))))


def score(met: Sequence[tuple[Problem, str]], question: str) -> tuple[int, int, int]:
    """On how many problems of a question TRADI is ahead of a rival, level with it, and behind it."""
    leads = [one.lead(name) for one, name in met if one.question == question]
    ahead = sum(found is not None and found.ahead for found in leads)
    behind = sum(found is not None and found.behind for found in leads)
    return ahead, len(leads) - ahead - behind, behind


def _answers(compared: Sequence[Problem], paid: Table) -> str:
    """Per question, on how many problems TRADI is better and worse than whom a reader asks about first; and costs."""
    times = _times_of(paid)
    met = {known(name): (name, found) for name, found in rivals(compared).items() if known(name) in ASKED}
    cards = []
    for question, (title, _, _) in QUESTIONS.items():
        counts = [(ASKED[key], score(found, question)) for key, (_, found) in met.items()]
        lines = [_line(whom, found) for whom, found in counts if sum(found)]
        if lines:
            cards.append(f"<li><strong>{title}</strong>{''.join(lines)}</li>")
    paying = [(OURS, OURS), *((name, ASKED[key]) for key, (name, _) in met.items())]
    took = "".join(f"<p>{whom}: {_in_words(times[name])}</p>" for name, whom in paying if name in times)
    cards.append(f"<li><strong>{COSTS}</strong>{took}</li>" if took else "")
    return f"<ul class=answers>{''.join(cards)}</ul>\n" if met else ""


def _line(whom: str, counts: tuple[int, int, int]) -> str:
    ahead, level, behind = counts
    return (
        f"<p>Against {whom}: better on <b class=ahead>{ahead}</b> of {ahead + level + behind} problems, level on "
        f"<b class=level>{level}</b>, worse on <b class=behind>{behind}</b></p>"
    )


def _times_of(paid: Table) -> dict[str, list[float]]:
    """By a name for all sizes of an ensemble: time until it predicts, in trainings, on every benchmark."""
    found: dict[str, list[float]] = {}
    for name, cells in paid.rows:
        own = [cell.value for cell in cells[2:] if cell.value is not None]
        if own:
            found.setdefault(name.partition(" of ")[0] if is_first(name) else name, []).extend(own)
    return found


def _in_words(times: Sequence[float]) -> str:
    """The median, and the range over benchmarks."""
    middle, low, high = (_short(value) for value in (statistics.median(times), min(times), max(times)))
    around = f" ({low} to {high}, by benchmark)" if low != high else ""
    return f"<b>{middle}</b> training{'' if middle == '1' else 's'}{around}"


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _places(compared: Sequence[Problem]) -> str:
    """Where TRADI wins and where it loses, against all well-known methods at once."""
    judged = [(one, one.verdict.kind) for one in compared if one.verdict]
    items = []
    for kind, title in VERDICTS.items():
        own = [one for one, found in judged if found == kind]
        places = [
            f"<p><i>{what}:</i> {_listed([one for one in own if one.question == question])}</p>"
            for question, (_, what, _) in QUESTIONS.items()
            if any(one.question == question for one in own)
        ]
        count = f"<span>{len(own)} of {len(judged)} problems</span>"
        items.append(f"<li class={kind}><strong>{title}</strong> {count}{''.join(places)}</li>")
    return f"<ul class=verdicts>{''.join(items)}</ul>\n"


def _listed(own: Sequence[Problem]) -> str:
    by_title: dict[str, list[str]] = {}
    for one in own:
        by_title.setdefault(one.title, []).append(one.name)
    return "; ".join(f"<b>{text(title)}</b> ({text(' · '.join(names))})" for title, names in by_title.items())


def _scores(compared: Sequence[Problem], paid: Table) -> str:
    """One row per rival: on how many problems TRADI is ahead, level and behind, and what the rival costs."""
    times = _times_of(paid)
    longest = max((statistics.median(each) for each in times.values()), default=1.0)
    rows = [_score_row(OURS, ["", ""], times[OURS], longest)] if OURS in times else []
    for name, met in rivals(compared).items():
        bars = [_bar(score(met, question)) for question in QUESTIONS]
        rows.append(_score_row(name, bars, times.get(name, ()), longest))
    heads = "".join(f"<th scope=col>{text(title)}</th>" for title in (*(each[0] for each in QUESTIONS.values()), COSTS))
    return (
        "<div class='scroll whole' tabindex=0 role=region aria-label='TRADI against each rival'><table class=scores>"
        "<caption>TRADI against each rival: on how many problems it is "
        "<span class=ahead>ahead</span>, <span class=level>level</span> and <span class=behind>behind</span>, and what "
        "each costs, in trainings of one network</caption>"
        f"<thead><tr><th scope=col>method</th>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>\n"
    )


def _score_row(name: str, bars: Sequence[str], times: Sequence[float], longest: float) -> str:
    cost = ""
    if times:
        middle = statistics.median(times)
        cost = f"<div class=cost><span style='width:{80 * middle / longest:.0f}%'></span>{_short(middle)}</div>"
    cells = "".join(f"<td>{inner}</td>" for inner in (*bars, cost))
    return f"<tr{html.OURS if name == OURS else ''}><th scope=row>{text(name)}</th>{cells}</tr>"


def _bar(counts: tuple[int, int, int]) -> str:
    if not sum(counts):
        return ""
    parts = "".join(
        f"<span class={kind} style='flex:{count}'>{count}<span class=unseen> {kind}</span></span>"
        for kind, count in zip(("ahead", "level", "behind"), counts, strict=True)
        if count
    )
    return f"<div class=bar>{parts}</div>"


def _figure(title: str, about: str, compared: Sequence[Problem], methods: Methods) -> str:
    """A row per problem: its name, all methods with error bars, and how TRADI fares."""
    rows, benchmark = [], ""
    for one in compared:
        if one.benchmark != benchmark:
            benchmark = one.benchmark
            rows.append(f"<h4><a href='#{text(benchmark)}'>{text(one.title)}</a></h4>")
        rows.append(
            f"<div class=row><span class=what>{text(one.name)}</span>{_strip(one, methods)}{_verdict(one)}</div>"
        )
    return (
        f"<section class=question><h3>{text(title)}</h3><p class=note>{text(about)}</p>"
        f"<div class=strips>{''.join(rows)}</div></section>\n"
    )


def _verdict(one: Problem) -> str:
    found = one.verdict
    if found is None:
        return "<span class=verdict></span>"
    return f"<span class='verdict {found.kind}' title='{text(found.full)}'>{text(found.short)}</span>"


def _ends(one: Problem) -> tuple[float, float]:
    """The worst and the best of the well-known methods; one that is three times as far off as the others is cut off."""
    sign = 1 if one.column.higher else -1
    everyone = {name: mean(own) for name, own in one.numbers.items()}
    shown = [value for name, value in everyone.items() if is_first(name)] or [*everyone.values()]
    best = max(shown, key=lambda value: sign * value)
    far = sorted(abs(best - value) for value in shown)
    reach = 1.5 * far[-2] if len(far) > 2 and far[-1] > 3 * far[-2] > 0 else far[-1]
    reach = reach or abs(best) or 1.0
    high = best + sign * 0.1 * reach
    return best - sign * 1.05 * reach, min(high, EVERYTHING) if one.question == DETECTION else high


def _strip(one: Problem, methods: Methods) -> str:
    width, height = STRIP
    plot = svg.Plot(8, 2, width - 16, height - 16, (0, 1), (0, LANES))
    low, high = _ends(one)
    order = sorted(one.numbers, key=lambda name: not is_first(name))
    parts = [f"<rect class=ground x=2 y=0 width={width - 4} height={height - 12} rx=4 />"]
    for place, name in enumerate(order):
        lane, own = LANES - 0.5 - place % LANES, one.numbers[name]
        around, value = deviation(own) or 0.0, mean(own)
        places = [(end - low) / (high - low) for end in (value - around, value, value + around)]
        parts.append(methods.draw(name, _dot(plot, lane, places)))
    for x, anchor, value in ((8.0, "start", low), (width - 8.0, "end", high)):
        parts.append(svg.words(x, height - 3, f"{value:.{min(one.column.digits, 3)}f}".replace("-", "−"), anchor))
    listed = "; ".join(f"{name} {mean(own):.{one.column.digits}f}" for name, own in one.numbers.items())
    return svg.drawing(*STRIP, f"{one.column.title}: {listed}", parts)


def _dot(plot: svg.Plot, lane: float, places: Sequence[float]) -> Callable[[Style], str]:
    low, middle, high = (min(max(place, 0.0), 1.0) for place in places)

    def draw(style: Style) -> str:
        if not 0 <= places[1] <= 1:
            style = Style(style.slot, 0, 4)
        bar = svg.stroke(plot.line([(low, lane), (high, lane)]), kind="error")
        return bar + svg.markers(style, [plot.place(middle, lane)])

    return draw


def _costs(paid: Table) -> str:
    """All methods; the benchmarks one by one are folded away."""
    whole = replace(paid, heads=paid.heads[:3], rows=[(name, cells[:2]) for name, cells in paid.rows])
    heads = [paid.heads[0], *paid.heads[3:]]
    each = Table("Time until it predicts, in trainings", heads, [(name, cells[2:]) for name, cells in paid.rows])
    folded = html.folded("By benchmark", html.table(each))
    return f"<section class=question><h3>{COSTS}</h3>{html.table(whole)}{folded}</section>\n"


def costs(results: Sequence[Result], names: Sequence[str]) -> Table:
    """Networks that are trained, and the time until a method can predict, in units of one training, by benchmark."""
    benchmarks = list(dict.fromkeys(result.key.benchmark for result in results))
    heads = [Head(""), Head("networks trained", False), Head("time until it predicts, in trainings", False)]
    heads += [Head(benchmark, False) for benchmark in benchmarks]
    rows = []
    for name in names:
        own = [result for result in results if result.key.method == name]
        trained = [len(result.notes["steps"]) for result in own if result.notes.get("steps")]
        cells = [time([one for one in own if one.key.benchmark == benchmark]) for benchmark in benchmarks]
        medians = [cell.value for cell in cells if cell.value is not None]
        whole = Cell(statistics.median(medians)) if medians else Cell()
        rows.append((name, [Cell(statistics.fmean(trained), digits=0) if trained else Cell(), whole, *cells]))
    return Table("Cost of each method", heads, rows, UNITS)
