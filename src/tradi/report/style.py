"""How a method looks in every figure: colour, dashes and marker, told apart with any colour vision and in print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Okabe and Ito's palette. A violet, a brown and an olive stand in for their yellow, which is too faint on white.
BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY, BLACK, VIOLET, BROWN, OLIVE = PALETTE = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#6A3D9A", "#8C510A", "#7F7F2A"),
)
# The same on a dark page: three to one against it at least.
DARK = ("#4FA8E0", "#F2803A", "#2CC295", "#E3A1C6", "#F0B53A", "#8FD0F5", "#F0F0F0", "#B79AE0", "#D49A4E", "#C2C25A")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#6B6B6B"
# What matplotlib draws looks like the rest: `pyplot.rcParams.update(MATPLOTLIB)`, or `rc_context(MATPLOTLIB)`.
MATPLOTLIB = {
    "font.size": 10,
    "axes.prop_cycle": f"cycler(color={list(PALETTE)})",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Style:
    """One method's.

    Args:
        slot: of the palette.
        dash: which of `DASHES`.
        marker: which of `MARKERS`.
    """

    slot: int
    dash: int
    marker: int

    @property
    def colour(self) -> str:
        return PALETTE[self.slot]


# By family, then by what follows the name: a family has one colour, its members other dashes and markers.
KNOWN: dict[str, Style] = {
    "tradi": Style(0, 0, 0),
    "tradiasinthepaper": Style(0, 1, 3),
    "tradiasreleased": Style(0, 2, 4),
    "tradinothingtracked": Style(5, 1, 0),
    "multitradi": Style(7, 0, 2),
    "deepensemble": Style(1, 1, 1),
    "deepensemblerecalibrated": Style(1, 3, 3),
    "mcdropout": Style(2, 2, 2),
    "swag": Style(3, 3, 3),
    "gaussianperturbation": Style(4, 0, 4),
    "singlenetwork": Style(6, 0, 5),
    "singlenetworkrecalibrated": Style(6, 1, 6),
    "singlenetworkenergy": Style(6, 2, 0),
    "singlenetworkmahalanobis": Style(6, 3, 1),
    "singlenetworkknn": Style(6, 1, 2),
    "singlenetworkrandom": Style(6, 3, 4),
    "singlenetworkconfidence": Style(6, 0, 0),
    "deepensemblerandom": Style(1, 2, 5),
    "tradirandom": Style(0, 3, 1),
    "tradiwithaprior": Style(7, 0, 0),
    "fromscratch": Style(6, 2, 3),
    "tradibatchbald": Style(7, 1, 5),
    "laplacelastlayer": Style(8, 1, 6),
    "ivon": Style(9, 2, 1),
    "exactgp": Style(2, 0, 2),
}
ALIASES = {"mcp": "singlenetwork", "maximumprobability": "singlenetwork", "deepensembles": "deepensemble"}
# What a reader is shown before anything is chosen.
FIRST = ("tradi", "deepensemble", "mcdropout", "swag", "gaussianperturbation", "singlenetwork")


def known(name: str) -> str:
    """A method's name without blanks, case, and the size of its ensemble: its runs at other sizes are alike."""
    words = name.replace(",", " ").replace(":", " ").replace("-", "").split()
    if "of" in words and words[words.index("of") + 1 :][:1] and words[words.index("of") + 1].isdigit():
        place = words.index("of")
        del words[place : place + 2]
    key = "".join(character for word in words for character in word if character.isalnum()).lower()
    return ALIASES.get(key, key)


def same(name: str, other: str) -> bool:
    """Whether two names are of one method, such as the paper's and ours."""
    return known(name) == known(other)


def is_first(name: str) -> bool:
    """Whether figures show a method before anything is chosen."""
    return known(name) in FIRST


def styles(names: Iterable[str]) -> dict[str, Style]:
    """The style of each method: a known one has its own everywhere, the others take turns through all the rest."""
    keys = {name: known(name) for name in names}
    taken = {KNOWN[key] for key in keys.values() if key in KNOWN}
    turns = len(DASHES) * len(PALETTE)
    free = (
        style
        for turn in range(turns)
        if (style := Style((7 + turn) % len(PALETTE), turn // len(PALETTE), turn % len(MARKERS))) not in taken
    )
    found: dict[str, Style] = {}
    others: dict[str, Style] = {}
    for name, key in keys.items():
        if key not in KNOWN and key not in others:
            others[key] = next(free, Style(6, 3, len(others) % len(MARKERS)))
        found[name] = KNOWN[key] if key in KNOWN else others[key]
    return found
