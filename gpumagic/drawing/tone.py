"""How good or bad a word is meant: its fill, its mark, its terminal colour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpumagic.drawing import palette

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
    "ok": Look(palette.GREEN, "✓", "+", "green"),
    "note": Look(palette.SKY_BLUE, "i", "i", "cyan"),
    "warning": Look(palette.ORANGE, "!", "!", "yellow"),
    "problem": Look(palette.VERMILLION, "✗", "x", "bold red"),
    "unknown": Look(palette.GREY, "?", "?", "dim"),
}
