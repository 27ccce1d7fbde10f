"""How often a quantity had which size, and where it lies with some confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, captioned, element, unbroken, words
from gpumagic.drawing.ink import GAP, glyphs_for, ink, widest
from gpumagic.drawing.palette import BLUE, GREY, TRACK
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    cell_of,
    indented,
    row_html,
    rows_ink,
    table_html,
    wide_row_html,
)
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

_WIDTH, _HEIGHT = 300, 48
_FEWEST_BINS, _MOST_BINS = 5, 30

# Sizes beyond the middle half by more than so many of its widths are counted, not
# drawn: one slow sample would squeeze all others into one column.
_FAR = 3.0
_FURTHEST = 1e100

_RANGE_WIDTH, _RANGE_HEIGHT = 320, 20
_MOST_CELLS = 49
_MARGIN = 0.08
_COLUMNS = 3
_FURTHEST_RANGE = 1e12


@dataclass(frozen=True)
class Histogram:
    """Columns as high as the count of values in them."""

    caption: str  # what is counted
    values: Sequence[float]  # in any order; what is no size is left out
    # writes a value with its unit
    text_of: Callable[[float], str] = field(default="{:g}".format)

    @cached_property
    def _known(self) -> list[float]:
        return sorted(each for each in self.values if -_FURTHEST < each < _FURTHEST)

    @cached_property
    def _edges(self) -> tuple[float, float]:
        """From where to where columns are drawn."""
        known = self._known
        low, high = known[len(known) // 4], known[(3 * len(known)) // 4]
        reach = _FAR * (high - low)
        drawn = [each for each in known if low - reach <= each <= high + reach]
        return drawn[0], drawn[-1]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """How many values each column holds; one column if all are the same."""
        if not self._known:
            return ()
        low, high = self._edges
        drawn = [value for value in self._known if low <= value <= high]
        if not high > low:
            return (len(drawn),)
        most = round(2 * math.sqrt(len(drawn)))
        bins = min(max(most, _FEWEST_BINS), _MOST_BINS)
        counts = [0] * bins
        for value in drawn:
            counts[min(int((value - low) / (high - low) * bins), bins - 1)] += 1
        return tuple(counts)

    def words(self) -> str:
        """What the columns show, in one line of numbers."""
        if not self._known:
            return "no values"
        low, high = self._edges
        said = [
            f"from {self.text_of(low)} to {self.text_of(high)}",
            f"at most {max(self.counts)} of {len(self._known)} in one column",
        ]
        if beyond := len(self._known) - sum(self.counts):
            furthest = self._known[-1] if self._known[-1] > high else self._known[0]
            said.append(
                f"{count_text(beyond, 'value')} beyond the picture,"
                f" as far as {self.text_of(furthest)}"
            )
        return ", ".join(said)

    def html(self) -> Html:
        """Caption, picture and numbers."""
        return captioned(self.caption, *self._picture(), words(self.words()))

    def _picture(self) -> tuple[Html, ...]:
        if not self.counts:
            return ()
        wide, tallest = _WIDTH / len(self.counts), max(self.counts)
        data = "".join(
            f"M{at * wide:.1f} {_HEIGHT}v-{max(count * _HEIGHT / tallest, 1):.1f}"
            f"h{max(wide - 1, 1):.1f}V{_HEIGHT}z"
            for at, count in enumerate(self.counts)
            if count
        )
        picture = svg.picture(_WIDTH, _HEIGHT, self.caption, svg.path(data, BLUE))
        alt = f"{self.caption}: columns, {self.words()}"
        return (svg.image(picture, alt, _WIDTH, _HEIGHT), element("br"))

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        if self.counts:
            levels = glyphs_for(options).levels
            top, tallest = len(levels) - 1, max(self.counts)
            row = "".join(
                levels[math.ceil(count / tallest * top)] if count else " "
                for count in self.counts
            )
            room = max(options.max_width - INDENT, 1)
            yield indented(Text(row[:room], style=BLUE))
        yield indented(ink(self.words(), options))


@dataclass(frozen=True)
class Range:
    """One quantity."""

    label: str  # what it is
    low: float  # where it begins; the same as `high` where there is one value only
    middle: float  # the likeliest value
    high: float  # where it ends
    text: str  # all of it as it is read


@dataclass(frozen=True)
class Ranges:
    """Quantities on one axis, with a mark and a band round it."""

    caption: str  # what is compared
    ranges: tuple[Range, ...]  # in the order in which they are to be read
    mark: float  # what they are held against
    # from where to where a difference from the mark counts as none
    band: tuple[float, float]
    remark: str  # what mark and band mean

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
            round(self._place(at, _RANGE_WIDTH), 1)
            for at in (*self.band, self.mark, one.low, one.middle, one.high)
        )
        shapes = (
            svg.path(
                f"M{left} 0h{max(right - left, 2):.1f}v{_RANGE_HEIGHT}H{left}z", TRACK
            ),
            svg.path(f"M{mark - 0.5:.1f} 0h1v{_RANGE_HEIGHT}h-1z", GREY),
            svg.path(f"M{low} 8h{max(high - low, 1):.1f}v4H{low}z", BLUE),
            svg.path(f"M{middle - 1.5:.1f} 3h3v14h-3z", BLUE),
        )
        picture = svg.picture(_RANGE_WIDTH, _RANGE_HEIGHT, one.label, *shapes)
        alt = f"{one.label}: {one.text}; {self.remark}"
        return svg.image(picture, alt, _RANGE_WIDTH, _RANGE_HEIGHT)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        labels = [ink(each.label, options) for each in self.ranges]
        texts = [ink(each.text, options) for each in self.ranges]
        widths = _widths(labels, texts, options.max_width - INDENT - 2 * len(GAP))
        lines = [self._line(one, widths[1], options) for one in self.ranges]
        yield from rows_ink(zip(labels, lines, texts, strict=True), widths, console)
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
    return -_FURTHEST_RANGE < value < _FURTHEST_RANGE


def _widths(labels: list[Text], texts: list[Text], room: int) -> tuple[int, int, int]:
    label = min(widest(each.plain for each in labels), max(room // 4, 2))
    text = min(widest(each.plain for each in texts), max(room // 3, 2))
    return label, max(min(room - label - text, _MOST_CELLS), 1), text
