"""Formulas become MathML while the site is built, without scripts or other hosts; a number stays with its deviation."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """MkDocs calls this with the HTML of every page."""
    return FORMULA.sub(_mathml, content).replace(" ± ", "&nbsp;±&nbsp;")


def _mathml(found: re.Match[str]) -> str:
    if found[2] == "(":
        return convert(html.unescape(found[3]), "inline")
    return f'<div class="formula">{convert(html.unescape(found[3]), "block")}</div>'
