"""A word that stands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.drawing.html import Html, element, unbroken
from gpumagic.drawing.ink import ink
from gpumagic.drawing.palette import text_on
from gpumagic.drawing.tone import TONES, Look, Tone

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text


@dataclass(frozen=True)
class Badge:
    """A word with a mark, on a fill: free, busy, simulated.

    Args:
        word: What it says; complete without its colour.

        tone: How it is meant.
    """

    word: str
    tone: Tone = "note"

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
