"""How much was in use from step to step of a cell: a curve with its peak marked."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import Column, Details, Meter, Property, Table, svg
from gpumagic.drawing.html import Html, element, unbroken, words
from gpumagic.drawing.ink import GAP, clean, glyphs_for, ink
from gpumagic.drawing.palette import BLUE, TRACK, VERMILLION
from gpumagic.drawing.table import (
    INDENT,
    caption_ink,
    cell_of,
    indented,
    row_html,
    table_html,
)
from gpumagic.gpu_mem.view_terms import device_name, of_host, short_name
from gpumagic.report.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing import Part
    from gpumagic.gpu_mem.records import AtPeak, Course, Setting

_WIDTH, _HEIGHT = 480, 96
_MARK = 5
_LINE_HEIGHT = 16
_ROWS = 5  # of text
_MOST_CELLS = 60
_FEWEST_CELLS = 8
_FROM_ZERO = 0.5  # of the peak: what never falls below is not drawn from zero on
_MOST_NAMED = 3
_PEAK_MARK = "^"


@dataclass(frozen=True)
class Curve:
    """An area over the steps of a cell, with its highest place marked.

    Args:
        caption: What is drawn.

        lowest: Of each place the least, from left to right.

        highest: The most.

        floor: The bytes at the lower edge; the upper one is the highest value.

        peak_at: Where the peak is, as a share of the width.

        peak: What is told of it.

        across: What lies to the right.
    """

    caption: str
    lowest: tuple[int, ...]
    highest: tuple[int, ...]
    floor: int
    peak_at: float
    peak: str
    across: str

    @property
    def _top(self) -> int:
        return max(self.highest)

    def _height(self, nbytes: int) -> float:
        return (nbytes - self.floor) / max(self._top - self.floor, 1)

    @property
    def _axis(self) -> tuple[str, str]:
        return bytes_text(self._top), bytes_text(self.floor)

    # ---------------------------------------------------------------------- HTML

    def html(self) -> Html:
        """A table: the axis, the picture, and below it the peak and the other axis."""
        upper, lower = self._axis
        between = f"height:{_HEIGHT - _LINE_HEIGHT}px"
        pair = Html(
            element("div", unbroken(upper), style=between)
            + element("div", unbroken(lower))
        )
        alt = f"{self.caption}: a curve from {upper} down to {lower}. {self.peak}"
        drawn = svg.picture(_WIDTH, _HEIGHT, self.caption, *self._shapes())
        return table_html(
            self.caption,
            (
                row_html(pair, cell_of(svg.image(drawn, alt, _WIDTH, _HEIGHT))),
                row_html(Html(""), cell_of(self._foot_html())),
            ),
        )

    def _foot_html(self) -> Html:
        mark = svg.path(f"M{_MARK} {_MARK}l-{_MARK} -{_MARK}h{2 * _MARK}z", VERMILLION)
        picture = svg.picture(2 * _MARK, _MARK, "peak", mark)
        patch = svg.image(picture, "the mark", 2 * _MARK, _MARK)
        told = Html(f"{patch} {words(self.peak)}")
        return Html(f"{told}{element('br')}{words(self.across)}")

    def _shapes(self) -> Iterator[Html]:
        yield svg.path(f"M0 0h{_WIDTH}v{_HEIGHT}h-{_WIDTH}z", TRACK)
        room = _HEIGHT - 2 * _MARK
        step = _WIDTH / len(self.highest)
        tops = [_MARK + room * (1 - self._height(each)) for each in self.highest]
        lows = [_MARK + room * (1 - self._height(each)) for each in self.lowest]
        data = [f"M0 {_HEIGHT}"]
        for number, (top, low) in enumerate(zip(tops, lows, strict=True)):
            left, right = number * step, (number + 1) * step
            # What rises and falls within one place is as high as its least, with a
            # line up to its most: else a few steps would look like a plateau.
            middle = (left + right) / 2
            data.append(f"L{left:.1f} {low:.0f}")
            if top < low:
                data.append(f"L{middle:.1f} {top:.0f}")
            data.append(f"L{right:.1f} {low:.0f}")
        data.append(f"L{_WIDTH} {_HEIGHT}z")
        yield svg.path("".join(data), BLUE)
        x = min(max(self.peak_at * _WIDTH, _MARK), _WIDTH - _MARK)
        yield svg.path(f"M{x:.1f} {_MARK}l-{_MARK} -{_MARK}h{2 * _MARK}z", VERMILLION)

    # ---------------------------------------------------------------------- text

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        axis = max(map(len, self._axis))
        room = options.max_width - INDENT - axis - len(GAP)
        cells = max(min(room, _MOST_CELLS), _FEWEST_CELLS)
        heights = _in_cells([self._height(each) for each in self.highest], cells)
        levels = glyphs_for(options).levels
        upper, lower = self._axis
        for row in range(_ROWS):
            label = {0: upper, _ROWS - 1: lower}.get(row, "")
            below = (_ROWS - 1 - row) / _ROWS
            line = "".join(_glyph((at - below) * _ROWS, levels) for at in heights)
            yield indented(Text(f"{label:>{axis}}{GAP}").append(line, style=BLUE))
        at = min(int(self.peak_at * len(heights)), len(heights) - 1)
        yield indented(Text(" " * (axis + len(GAP) + at) + _PEAK_MARK))
        for text in (f"{_PEAK_MARK} {self.peak}", self.across):
            yield indented(ink(clean(text), options))


def _in_cells(heights: Sequence[float], cells: int) -> list[float]:
    """A height for each cell; of several the highest, as the peak is news."""
    count = len(heights)
    starts = [at * count // cells for at in range(cells + 1)]
    return [
        max(heights[start : max(stop, start + 1)]) for start, stop in pairwise(starts)
    ]


def _glyph(height: float, levels: str) -> str:
    """What of one row is filled, from nothing to all of it."""
    if height <= 0:
        return " "
    return levels[min(int(height * len(levels)), len(levels) - 1)]


# --------------------------------------------------------------- what a report shows


def curve(course: Course, setting: Setting) -> Curve:
    """The course of one device, to a scale that shows its ups and downs."""
    lowest, peak = min(course.lowest_bytes), course.peak_bytes
    floor = lowest if lowest > _FROM_ZERO * peak else 0
    name = device_name(setting, course.device)
    whose = "Host memory in use" if of_host(setting) else f"In use on {name}"
    caption = f"{whose}, step by step"
    if floor:
        caption += f": the scale begins at {bytes_text(floor)}"
    steps = "1 step" if course.steps == 1 else f"{course.steps:,} steps"
    lost = "; some are missing, as the recording was full" if course.partial else ""
    return Curve(
        caption=caption,
        lowest=course.lowest_bytes,
        highest=course.highest_bytes,
        floor=floor,
        peak_at=(course.peak_step + 0.5) / (course.steps + 1),
        peak=_peak_told(course),
        across=f"to the right: {steps}, each takes a piece or gives one back{lost}",
    )


def _peak_told(course: Course) -> str:
    """How much and where, and whose the most of it was."""
    where = ""
    if course.peak_step == 0:
        where = " before the cell took anything"
    elif course.peak_number is not None:
        where = f" in line {course.peak_number}"
    elif course.peak_line is not None:
        where = f" in {course.peak_line.where}"
    most = [
        f"{bytes_text(each.nbytes)} {_whose(each)}"
        for each in course.at_peak[:_MOST_NAMED]
    ]
    whose = f": {', '.join(most)}" if most else ""
    return f"peak {bytes_text(course.peak_bytes)}{where}{whose}"


def _whose(each: AtPeak) -> str:
    if each.name:
        return f"in {short_name(each.name)}"
    if each.from_before:
        return "there before"
    return "without a name" if each.line is None else f"from {_owner(each)}"


def _owner(each: AtPeak) -> str:
    if each.name:
        return short_name(each.name)
    if each.number is not None:
        return f"line {each.number}"
    if each.line is not None:
        return each.line.where
    return "there before, no name" if each.from_before else "no name found"


def highest_course(courses: Sequence[Course]) -> Course:
    """That of the device on which most was taken."""
    return max(courses, key=lambda each: each.peak_bytes - each.lowest_bytes[0])


def course_details(
    courses: Sequence[Course], setting: Setting, rows_in_sight: int
) -> Iterator[Details]:
    """What was in use at the peak, and the curves for which there was no room.

    Args:
        courses: Of each device.

        setting: Where.

        rows_in_sight: How much of it is told already of the highest one.
    """
    shown = highest_course(courses)
    if len(courses) > 1 or len(shown.at_peak) > rows_in_sight:
        tables = tuple(_tables(courses, setting))
        yield Details("All that was in use at the peak", tables, "peak")
    others: list[Part] = [curve(each, setting) for each in courses if each is not shown]
    if others:
        yield Details("The other devices, step by step", tuple(others), "devices")


def _tables(courses: Sequence[Course], setting: Setting) -> Iterator[Table]:
    for course in courses:
        if not course.at_peak:
            continue
        name = device_name(setting, course.device)
        caption = f"At the peak, {name}" if len(courses) > 1 else ""
        yield at_peak_table(course, caption)


def at_peak_table(course: Course, caption: str) -> Table:
    """Whose it was, largest first."""
    most = course.at_peak[0].nbytes

    def size(each: AtPeak) -> Meter:
        return Meter(each.nbytes / most if most else None, bytes_text(each.nbytes))

    properties = [
        Property(Column("Held by"), _owner),
        Property(Column("In use at the peak", number=True), size),
        Property(Column("Since then"), _since),
    ]
    if any(each.line is not None for each in course.at_peak):
        properties.append(Property(Column("Taken by"), _code))
    return Table.of(caption, properties, course.at_peak)


def _since(each: AtPeak) -> str:
    return "still in use" if each.was_left else "given back"


def _code(each: AtPeak) -> str:
    if each.line is None:
        return ""
    return each.line.source or each.line.where
