"""The colours of every view: Okabe and Ito's eight, neutrals, and the tones they set.

Okabe-Ito colours stay apart for colour-blind readers and on a washed-out
projector. Still, no view says anything by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLACK = "#000000"
WHITE = "#FFFFFF"
ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
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
