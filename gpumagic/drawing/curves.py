"""How quantities went, and how often they had which size: columns on a ground.

HTML and text are drawn from the same columns. Where there are more than a line has
places, each place shows the highest of its share: a peak is news.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal

from rich.text import Text

from gpumagic.drawing.html import (
    LETTER_HEIGHT,
    LETTER_WIDTH,
    Html,
    axis_html,
    element,
    filled,
    image,
    letter,
    outline,
    path,
    picture,
    unbroken,
    wide_image,
    wide_picture,
    words,
)
from gpumagic.drawing.ink import GAP, axis_ink, glyphs_for, in_lines, in_runs, ink
from gpumagic.drawing.palette import (
    BEFORE,
    BLUE,
    LAYERS,
    MEANINGS,
    TOGETHER,
    TRACK,
    VERMILLION,
    Swatch,
)
from gpumagic.drawing.table import (
    INDENT,
    DrawnAs,
    Key,
    caption_ink,
    cell_of,
    indented,
    narrower,
    row_html,
    table_html,
)
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing.ink import Glyphs

_WIDTH, _MOST_CELLS = 480, 60
_MOST_LAYERED = 120  # stretches of several layers: a dozen outlines stay small
_ABOVE = 10  # room for the mark of the peak
_LINE_HEIGHT = 18
_LEAST_LETTER_PX = 30  # so much room has a letter also in a picture half as wide
_PLAIN = Swatch("blue", BLUE, "", "█", "#")
_FURTHEST, _HALF = 1e100, 0.5


@dataclass(frozen=True)
class Columns:
    """Layers on each other, with what stands above, below and beside them."""

    caption: str
    # from the ground up, each with its heights as shares of the room
    layers: Sequence[tuple[Swatch, Sequence[float]]]
    told: str  # what is said of it, at the mark of the peak if that is drawn
    rows: int = 1  # of text
    height: int = 40  # of the picture, in pixels
    most_em: int = 24
    axis: tuple[str, str] | None = None  # what stands at the top and at the ground
    across: Sequence[str] = ()  # what stands below, from left to right
    has_peak: bool = False
    keys: Sequence[Key] = ()  # whose the layers are

    @cached_property
    def totals(self) -> list[float]:
        """How high each column is."""
        return [
            sum(each) for each in zip(*(its for _, its in self.layers), strict=True)
        ]

    def places(self, count: int) -> list[int]:
        """The column that is drawn at each of so many places."""
        total, n = self.totals.__getitem__, len(self.totals)
        starts = [at * n // count for at in range(count + 1)]
        return [
            max(range(start, max(stop, start + 1)), key=total)
            for start, stop in pairwise(starts)
        ]

    def _stacked(self, at: int) -> Iterator[tuple[Swatch, float, float]]:
        """The layers of a column, each with where it begins and ends."""
        below = 0.0
        for swatch, heights in self.layers:
            yield swatch, below, below + heights[at]
            below += heights[at]

    def html(self) -> Html:
        """A table: the axis, the picture over the other axis, and what is said."""
        told = [key.html() for key in self.keys]
        if self.told:
            mark = ""
            if self.has_peak:
                peak = picture(10, _ABOVE, "peak", _mark(5))
                mark = f"{image(peak, 'the mark', 10, _ABOVE)} "
            told.insert(0, Html(f"{mark}{words(self.told)}"))
        said = element("div", Html(" &nbsp; ".join(told))) if told else Html("")
        if not self.totals or self.axis is None:
            drawn = self._picture() if self.totals else Html("")
            row = row_html(Html(""), cell_of(Html(drawn + said)))
            return table_html(self.caption, (row,))
        upper, lower = map(unbroken, self.axis)
        high = element("div", upper, style=f"height:{self.height - _LINE_HEIGHT}px")
        style = f"height:{self.height + _LINE_HEIGHT}px"
        upward = element("div", high, element("div", lower), style=style)
        rows = [row_html(upward, cell_of(self._picture()))]
        rows += [row_html(Html(""), cell_of(said))] if told else []
        return table_html(self.caption, rows)

    def _picture(self) -> Html:
        most = _WIDTH if len(self.layers) == 1 else _MOST_LAYERED
        places = self.places(min(len(self.totals), most))
        step = max(_WIDTH // len(places), 1)
        width, above = step * len(places), _ABOVE if self.has_peak else 0
        stacked = [list(self._stacked(at)) for at in places]
        drawn, room = [], self.height - above
        # The highest first: what lies below is then drawn over it.
        for number, (swatch, heights) in reversed([*enumerate(self.layers)]):
            if any(heights):
                tops = [column[number][2] for column in stacked]
                steps = ((top, step) for top in tops)
                data = outline(steps, self.height, room)
                drawn.append(filled(data, swatch, edge=len(self.layers) > 1))
        for number, (swatch, _) in enumerate(self.layers):
            if swatch.mark.isalpha():
                its = [column[number][1:] for column in stacked]
                drawn += _letter(swatch, its, width, self.height, room)
        totals = [self.totals[at] for at in places]
        if self.has_peak and any(totals):
            at = (totals.index(max(totals)) + 0.5) / len(totals)
            # Half of the mark is left of its place, where there has to be room.
            place = f"{min(max(100 * at, 1.0), 99.0):.2f}%"
            drawn.append(element("svg", _mark(0), x=place, overflow="visible"))
        track = path(f"M0 {above}h{width}V{self.height}H0z", TRACK)
        axis = f" from {self.axis[0]} down to {self.axis[1]}" if self.axis else ""
        return wide_image(
            wide_picture(width, self.height, self.caption, track, *drawn),
            f"{self.caption}: columns{axis}. {self.told}",
            width,
            self.height,
            *((axis_html(self.across),) if self.across else ()),
            most_em=self.most_em,
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        if self.totals:
            yield from map(indented, self._lines(options))
        entries = [each.ink(options) for each in self.keys]
        if self.told:
            mark = f"{glyphs_for(options).peak} " if self.has_peak else ""
            told = Text(mark, style=VERMILLION).append_text(ink(self.told, options))
            entries.insert(0, told)
        yield from map(indented, in_lines(entries, narrower(options)))

    def _lines(self, options: ConsoleOptions) -> Iterator[Text]:
        glyphs = glyphs_for(options)
        upper, lower = (ink(each, options) for each in self.axis or ("", ""))
        left = max(upper.cell_len, lower.cell_len) + (len(GAP) if self.axis else 0)
        cells = min(max(options.max_width - INDENT - left, 1), _MOST_CELLS)
        if self.axis is None:  # a line of a few letters need not be drawn out
            cells = min(cells, len(self.totals))
        places = self.places(cells)
        totals = [self.totals[at] for at in places]
        if self.has_peak and any(totals):
            highest = places[totals.index(max(totals))]
            its = [at for at, place in enumerate(places) if place == highest]
            before = left + its[len(its) // 2]
            yield Text(" " * before + glyphs.peak, style=VERMILLION)
        columns = [list(self._stacked(at)) for at in places]
        for row in reversed(range(self.rows)):
            line = {self.rows - 1: upper, 0: lower}.get(row, Text()).copy()
            line.align("right", max(left - len(GAP), 0))
            line.append(GAP if self.axis else "")
            line.append_text(
                in_runs(self._character(column, row, glyphs) for column in columns)
            )
            line.rstrip()
            yield line
        if self.across:
            axis = axis_ink(self.across, cells, options)
            yield Text(" " * left, overflow="fold").append_text(axis)

    def _character(
        self, column: list[tuple[Swatch, float, float]], row: int, glyphs: Glyphs
    ) -> tuple[str, str]:
        """What one character shows of a column, counted from the ground."""
        height = column[-1][2] * self.rows - row
        if height <= 0:
            return " ", ""
        if len(self.layers) == 1:
            levels, style = glyphs.levels, self.layers[0][0].style
            return levels[min(math.ceil(height * len(levels)), len(levels)) - 1], style
        if row and height < _HALF:
            return " ", ""
        ground, top = row / self.rows, (row + min(height, 1.0)) / self.rows
        swatch, *_ = max(
            column, key=lambda each: min(each[2], top) - max(each[1], ground)
        )
        return glyphs.of(swatch), swatch.style


def _mark(x: int) -> Html:
    return path(f"M{x - 5} 0h10l-5 {_ABOVE - 1}z", VERMILLION)


def _letter(
    swatch: Swatch, its: list[tuple[float, float]], width: int, height: int, room: int
) -> Iterator[Html]:
    """The letter in the middle of the widest stretch where there is room for it."""
    high = (LETTER_HEIGHT + 1) / room
    runs, at = [], 0
    for has_room, run in groupby(top - bottom >= high for bottom, top in its):
        length = len(list(run))
        runs.append((length if has_room else 0, at))
        at += length
    length, start = max(runs, key=lambda run: run[0])
    if length * width / len(its) < _LEAST_LETTER_PX:
        return
    bottom, top = its[start + length // 2]
    yield element(
        "svg",
        *letter(swatch, -LETTER_WIDTH // 2),
        x=f"{100 * (start + length / 2) / len(its):.2f}%",
        y=round(height - (bottom + top) / 2 * room - LETTER_HEIGHT / 2),
        overflow="visible",
    )


@dataclass(frozen=True)
class Histogram(DrawnAs):
    """Columns as high as the count of values in them."""

    caption: str  # what is counted
    values: Sequence[float]  # in any order; what is no size is left out
    # writes a value with its unit
    text_of: Callable[[float], str] = "{:g}".format

    def drawn(self) -> Columns:
        """What lies beyond the middle half by three of its widths is only counted."""
        known = sorted(each for each in self.values if abs(each) < _FURTHEST)
        if not known:
            return Columns(self.caption, (), "no values")
        # One slow sample would squeeze all others into one column.
        lower, upper = known[len(known) // 4], known[(3 * len(known)) // 4]
        reach = 3 * (upper - lower)
        drawn = [each for each in known if lower - reach <= each <= upper + reach]
        low, high = drawn[0], drawn[-1]
        bins = min(max(round(2 * math.sqrt(len(drawn))), 5), 30) if high > low else 1
        counts = [0] * bins
        for value in drawn:
            share = (value - low) / (high - low) if high > low else 0.0
            counts[min(int(share * bins), bins - 1)] += 1
        said = (
            f"from {self.text_of(low)} to {self.text_of(high)}, "
            f"at most {max(counts)} of {len(known)} in one column"
        )
        if beyond := len(known) - len(drawn):
            furthest = known[-1] if known[-1] > high else known[0]
            said += (
                f", {count_text(beyond, 'value')} beyond the picture, "
                f"as far as {self.text_of(furthest)}"
            )
        heights = [count / max(counts) for count in counts]
        return Columns(self.caption, ((_PLAIN, heights),), said)


@dataclass(frozen=True)
class Curve(DrawnAs):
    """An area under a quantity that goes by steps, with its highest place marked."""

    caption: str  # what is drawn
    highest: tuple[float, ...]  # the most in each stretch, from left to right
    across: tuple[str, str]  # what stands below its left end and below its right one
    peak: str  # what is told of the peak
    # the least in each stretch; empty where that is the most as well
    lowest: tuple[float, ...] = ()
    floor: float = 0  # what the lower edge stands for
    # writes a value with its unit
    text_of: Callable[[float], str] = "{:g}".format

    def drawn(self) -> Columns:
        """What rises and falls within one stretch is half as wide as it."""
        top = max(self.highest, default=self.floor)
        extent = max(top - self.floor, 0) or 1
        pairs = zip(self.highest, self.lowest or self.highest, strict=True)
        values = [value for pair in pairs for value in pair]
        heights = [max(value - self.floor, 0) / extent for value in values]
        return Columns(
            self.caption,
            ((MEANINGS["in use"], heights),),
            self.peak,
            rows=5,
            height=96,
            most_em=60,
            axis=(self.text_of(top), self.text_of(self.floor)),
            across=self.across,
            has_peak=True,
        )


Role = Literal["", "before", "together"]
_ROLES: dict[Role, Swatch] = {"before": BEFORE, "together": TOGETHER}


@dataclass(frozen=True)
class Layer:
    """One of the things that the quantity was made up of."""

    name: str  # what it is called
    levels: tuple[float, ...]  # how much of it there was in each stretch
    # whether it is what was there before, or many things together; those have a look
    # of their own, and no letter
    role: Role = ""


@dataclass(frozen=True)
class Areas(DrawnAs):
    """What a quantity was made up of as it went, the steadiest below.

    A letter names each, in the picture and wherever else it is spoken of: nobody has to
    tell a dozen colours apart.
    """

    caption: str  # what is drawn
    # in the order of their letters; those without a role are a dozen at most
    layers: tuple[Layer, ...]
    across: tuple[str, str]  # what stands below its left end and below its right one
    peak: str  # what is told of the peak
    # writes a value with its unit
    text_of: Callable[[float], str] = "{:g}".format
    # the places of layers that need no legend here, as a table beside it has them
    # with their `keys`
    told_elsewhere: frozenset[int] = frozenset()

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """For each layer the letter and the patch to speak of it with."""
        letters = iter(LAYERS)
        return tuple(
            Key(_ROLES.get(each.role) or next(letters, TOGETHER), each.name)
            for each in self.layers
        )

    @cached_property
    def _levels(self) -> list[list[float]]:
        length = max((len(each.levels) for each in self.layers), default=0)
        return [
            [
                max(at, 0.0)
                for at in (*each.levels, *[0.0] * (length - len(each.levels)))
            ]
            for each in self.layers
        ]

    def drawn(self) -> Columns:
        """From the ground up: what was before, what hardly moves, what moves most."""
        top = max((sum(each) for each in zip(*self._levels, strict=True)), default=0.0)
        named = [
            each
            for each in zip(self.keys, self._levels, self.layers, strict=True)
            if any(each[1])
        ]
        keys = [
            key
            for place, (key, levels) in enumerate(
                zip(self.keys, self._levels, strict=True)
            )
            if place not in self.told_elsewhere and any(levels)
        ]
        named.sort(
            key=lambda each: (
                each[2].role != "before",
                each[2].role == "together",
                -sum(each[1]) / max(each[1]),
            )
        )
        return Columns(
            self.caption,
            [(key.swatch, [at / top for at in its]) for key, its, _ in named],
            self.peak,
            rows=6,
            height=120,
            most_em=60,
            axis=(self.text_of(top), self.text_of(0)),
            across=self.across,
            has_peak=bool(self.peak),
            keys=sorted(keys, key=lambda key: not key.swatch.mark.isalpha()),
        )
