"""Formulas become MathML while the site is built: pages need no script and no other host."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """MkDocs calls this with the HTML of every page."""
    return FORMULA.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    return convert(html.unescape(found[3]), "inline" if found[2] == "(" else "block")
