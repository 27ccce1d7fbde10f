"""What may stand in a cell of a table: words, a word that stands out, a meter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, element, unbroken, words
from gpumagic.drawing.ink import glyphs_for, ink
from gpumagic.drawing.palette import BLUE, TONES, TRACK, Look, Tone, text_on
from gpumagic.report.units import UNKNOWN

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing.palette import Swatch

_CELLS = 12
_WIDTH_EM = 8
_LONGEST_HELD = 20


def track_html(share: float, fill: str, width_em: int, *, least_em: int = 0) -> Html:
    """A bar on its track, as a gradient: the one picture that CSS draws everywhere.

    In a window too narrow for the table around it, the bar gives way before the
    numbers beside it do.
    """
    share = held(share)
    # As in text, neither end is reached by rounding.
    end = f"{min(max(100 * share, 1.0), 99.0) if 0 < share < 1 else 100 * share:.1f}%"
    # A cell never becomes narrower than a `width` in it, whatever `max-width` says;
    # of a column that may shrink to nothing it asks nothing. Where JupyterLab, before
    # 4.4, drops such columns from what it does not trust, `min-width` is left.
    least = f"min-width:{least_em}em;" if least_em else ""
    return element(
        "span",
        style=f"display:inline-grid;grid-template-columns:minmax(0,{width_em}em);"
        f"{least}height:.9em;border-radius:.15em;vertical-align:-.1em;"
        # A stop before the last one stands where that one does.
        f"background:linear-gradient(90deg,{fill} {end},{TRACK} 0%)",
    )


def _track_ink(share: float, cells: int, options: ConsoleOptions) -> Text:
    """The bar on its track, in whole cells: neither end is reached by rounding."""
    glyphs, share = glyphs_for(options), held(share)
    filled = round(share * cells)
    if 0 < share < 1:
        filled = min(max(filled, 1), cells - 1)
    return Text(glyphs.full * filled + glyphs.empty * (cells - filled))


def held(share: float) -> float:
    """The share held between none and all; what is no number draws nothing."""
    return 0.0 if math.isnan(share) else min(max(share, 0.0), 1.0)


@dataclass(frozen=True)
class Badge:
    """A word with a mark, on a fill: free, busy, simulated."""

    word: str  # what it says; complete without its colour
    tone: Tone = "note"  # how it is meant

    @property
    def look(self) -> Look:
        """Fill, mark and terminal colour of the tone."""
        return TONES[self.tone]

    def html(self) -> Html:
        """The word as dark or light text on the tone's fill."""
        return element(
            "span",
            unbroken(f"{self.look.mark} {self.word}"),
            style=f"background:{self.look.fill};color:{text_on(self.look.fill)};"
            "padding:.1em .5em;border-radius:.3em",
        )

    def ink(self, options: ConsoleOptions) -> Text:
        """The word and its mark as console text."""
        mark = self.look.ascii_mark if options.ascii_only else self.look.mark
        return ink(f"{mark} {self.word}", options, self.look.style)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield self.ink(options)


@dataclass(frozen=True)
class Meter:
    """A bar that is filled to a share, with the numbers beside it."""

    share: float | None  # from 0 to 1; None draws no bar
    text: str  # the numbers. The bar only repeats them.
    # whether the bar is half as long, beside others or much text
    is_short: bool = False

    def html(self) -> Html:
        """The bar and, beside it, the text in the colour around it."""
        if self.share is None:
            return words(self._words())
        bar = track_html(self.share, BLUE, _WIDTH_EM // self._parts)
        return Html(f"{bar} {unbroken(self._words())}")

    def ink(self, options: ConsoleOptions) -> Text:
        """The bar and the text as console text."""
        words = ink(self._words(), options)
        if self.share is None:
            return words
        bar = _track_ink(self.share, _CELLS // self._parts, options)
        return bar.append(" ").append_text(words)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield self.ink(options)

    @property
    def _parts(self) -> int:
        return 2 if self.is_short else 1

    def _words(self) -> str:
        return self.text or UNKNOWN


@dataclass(frozen=True)
class Key:
    """The name of what a picture shows by a colour, a pattern or a letter."""

    swatch: Swatch  # how it is drawn there; its mark may be a letter
    text: str  # its name

    def html(self) -> Html:
        """A patch, and the name.

        The patch is a picture like the one that it explains: where a site takes
        colours from the page, it leaves them in pictures.
        """
        first, *rest = self.text.split(" ", 1)
        held = svg.patch(self.swatch) + Html("\N{NO-BREAK SPACE}") + words(first)
        # A browser would break the line between the two.
        style = "white-space:nowrap" if len(first) <= _LONGEST_HELD else ""
        begun = element("span", Html(held), style=style)
        return Html(" ".join((begun, *map(words, rest))))

    def ink(self, options: ConsoleOptions) -> Text:
        """The letter or character and the name as console text."""
        mark = Text(glyphs_for(options).of(self.swatch), style=self.swatch.style)
        return mark.append(" ").append_text(ink(self.text, options))


Cell = str | Badge | Key | Meter | None
"""None is what could not be found out; it is drawn as "unknown"."""


def cell_html(cell: Cell, *, number: bool = False) -> Html:
    """The cell's content as HTML; a number stays with its unit."""
    if cell is None:
        return words(UNKNOWN)
    if isinstance(cell, Badge | Key | Meter):
        return cell.html()
    return unbroken(cell) if number else words(cell)


def cell_ink(cell: Cell, options: ConsoleOptions) -> Text:
    """The cell's content as console text."""
    if cell is None:
        return ink(UNKNOWN, options, "dim")
    if isinstance(cell, Badge | Key | Meter):
        return cell.ink(options)
    return ink(cell, options)
