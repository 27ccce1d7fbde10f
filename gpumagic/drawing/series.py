"""How one quantity went, and where points lie under lines over many powers of ten."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, TypeVar

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import (
    Html,
    captioned,
    element,
    unbroken,
    words,
)
from gpumagic.drawing.ink import GAP, glyphs_for, ink
from gpumagic.drawing.lanes import axis_html, axis_text
from gpumagic.drawing.palette import BLUE, TRACK, VERMILLION, swatches
from gpumagic.drawing.svg import image
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    cell_of,
    indented,
    row_html,
    table_html,
)
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

Points = list[float | None]
_Value = TypeVar("_Value")

# The line is two wide; a margin keeps its extremes inside the picture.
_MARGIN = 2.0

_MOST_CELLS = 60
_WIDTH, _HEIGHT = 300, 40

_CURVE_WIDTH, _CURVE_EM, _CURVE_ROWS = 480, 60, 5
_CURVE_HEIGHT = 96
ABOVE = 10  # room for the mark of the peak
_MOST_STRETCHES = 240
_LINE_HEIGHT = 18
_ROOM = _CURVE_HEIGHT - ABOVE


def peaks(points: Sequence[float | None], most: int) -> Points:
    """At most that many points, each the highest of its share: a peak is news."""
    if len(points) <= most:
        return list(points)
    cuts = [round(place * len(points) / most) for place in range(most + 1)]
    return [
        max((value for value in points[start:stop] if value is not None), default=None)
        for start, stop in pairwise(cuts)
    ]


def levels(points: Points, characters: str) -> str:
    """The points as one character each, by height."""
    top = len(characters) - 1
    heights = _heights(points)
    return "".join(
        " " if height is None else characters[round(height * top)] for height in heights
    ).rstrip()


def _curve_svg(title: str, points: Points, width: int, height: int, colour: str) -> str:
    """The points as lines; one between two gaps is a dot."""
    drawn = _heights(peaks(points, width // 2))
    step = (width - 2 * _MARGIN) / max(len(drawn) - 1, 1)
    room = height - 2 * _MARGIN
    places = [
        (_MARGIN + number * step, None if at is None else _MARGIN + (1 - at) * room)
        for number, at in enumerate(drawn)
    ]
    runs = groupby(places, key=lambda place: place[1] is not None)
    shapes = [
        _shape([(x, y) for x, y in run if y is not None], colour)
        for known, run in runs
        if known
    ]
    return svg.picture(width, height, title, *shapes)


def _shape(run: list[tuple[float, float]], colour: str) -> Html:
    if len(run) == 1:
        return svg.circle(*run[0], colour)
    return svg.polyline(" ".join(f"{x:.0f},{y:.1f}" for x, y in run), colour)


def _heights(points: Points) -> Points:
    """Each point between the lowest (0) and the highest (1); a flat line is in mid."""
    known = [value for value in points if value is not None]
    lowest, highest = min(known, default=0.0), max(known, default=0.0)
    # Halved first: the distance of two huge values of either sign overflows.
    extent = highest / 2 - lowest / 2
    if not extent:
        return [None if value is None else 0.5 for value in points]
    return [
        None if value is None else (value / 2 - lowest / 2) / extent for value in points
    ]


@dataclass(frozen=True)
class Sparkline:
    """A small curve with its lowest, highest and last value in numbers."""

    caption: str  # what is measured
    # in order of time; None, and what is not finite, leaves a gap
    values: Sequence[float | None]
    # writes a value with its unit, such as `units.bytes_text`
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
        return captioned(self.caption, *self._picture(), words(self.words()))

    def _picture(self) -> tuple[Html, ...]:
        if not self.known:
            return ()
        svg = _curve_svg(self.caption, self._points, _WIDTH, _HEIGHT, BLUE)
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


@dataclass(frozen=True)
class Curve:
    """An area under a quantity that goes by steps, with its highest place marked."""

    caption: str  # what is drawn
    highest: tuple[float, ...]  # the most in each stretch, from left to right
    across: tuple[str, str]  # what stands below its left end and below its right one
    peak: str  # what is told of the peak
    # the least in each stretch; empty where that is the most as well
    lowest: tuple[float, ...] = ()
    floor: float = 0  # what the lower edge stands for
    # writes a value with its unit
    text_of: Callable[[float], str] = field(default="{:g}".format)
    kind: str = "in use"  # what it is, as in the palette

    @property
    def _top(self) -> float:
        return max(self.highest, default=self.floor)

    @property
    def _axis(self) -> tuple[str, str]:
        return self.text_of(self._top), self.text_of(self.floor)

    def _share(self, value: float) -> float:
        """How high it stands, from 0 to 1."""
        extent = self._top - self.floor
        return max(value - self.floor, 0) / extent if extent > 0 else 0.0

    # ---------------------------------------------------------------------- HTML

    def html(self) -> Html:
        """A table: the axis, the picture over the other axis, and the peak in words."""
        told = peak_html(self.peak)
        return plotted_html(
            self.caption, self._axis, _CURVE_HEIGHT, self._picture(), told
        )

    def _picture(self) -> Html:
        upper, lower = self._axis
        swatch = swatches((self.kind,))[self.kind]
        tops = [*map(self._share, spread(self.highest, _MOST_STRETCHES, max))]
        lows = [*map(self._share, spread(self._lowest, _MOST_STRETCHES, min))]
        marks = [peak_mark(tops)] if any(tops) else []
        picture = svg.wide_picture(
            _CURVE_WIDTH,
            _CURVE_HEIGHT,
            self.caption,
            svg.path(f"M0 {ABOVE}h{_CURVE_WIDTH}V{_CURVE_HEIGHT}H0z", TRACK),
            svg.filled(_hill(tops, lows), swatch),
            *marks,
        )
        return svg.wide_image(
            picture,
            f"{self.caption}: a curve from {upper} down to {lower}. {self.peak}",
            _CURVE_WIDTH,
            _CURVE_HEIGHT,
            axis_html(list(self.across)),
            most_em=_CURVE_EM,
        )

    @property
    def _lowest(self) -> tuple[float, ...]:
        return self.lowest or self.highest

    # ---------------------------------------------------------------------- text

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        yield from map(indented, self._drawn(options))
        peak = Text(f"{glyphs_for(options).peak} ", style=VERMILLION)
        yield indented(peak.append_text(ink(self.peak, options)))

    def _drawn(self, options: ConsoleOptions) -> Iterator[Text]:
        upper, lower = (ink(text, options) for text in self._axis)
        left = max(upper.cell_len, lower.cell_len)
        room = max(options.max_width - INDENT - len(GAP) - left, 1)
        cells = min(room, _MOST_CELLS)
        shares = [*map(self._share, spread(self.highest, cells, max, cells))]
        glyphs, swatch = glyphs_for(options), swatches((self.kind,))[self.kind]
        if any(shares):
            # A stretch that takes several characters has its mark in their middle.
            inside = max(cells // len(self.highest), 1) // 2
            before = left + len(GAP) + shares.index(max(shares)) + inside
            yield Text(" " * before + glyphs.peak, style=VERMILLION)
        for row in reversed(range(_CURVE_ROWS)):
            label = {_CURVE_ROWS - 1: upper, 0: lower}.get(row, Text()).copy()
            label.align("right", left)
            line = "".join(_part(share, row, glyphs.levels) for share in shares)
            yield label.append(GAP).append(line.rstrip(), style=swatch.style)
        across = [ink(mark, options).plain for mark in self.across]
        yield Text(" " * (left + len(GAP)) + axis_text(across, cells), overflow="fold")


def plotted_html(
    caption: str, axis: tuple[str, str], height: int, picture: Html, *told: Html
) -> Html:
    """A picture with an axis upward: what stands above, below and beside it."""
    upper, lower = axis
    beside = (
        element("div", unbroken(upper), style=f"height:{height - _LINE_HEIGHT}px"),
        element("div", unbroken(lower)),
    )
    upward = element("div", *beside, style=f"height:{height + _LINE_HEIGHT}px")
    below = (row_html(Html(""), cell_of(each)) for each in told)
    return table_html(caption, (row_html(upward, cell_of(picture)), *below))


def peak_html(said: str) -> Html:
    """The mark of a peak, and what is said of it."""
    patch = svg.picture(10, ABOVE, "peak", _mark(5))
    return Html(f"{image(patch, 'the mark', 10, ABOVE)} {words(said)}")


def peak_mark(heights: Sequence[float]) -> Html:
    """The mark above the highest of them, for a wide picture that has `ABOVE` free."""
    at = (heights.index(max(heights)) + 0.5) / len(heights)
    # Half of the mark is left of its place, where there has to be room.
    place = f"{min(max(100 * at, 1.0), 99.0):.2f}%"
    return element("svg", _mark(0), x=place, overflow="visible")


def spread(
    values: Sequence[_Value],
    most: int,
    pick: Callable[[Sequence[_Value]], _Value],
    least: int = 0,
) -> list[_Value]:
    """The values in so many places: of several in one that which is picked."""
    if least <= len(values) <= most:
        return list(values)
    starts = [place * len(values) // most for place in range(most + 1)]
    return [
        pick(values[start : max(stop, start + 1)])
        for start, stop in pairwise(starts)
        if values
    ]


def _hill(tops: list[float], lows: list[float]) -> str:
    """The outline of an area, up to the least of each stretch and with its most.

    What rises and falls within one stretch is as high as its least, with a spike up to
    its most: else a few steps would look like a plateau.
    """
    wide = _CURVE_WIDTH / max(len(tops), 1)
    data, level = [f"M0 {_CURVE_HEIGHT}"], -1
    for number, (top, low) in enumerate(zip(tops, lows, strict=True)):
        high, ground = (round((1 - at) * _ROOM) + ABOVE for at in (top, low))
        left, right = number * wide, (number + 1) * wide
        if ground != level:
            data.append(f"H{left:.0f}V{ground}")
            level = ground
        if high < ground:
            middle = (left + right) / 2
            data.append(f"H{left:.0f}L{middle:.0f} {high}L{right:.0f} {ground}")
    return "".join((*data, f"H{_CURVE_WIDTH}V{_CURVE_HEIGHT}z"))


def _mark(x: int) -> Html:
    return svg.path(f"M{x - 5} 0h10l-5 {ABOVE - 1}z", VERMILLION)


def _part(share: float, row: int, levels: str) -> str:
    """What one character shows of a column, counted from the ground."""
    height = share * _CURVE_ROWS - row
    if height <= 0:
        return " "
    return levels[min(math.ceil(height * len(levels)), len(levels)) - 1]
