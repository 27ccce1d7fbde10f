"""Where quantities lie with some confidence, against one that they are held to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.columns import widest
from gpumagic.drawing.glyphs import glyphs_for
from gpumagic.drawing.html import Html, unbroken, words
from gpumagic.drawing.ink import GAP, ink, side_by_side
from gpumagic.drawing.palette import BLUE, GREY, TRACK
from gpumagic.drawing.tabular import (
    INDENT,
    caption_ink,
    cell_of,
    indented,
    row_html,
    table_html,
    wide_row_html,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_WIDTH, _HEIGHT = 320, 20
_MOST_CELLS = 49
_MARGIN = 0.08
_COLUMNS = 3
_FURTHEST = 1e12


@dataclass(frozen=True)
class Range:
    """One quantity.

    Args:
        label: What it is.

        low: Where it begins; the same as `high` where there is one value only.

        middle: The likeliest value.

        high: Where it ends.

        text: All of it as it is read.
    """

    label: str
    low: float
    middle: float
    high: float
    text: str


@dataclass(frozen=True)
class Ranges:
    """Quantities on one axis, with a mark and a band round it.

    Args:
        caption: What is compared.

        ranges: In the order in which they are to be read.

        mark: What they are held against.

        band: From where to where a difference from the mark counts as none.

        remark: What mark and band mean.
    """

    caption: str
    ranges: tuple[Range, ...]
    mark: float
    band: tuple[float, float]
    remark: str

    @property
    def _axis(self) -> tuple[float, float]:
        """From where to where, with a margin on either side."""
        ends = [each for one in self.ranges for each in (one.low, one.middle, one.high)]
        known = [*filter(_drawable, ends), self.mark, *self.band]
        low, high = min(known), max(known)
        margin = (high - low) * _MARGIN
        return low - margin, high + margin

    def _place(self, value: float, width: float) -> float:
        low, high = self._axis
        if math.isnan(value) or high <= low:
            return width / 2
        return (min(max(value, low), high) - low) / (high - low) * width

    def html(self) -> Html:
        """A table of label, picture and numbers."""
        rows = [
            row_html(
                words(each.label),
                cell_of(self._picture(each)),
                cell_of(unbroken(each.text), right=True),
            )
            for each in self.ranges
        ]
        return table_html(self.caption, (*rows, wide_row_html(self.remark, _COLUMNS)))

    def _picture(self, one: Range) -> Html:
        left, right, mark, low, middle, high = (
            round(self._place(at, _WIDTH), 1)
            for at in (*self.band, self.mark, one.low, one.middle, one.high)
        )
        shapes = (
            svg.path(f"M{left} 0h{max(right - left, 2):.1f}v{_HEIGHT}H{left}z", TRACK),
            svg.path(f"M{mark - 0.5:.1f} 0h1v{_HEIGHT}h-1z", GREY),
            svg.path(f"M{low} 8h{max(high - low, 1):.1f}v4H{low}z", BLUE),
            svg.path(f"M{middle - 1.5:.1f} 3h3v14h-3z", BLUE),
        )
        picture = svg.picture(_WIDTH, _HEIGHT, one.label, *shapes)
        alt = f"{one.label}: {one.text}; {self.remark}"
        return svg.image(picture, alt, _WIDTH, _HEIGHT)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        labels = [ink(each.label, options) for each in self.ranges]
        texts = [ink(each.text, options) for each in self.ranges]
        widths = _widths(labels, texts, options.max_width - INDENT - 2 * len(GAP))
        for one, label, text in zip(self.ranges, labels, texts, strict=True):
            line = self._line(one, widths[1], options)
            for row in side_by_side((label, line, text), widths, console):
                yield indented(row)
        yield indented(ink(self.remark, options, "dim"))

    def _line(self, one: Range, cells: int, options: ConsoleOptions) -> Text:
        glyphs = glyphs_for(options)

        def cell(value: float) -> int:
            return min(max(int(self._place(value, cells)), 0), cells - 1)

        row = [" "] * cells
        for at in range(cell(self.band[0]), cell(self.band[1]) + 1):
            row[at] = glyphs.empty
        row[cell(self.mark)] = "|"
        for at in range(cell(one.low), cell(one.high) + 1):
            row[at] = glyphs.rule
        row[cell(one.middle)] = glyphs.full
        return Text("".join(row))


def _drawable(value: float) -> bool:
    """Whether an axis can reach it; what is beyond is drawn at the edge."""
    return -_FURTHEST < value < _FURTHEST


def _widths(labels: list[Text], texts: list[Text], room: int) -> tuple[int, int, int]:
    label = min(widest(each.plain for each in labels), max(room // 4, 2))
    text = min(widest(each.plain for each in texts), max(room // 3, 2))
    return label, max(min(room - label - text, _MOST_CELLS), 1), text
