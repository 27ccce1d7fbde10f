"""The colours of every view: one for each meaning, Okabe and Ito's eight, neutrals.

Both stay apart for colour-blind readers, and those of meanings in grey as well, if
need be by a pattern. Still, no view says anything by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

BLACK = "#000000"
WHITE = "#FFFFFF"
ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#767676"

# These stand alone as bars and spans: each has a contrast of at least 3:1 both
# against white and against #111. The other Okabe-Ito colours do not (a test
# holds both halves), so they carry text or are not used.
FILLS = (BLUE, VERMILLION, GREEN, PURPLE)

# Neutrals are grey let through by the theme, hence visible on white and on black.
TRACK = "#7F7F7F38"
RULE = "#7F7F7F8C"

# sRGB is linear near black.
_LINEAR_UP_TO = 0.04045


def text_on(fill: str) -> str:
    """Black or white, whichever reads better on the fill.

    >>> text_on(BLUE), text_on(ORANGE)
    ('#FFFFFF', '#000000')
    """
    return max((BLACK, WHITE), key=lambda ink: contrast(ink, fill))


def contrast(one: str, other: str) -> float:
    """The WCAG contrast ratio of two colours, from 1 to 21.

    >>> round(contrast(BLACK, WHITE), 1)
    21.0
    """
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (
        _linear(int(colour[start : start + 2], 16) / 255) for start in (1, 3, 5)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    if channel <= _LINEAR_UP_TO:
        return channel / 12.92
    return float(((channel + 0.055) / 1.055) ** 2.4)


Pattern = Literal[
    "", "stripes", "counterstripes", "dots", "rows", "columns", "grid", "hatches"
]


@dataclass(frozen=True)
class Swatch:
    """How one kind of thing is drawn, wherever it is drawn."""

    name: str
    """Said aloud, and shown where pictures are not."""

    fill: str
    pattern: Pattern
    """What lies on the fill; hatches let half of what is behind it through."""

    mark: str
    ascii_mark: str

    @property
    def style(self) -> str:
        """The fill for a terminal, which has nothing half transparent."""
        return self.fill if self.fill != TRACK else ""


# Of those without a pattern, and of those with the same one, each is told from each
# by its lightness alone, and by its colour whatever colours a reader sees.
FREE = "free"
MEANINGS = {
    "host code": Swatch("slate", "#7E8199", "", "▒", "="),
    "launch": Swatch("violet, striped", "#7148C8", "stripes", "▞", "+"),
    "host waits": Swatch("red, dotted", "#C8362C", "dots", "░", "~"),
    "kernel": Swatch("blue", "#1356DC", "", "█", "#"),
    "copy": Swatch("orange", "#DF7916", "", "▓", "o"),
    "communication": Swatch("magenta, lined", "#B5478F", "rows", "▚", "%"),
    "waits for others": Swatch("light red, ribbed", "#D9534A", "columns", "╌", "-"),
    "in use": Swatch("green", "#238151", "", "█", "#"),
    "cached": Swatch("light green, striped", "#5B9000", "stripes", "▒", "="),
    "others": Swatch("grey, dotted", "#8A8A8A", "dots", "▚", "o"),
    FREE: Swatch("empty", TRACK, "", "·", "."),
    "perhaps busy": Swatch("grey, hatched", GREY, "hatches", "▨", "/"),
}

# For what has no meaning of those; the last is for all kinds beyond.
SPARE = (
    Swatch("teal, striped", "#0B7285", "counterstripes", "▤", "1"),
    Swatch("ochre, striped", "#A87B00", "counterstripes", "▥", "2"),
    Swatch("mauve, checked", "#9C4682", "grid", "▦", "3"),
    Swatch("olive, checked", "#7C8C2E", "grid", "▩", "4"),
    Swatch("tan, lined", "#A58A45", "rows", "◆", "5"),
)

# Of many of one kind that lie on each other: a letter names each, in the picture too,
# and those that come first, as a rule the largest, have no pattern.
_LAYER_FILLS = (("blue", "#1067A1"), ("ochre", "#BF8630"), ("rose", "#C75073"))
_LAYER_PATTERNS: tuple[tuple[str, Pattern], ...] = (
    ("", ""),
    (", striped", "stripes"),
    (", dotted", "dots"),
    (", lined", "rows"),
)
LAYERS = tuple(
    Swatch(f"{name}{how}", fill, pattern, letter, letter)
    for letter, ((how, pattern), (name, fill)) in zip(
        "ABCDEFGHIJKL", product(_LAYER_PATTERNS, _LAYER_FILLS), strict=True
    )
)
BEFORE = Swatch("grey, striped", GREY, "counterstripes", "=", "=")
TOGETHER = Swatch("grey, checked", GREY, "grid", "+", "+")


def swatches(kinds: Iterable[str]) -> dict[str, Swatch]:
    """How each kind in a picture is drawn: as its meaning is, or as what is left.

    >>> [each.name for each in swatches(["load", "copy"]).values()]
    ['teal, striped', 'orange']
    """
    left = iter(SPARE[:-1])
    return {
        kind: MEANINGS.get(kind) or next(left, SPARE[-1])
        for kind in dict.fromkeys(kinds)
    }


Tone = Literal["ok", "note", "warning", "problem", "unknown"]


@dataclass(frozen=True)
class Look:
    """What a tone looks like. The mark says it again for those who see no colour."""

    fill: str
    mark: str
    ascii_mark: str
    style: str
    """A colour of the terminal's own theme, which its owner can read."""


TONES: dict[Tone, Look] = {
    "ok": Look(GREEN, "✓", "+", "green"),
    "note": Look(SKY_BLUE, "i", "i", "cyan"),
    "warning": Look(ORANGE, "!", "!", "yellow"),
    "problem": Look(VERMILLION, "✗", "x", "bold red"),
    "unknown": Look(GREY, "?", "?", "dim"),
}
