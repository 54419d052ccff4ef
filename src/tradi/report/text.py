"""Text, token by token: the more the members disagree about one, the darker it is."""

from __future__ import annotations

from tradi.report import html, svg
from tradi.report.charts import Curves, Methods
from tradi.report.style import PALETTE

WRAPPED = "white-space:pre-wrap;word-break:break-all;margin:.3em 0"  # a phone is narrower than a line
INK = ",".join(str(int(PALETTE[1][place : place + 2], 16)) for place in (1, 3, 5))


def by_token(curves: Curves, methods: Methods) -> str:
    """The first lines of the first run, one panel per method; all panels have one scale."""
    first = {name: each[0] for name, each in curves.items()}
    most = max(value for one in first.values() for line in one["information"] for value in line) or 1.0
    panels = []
    for name, one in first.items():
        lines = "".join(
            f"<pre style='{WRAPPED}'>{_token(text[0], 0)}"
            + "".join(_token(token, value / most) for token, value in zip(text[1:], values, strict=True))
            + "</pre>"
            for text, values in zip(one["text"], one["information"], strict=True)
        )
        style = methods.styles[name]
        panels.append(
            f"<div class='wide c{style.slot}' data-m={methods.index[name]}>"
            f"<p>{svg.sample(style)}{html.text(name)}</p>{lines}</div>"
        )
    return f"<div>{''.join(panels)}<p class=note>The darkest token has {most:.2f} nats.</p></div>"


def _token(token: str, share: float) -> str:
    shown = html.text("↵" if token == "\n" else token)
    return f"<span style='background:rgba({INK},{share:.2f})'>{shown}</span>"
