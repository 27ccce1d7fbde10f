"""Quantities to one scale, so that the eye can compare them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpumagic.drawing.columns import widest, widest_word
from gpumagic.drawing.html import Html, unbroken, words
from gpumagic.drawing.ink import GAP, ink, side_by_side
from gpumagic.drawing.palette import BLUE
from gpumagic.drawing.tabular import (
    INDENT,
    caption_ink,
    cell_of,
    indented,
    row_html,
    table_html,
)
from gpumagic.drawing.track import bar_ink, track_html

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_WIDTH_EM, _LEAST_EM = 24, 8
_FEWEST_CELLS, _MOST_CELLS = 6, 48
_MOST_WORDS = 24


@dataclass(frozen=True)
class Bar:
    """One quantity.

    Args:
        label: What it is.

        value: Its size; None or nothing finite draws no bar.

        text: The value as it is read, with its unit.

        fill: One of `palette.FILLS`.
    """

    label: str
    value: float | None
    text: str
    fill: str = BLUE


@dataclass(frozen=True)
class BarPair:
    """Two bars, or a few, drawn to the scale of the largest.

    Args:
        caption: What is compared.

        bars: In the order in which they are to be read.
    """

    caption: str
    bars: tuple[Bar, ...]

    def share(self, bar: Bar) -> float:
        """The length of a bar as a share of the longest one."""
        longest = max((_length(each) for each in self.bars), default=0.0)
        return _length(bar) / longest if longest else 0.0

    def html(self) -> Html:
        """A table of label, bar and number."""
        return table_html(
            self.caption,
            (
                row_html(
                    words(bar.label),
                    cell_of(self._track_html(bar)),
                    cell_of(unbroken(bar.text), right=True),
                )
                for bar in self.bars
            ),
        )

    def _track_html(self, bar: Bar) -> Html:
        # An empty track would say zero, which is not what unknown means.
        if bar.value is None:
            return Html("")
        return track_html(self.share(bar), bar.fill, _WIDTH_EM, least_em=_LEAST_EM)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        labels = [ink(bar.label, options) for bar in self.bars]
        texts = [ink(bar.text, options) for bar in self.bars]
        widths = _widths(
            [label.plain for label in labels],
            [text.plain for text in texts],
            options.max_width - INDENT - 2 * len(GAP),
        )
        for bar, label, text in zip(self.bars, labels, texts, strict=True):
            drawn = bar_ink(self.share(bar), widths[2], options)
            drawn.stylize(bar.fill)
            for line in side_by_side(
                (label, text, drawn), widths, console, right=(False, True, False)
            ):
                yield indented(line)


def _widths(labels: list[str], texts: list[str], room: int) -> tuple[int, int, int]:
    """Words first, the bar in what is left: numbers say more than pixels."""
    words = room - _FEWEST_CELLS
    text = min(widest(texts), _MOST_WORDS, max(words // 2, 2))
    label = min(widest(labels), max(_MOST_WORDS, widest_word(labels)), words - text)
    cells = min(room - label - text, _MOST_CELLS)
    return max(label, 1), max(text, 1), max(cells, 1)


def _length(bar: Bar) -> float:
    if bar.value is None or not math.isfinite(bar.value):
        return 0.0
    return max(bar.value, 0.0)
