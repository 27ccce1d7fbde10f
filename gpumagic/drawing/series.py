"""How one quantity went, and where points lie under lines over many powers of ten."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import (
    INSET,
    WIDEST_EM,
    Html,
    captioned,
    element,
    words,
)
from gpumagic.drawing.ink import GAP, glyphs_for, ink
from gpumagic.drawing.lanes import axis_html, axis_text
from gpumagic.drawing.palette import BLUE, GREY, RULE, TRACK, VERMILLION, swatches
from gpumagic.drawing.svg import image
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    indented,
)
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

Points = list[float | None]
Spot = tuple[float, float]

# The line is two wide; a margin keeps its extremes inside the picture.
_MARGIN = 2.0

_MOST_CELLS = 60
_WIDTH, _HEIGHT = 300, 40
_PLANE_WIDTH, _PLANE_HEIGHT = 360, 180
_PLANE_MARGIN = 8

_CURVE_WIDTH, _CURVE_COLUMNS, _CURVE_ROWS = 480, 240, 4
_CURVE_HEIGHT, _ABOVE = 96, 10  # above it there is room for the mark of the peak
_ROOM = _CURVE_HEIGHT - _ABOVE


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
    """A quantity that stays as it is until it changes, over time, with its peak.

    Args:
        caption: What is measured.

        points: From when on it is how much, in order of time; the last one only says
            when it ends.

        across_of: Writes a time with its unit.

        text_of: Writes a value with its unit.

        kind: What it is, as in the palette.

        at_peak: What else is said of the peak.
    """

    caption: str
    points: tuple[Spot, ...]
    across_of: Callable[[float], str] = field(default="{:g}".format)
    text_of: Callable[[float], str] = field(default="{:g}".format)
    kind: str = "in use"
    at_peak: str = ""

    @cached_property
    def _known(self) -> list[Spot]:
        return [spot for spot in self.points if all(map(math.isfinite, spot))]

    @property
    def _peak(self) -> Spot:
        return max(self._known, key=lambda spot: spot[1])

    def _place(self, at: float, width: int) -> float:
        first, last = self._known[0][0], self._known[-1][0]
        return width * ((at - first) / (last - first)) if last > first else 0.0

    def _columns(self, count: int) -> list[float]:
        """For each column the highest share of the peak that it has."""
        highest, shares = self._peak[1], [0.0] * count
        for (start, value), (end, _) in pairwise((*self._known, self._known[-1])):
            first = min(int(self._place(start, count)), count - 1)
            until = min(math.ceil(self._place(end, count)), count)
            for column in range(first, max(until, first + 1)):
                share = value / highest if highest > 0 else 0.0
                shares[column] = max(shares[column], share)
        return shares

    def _ticks(self) -> list[str]:
        first, last = self._known[0][0], self._known[-1][0]
        middle = first / 2 + last / 2
        return [self.across_of(at) for at in dict.fromkeys((first, middle, last))]

    def words(self) -> str:
        """What the curve shows: its peak and when that was."""
        if not self._known:
            return "no values"
        at, highest = self._peak
        said = f"highest {self.text_of(highest)}, at {self.across_of(at)}"
        return f"{said}: {self.at_peak}" if self.at_peak else said

    def html(self) -> Html:
        """Caption, picture with its axes, and the peak in words."""
        said = [element("strong", words(self.caption), style="font-weight:600")]
        if self._known:
            said += [words(self.text_of(self._peak[1])), self._picture()]
        rows = (element("div", each) for each in (*said, words(self.words())))
        return element("div", *rows, style=f"margin:0 0 .9em {INSET}")

    def _picture(self) -> Html:
        shares = self._columns(_CURVE_COLUMNS)
        wide, swatch = _CURVE_WIDTH // _CURVE_COLUMNS, swatches((self.kind,))[self.kind]
        levels = (round((1 - share) * _ROOM) + _ABOVE for share in shares)
        steps = (f"V{level}h{len(list(run)) * wide}" for level, run in groupby(levels))
        hill = f"M0 {_CURVE_HEIGHT}{''.join(steps)}V{_CURVE_HEIGHT}z"
        # Half of the mark is left of its place, where there has to be room.
        at = min(max(100 * self._place(self._peak[0], 1), 1.0), 99.0)
        mark = element(
            "svg",
            svg.path(f"M-5 0h10l-5 {_ABOVE - 1}z", VERMILLION),
            x=f"{at:.2f}%",
            overflow="visible",
        )
        floor = svg.path(f"M0 {_CURVE_HEIGHT - 1}h{_CURVE_WIDTH}v1H0z", RULE)
        picture = svg.wide_picture(
            _CURVE_WIDTH,
            _CURVE_HEIGHT,
            self.caption,
            svg.filled(hill, swatch),
            floor,
            mark,
        )
        alt = f"{self.caption}: a curve, {self.words()}"
        axis = axis_html(self._ticks())
        return svg.wide_image(
            picture, alt, _CURVE_WIDTH, _CURVE_HEIGHT, axis, most_em=WIDEST_EM
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        if self._known:
            yield from map(indented, self._drawn(options))
        yield indented(ink(self.words(), options))

    def _drawn(self, options: ConsoleOptions) -> Iterator[Text]:
        top, zero = (ink(self.text_of(at), options) for at in (self._peak[1], 0))
        left = max(top.cell_len, zero.cell_len)
        room = max(options.max_width - INDENT - len(GAP) - left, 1)
        shares = self._columns(room)
        glyphs, swatch = glyphs_for(options), swatches((self.kind,))[self.kind]
        peak = min(int(self._place(self._peak[0], room)), room - 1)
        yield Text(" " * (left + len(GAP) + peak) + glyphs.peak, style=VERMILLION)
        for row in reversed(range(_CURVE_ROWS)):
            label = {_CURVE_ROWS - 1: top, 0: zero}.get(row, Text()).copy()
            label.align("right", left)
            line = "".join(_part(share, row, glyphs.levels) for share in shares)
            yield label.append(GAP).append(line.rstrip(), style=swatch.style)
        yield Text(" " * (left + len(GAP)) + axis_text(self._ticks(), room))


def _part(share: float, row: int, levels: str) -> str:
    """What one character shows of a column, counted from the ground."""
    height = share * _CURVE_ROWS - row
    if height <= 0:
        return " "
    return levels[min(math.ceil(height * len(levels)), len(levels)) - 1]


@dataclass(frozen=True)
class Plane:
    """Lines and one point on logarithmic axes; all sizes are above zero.

    Args:
        caption: What is shown.

        line: Corners of the line, from left to right.

        point: What is held against it.

        across: What the axis to the right is, and from where to where it is drawn.

        upward: The same of the other axis.

        told: What the picture shows, in one sentence.
    """

    caption: str
    line: tuple[Spot, ...]
    point: Spot
    across: str
    upward: str
    told: str

    @property
    def _bounds(self) -> tuple[Spot, Spot]:
        """The corners of the picture, as powers of ten."""
        spots = (*self.line, self.point)
        lows, highs = (
            tuple(pick(math.log10(spot[axis]) for spot in spots) for axis in (0, 1))
            for pick in (min, max)
        )
        return (lows[0], lows[1]), (highs[0], highs[1])

    def _place(self, spot: Spot) -> Spot:
        (left, low), (right, high) = self._bounds
        x = (math.log10(spot[0]) - left) / max(right - left, 1e-9)
        y = (math.log10(spot[1]) - low) / max(high - low, 1e-9)
        return (
            _PLANE_MARGIN + x * (_PLANE_WIDTH - 2 * _PLANE_MARGIN),
            _PLANE_MARGIN + (1 - y) * (_PLANE_HEIGHT - 2 * _PLANE_MARGIN),
        )

    def html(self) -> Html:
        """Caption, picture, and what the axes are."""
        picture = svg.picture(
            _PLANE_WIDTH, _PLANE_HEIGHT, self.caption, *self._shapes()
        )
        return captioned(
            self.caption,
            svg.image(
                picture, f"{self.caption}: {self.told}", _PLANE_WIDTH, _PLANE_HEIGHT
            ),
            element("br"),
            *(part for text in self._lines() for part in (words(text), element("br"))),
        )

    def _shapes(self) -> Iterator[Html]:
        yield from map(_rule, self._rules())
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self._place, self.line))
        yield svg.polyline(corners, BLUE)
        x, y = self._place(self.point)
        below = [self._place(spot)[1] for spot in self._under()]
        if below:
            yield svg.path(f"M{x - 0.5:.1f} {below[0]:.1f}h1V{y:.1f}h-1z", GREY)
        yield svg.path(f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z", VERMILLION)

    def _under(self) -> Iterator[Spot]:
        """Where the line is above the point."""
        x = math.log10(self.point[0])
        for (x0, y0), (x1, y1) in zip(self.line, self.line[1:], strict=False):
            left, right = math.log10(x0), math.log10(x1)
            if left <= x <= right and right > left:
                share = (x - left) / (right - left)
                yield self.point[0], y0 * (y1 / y0) ** share
                return

    def _rules(self) -> Iterator[tuple[float, float, float, float]]:
        """A hair at each power of ten."""
        (left, low), (right, high) = self._bounds
        for power in range(math.ceil(left), math.floor(right) + 1):
            x, _ = self._place((10.0**power, 10.0**low))
            yield x, 0, 1, _PLANE_HEIGHT
        for power in range(math.ceil(low), math.floor(high) + 1):
            _, y = self._place((10.0**left, 10.0**power))
            yield 0, y, _PLANE_WIDTH, 1

    def _lines(self) -> tuple[str, str]:
        return f"to the right: {self.across}", f"upward: {self.upward}"

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        for text in (self.told, *self._lines()):
            yield indented(ink(text, options))


def _rule(box: tuple[float, float, float, float]) -> Html:
    x, y, width, height = box
    return svg.path(f"M{x:.1f} {y:.1f}h{width}v{height}h-{width}z", TRACK)
