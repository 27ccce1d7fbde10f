"""How one quantity went."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing.curve import curve_svg, levels, peaks
from gpumagic.drawing.glyphs import glyphs_for
from gpumagic.drawing.html import INSET, Html, element, words
from gpumagic.drawing.ink import ink
from gpumagic.drawing.palette import BLUE
from gpumagic.drawing.svg import image
from gpumagic.drawing.tabular import INDENT, caption_ink, indented
from gpumagic.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

_MOST_CELLS = 60
_WIDTH, _HEIGHT = 300, 40


@dataclass(frozen=True)
class Sparkline:
    """A small curve with its lowest, highest and last value in numbers.

    Args:
        caption: What is measured.

        values: In order of time; None, and what is not finite, leaves a gap.

        text_of: Writes a value with its unit, such as `units.bytes_text`.
    """

    caption: str
    values: Sequence[float | None]
    text_of: Callable[[float], str] = field(default="{:g}".format)

    @property
    def known(self) -> list[float]:
        """The values that are numbers."""
        return [value for value in self._points if value is not None]

    @property
    def _points(self) -> list[float | None]:
        finite = math.isfinite
        return [None if v is None or not finite(v) else v for v in self.values]

    def words(self) -> str:
        """What the curve shows, in one line of numbers."""
        known = self.known
        if not known:
            return "no values"
        missing = len(self.values) - len(known)
        last = self._points[-1]
        return ", ".join(
            (
                f"lowest {self.text_of(min(known))}",
                f"highest {self.text_of(max(known))}",
                f"last {'unknown' if last is None else self.text_of(last)}",
                count_text(len(self.values), "value")
                + (f" ({missing} unknown)" if missing else ""),
            )
        )

    def html(self) -> Html:
        """Caption, picture and numbers."""
        return element(
            "p",
            element("strong", words(self.caption), style="font-weight:600"),
            element("br"),
            *self._picture(),
            words(self.words()),
            style=f"margin:0 0 .9em {INSET};line-height:1.6",
        )

    def _picture(self) -> tuple[Html, ...]:
        if not self.known:
            return ()
        svg = curve_svg(self.caption, self._points, _WIDTH, _HEIGHT, BLUE)
        alt = f"{self.caption}: a curve, {self.words()}"
        return (image(svg, alt, _WIDTH, _HEIGHT), element("br"))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        cells = max(min(options.max_width - INDENT, _MOST_CELLS), 1)
        if self.known:
            steps = levels(peaks(self._points, cells), glyphs_for(options).levels)
            yield indented(Text(steps, style=BLUE))
        yield indented(ink(self.words(), options))
