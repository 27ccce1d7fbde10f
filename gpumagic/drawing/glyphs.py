"""The characters that text forms draw with, and what stands in for them in ASCII."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import ConsoleOptions


@dataclass(frozen=True)
class Glyphs:
    """One set of drawing characters, each one cell wide."""

    full: str
    empty: str
    parts: str
    """What ends a bar, from the thinnest on; empty if a bar has whole cells only."""

    levels: str
    """A curve's heights, from the lowest on."""

    kinds: str
    """Kinds of spans, told apart without colour; the last is for all others."""

    gap: str
    rule: str


UNICODE = Glyphs(
    full="█",
    empty="░",
    parts="▏▎▍▌▋▊▉",
    levels="▁▂▃▄▅▆▇█",
    kinds="█▓▒░▚",
    gap="·",
    rule="─",
)
ASCII = Glyphs(
    full="#", empty="-", parts="", levels="_.-=+*%#", kinds="#=+o%", gap=".", rule="-"
)


def glyphs_for(options: ConsoleOptions) -> Glyphs:
    """The set that this console can encode."""
    return ASCII if options.ascii_only else UNICODE
