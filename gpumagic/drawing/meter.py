"""How full something is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.drawing.html import Html, unbroken, words
from gpumagic.drawing.ink import ink
from gpumagic.drawing.palette import BLUE
from gpumagic.drawing.track import track_html, track_ink
from gpumagic.units import UNKNOWN

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text

_CELLS = 12
_WIDTH_EM = 8


@dataclass(frozen=True)
class Meter:
    """A bar that is filled to a share, with the numbers beside it.

    Args:
        share: From 0 to 1; None draws no bar.

        text: The numbers. The bar only repeats them.
    """

    share: float | None
    text: str

    def html(self) -> Html:
        """The bar and, beside it, the text in the colour around it."""
        if self.share is None:
            return words(self._words())
        bar = track_html(self.share, BLUE, _WIDTH_EM)
        return Html(f"{bar} {unbroken(self._words())}")

    def ink(self, options: ConsoleOptions) -> Text:
        """The bar and the text as console text."""
        words = ink(self._words(), options)
        if self.share is None:
            return words
        bar = track_ink(self.share, _CELLS, options)
        return bar.append(" ").append_text(words)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield self.ink(options)

    def _words(self) -> str:
        return self.text or UNKNOWN
