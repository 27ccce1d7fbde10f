"""Spans on a scale: rows of marks, each row between its name and what is said of it.

HTML and text are drawn from one raster, so that they cannot disagree. Where marks are
finer than it, the height of a column is the share of it that each kind covers: one by
one they would hide each other, and what idles half of the time would look busy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from gpumagic.drawing.html import (
    INSET,
    WIDEST_EM,
    Html,
    axis_html,
    element,
    filled,
    lines,
    outline,
    path,
    unbroken,
    wide_image,
    wide_picture,
    words,
    written,
)
from gpumagic.drawing.ink import (
    GAP,
    axis_ink,
    clean,
    glyphs_for,
    in_lines,
    in_runs,
    ink,
    widest,
)
from gpumagic.drawing.palette import (
    BLUE,
    FREE,
    TRACK,
    Swatch,
    swatches,
    text_on,
)
from gpumagic.drawing.table import (
    INDENT,
    DrawnAs,
    Key,
    caption_ink,
    cell_of,
    head_html,
    indented,
    narrower,
    row_html,
    rows_ink,
    table_html,
    wide_row_html,
)
from gpumagic.report.units import count_text, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.drawing.ink import Glyphs

WIDTH, HEIGHT = 480, 18
_FEWEST_CELLS, _MOST_CELLS = 8, 60
_MOST_EM = 60
# Where more marks begin in so many pixels, or characters, heights are drawn.
_FINE_PX, _FINE_CELLS = (8, 2), (2, 1)
# From so many pixels on, one can be spared that sets a mark off from the next.
_WITH_HAIR = 4
_WITH_GAP_PX, _WITH_GAP_CELLS = 6, 3
# About 120 bytes of HTML for each stretch that tells something.
_MOST_HOVERS, _LEAST_HOVER_PX = 240, 3
_MOST_NAMED, _LONGEST_TITLE, _SHORT_LABEL = 2, 100, 16
# Generous for a letter of the label's font: what fits by this, fits.
_LETTER_WIDTH = 7
_NEARLY_ALL = 0.94  # what no height of eight can tell from all
_FURTHEST = 1e100
_TRACK, _NOTHING = -1, -2


class Mark(NamedTuple):
    """Something in a row, from where to where in shares of the scale."""

    start: float
    end: float
    kind: str  # which look it has; what is of no known kind is empty
    label: str = ""  # written on it where there is room
    name: str = ""  # what it belongs to
    size: float = 0.0  # in the unit of what is told of many
    tell: Callable[[], str] | None = None  # what the pointer is told of it
    starts: bool = False  # whether it is set off from what is before it


class Line(NamedTuple):
    """One row of a picture."""

    label: str  # what stands before it
    marks: Sequence[Mark]  # in the order of their beginnings
    text: str  # what stands behind it
    said: str = ""  # for the ear, where that is more than label and text
    length: float = 1.0  # how much of the scale it is long


class _Raster(NamedTuple):
    """What is drawn where on a line of so many places."""

    owners: list[int]  # the mark that each place shows, -1 for none
    column: int  # how many places make a column
    shares: dict[int, dict[str, float]]  # by column, where marks are too fine
    cuts: list[int]  # where something is set off from what is before it


def raster(line: Line, width: int, fine: tuple[int, int], gap: int = 0) -> _Raster:
    """Each mark at one place at least: what happened can be seen, however short."""
    column, most = fine
    begun = sorted(mark.start for mark in line.marks if mark.kind)
    crowded = {
        at
        for first, last in zip(begun, begun[2 * most :], strict=False)
        if (last - first) * width < 2 * column
        for at in range(int(first * width) // column, int(last * width) // column + 1)
    }
    shares: dict[int, dict[str, float]] = {at: defaultdict(float) for at in crowded}
    owners, cuts = [-1] * width, [0]
    for number, mark in sorted(
        enumerate(line.marks), key=lambda each: each[1].start - each[1].end
    ):  # the longest first, so that no short one is hidden
        start, end = mark.start * width, mark.end * width
        left = min(int(start), width - 1)
        right = min(max(round(end), left + 1), width)
        owners[left:right] = [number] * (right - left)
        for at in range(left // column, -(-right // column)):
            if at in shares:
                low, high = at * column, min((at + 1) * column, width)
                covered = max(min(end, high) - max(start, low), 0.0)
                shares[at][mark.kind] += covered / (high - low)
    for mark in line.marks:
        left = int(mark.start * width)
        if mark.starts and gap and left - cuts[-1] >= gap:
            cuts.append(left)
    return _Raster(owners, column, shares, cuts[1:])


def shapes(line: Line, kinds: Mapping[str, Swatch], seen: _Raster) -> Iterator[Html]:
    """The track, then each kind upon it; what is stacked higher is drawn first."""
    solid = [kind for kind, swatch in kinds.items() if _covers(swatch)]
    tops: dict[str, list[tuple[float, int]]] = {kind: [] for kind in solid}
    track = []
    for owner, run in groupby(_shown(line, seen)):
        length, below = len(list(run)), 0.0
        track.append((0.0 if owner == _NOTHING else 1.0, length))
        share = {line.marks[owner].kind: 1.0} if owner >= 0 else {}
        if owner < _NOTHING:
            share = seen.shares[_NOTHING - 1 - owner]
        for kind, its in tops.items():
            if kind in share:
                below = min(below + share[kind], 1.0)
            its.append((below if kind in share else 0.0, length))
    yield path(outline(track, HEIGHT), TRACK)
    for kind, its in reversed(tops.items()):
        if any(top for top, _ in its):
            yield filled(outline(its, HEIGHT), kinds[kind])
    yield from _labels(line, kinds, seen)


def _shown(line: Line, seen: _Raster) -> list[int]:
    """For each pixel the mark, _TRACK or _NOTHING; below that a column of heights."""
    places = list(seen.owners)
    for mark in line.marks:
        left, right = int(mark.start * WIDTH), round(mark.end * WIDTH)
        if right - left >= _WITH_HAIR:
            places[right - 1] = _TRACK
    for column in seen.shares:
        left = column * seen.column
        right = min(left + seen.column, WIDTH)
        places[left:right] = [_NOTHING - 1 - column] * (right - left)
    for at in seen.cuts:
        places[at - 2 : at] = [_NOTHING] * 2
    ends = min(max(round(line.length * WIDTH), 1), WIDTH) if line.length > 0 else 0
    return places[:ends] + [_NOTHING] * (WIDTH - ends)


def _labels(line: Line, kinds: Mapping[str, Swatch], seen: _Raster) -> Iterator[Html]:
    for number, wide in sorted(Counter(seen.owners).items()):
        mark = line.marks[number] if number >= 0 else Mark(0.0, 0.0, "")
        name, swatch = clean(mark.label), kinds.get(mark.kind)
        # Letters can be read on a plain fill only.
        if not name or swatch is None or swatch.pattern or swatch.fill == TRACK:
            continue
        if cell_len(name) * _LETTER_WIDTH + 6 <= wide:
            fill, share = text_on(swatch.fill), wide / WIDTH
            yield written(name, mark.start, share, HEIGHT - 5, fill)


def _covers(swatch: Swatch) -> bool:
    """Whether it covers the track that lines are drawn on."""
    return swatch.fill != TRACK


def _height(share: Mapping[str, float], kinds: Mapping[str, Swatch]) -> float:
    solid = (
        its for kind, its in share.items() if kind in kinds and _covers(kinds[kind])
    )
    return min(sum(solid), 1.0)


def line_ink(
    line: Line, kinds: Mapping[str, Swatch], seen: _Raster, glyphs: Glyphs
) -> Text:
    """A character for each place: a kind's own, or a height where it is too fine."""
    top, drawn = len(glyphs.levels) - 1, []
    ends = max(round(line.length * len(seen.owners)), 1) if line.length > 0 else 0
    for at, owner in enumerate(seen.owners[:ends]):
        share = seen.shares.get(at // seen.column)
        kind = line.marks[owner].kind if owner >= 0 else ""
        character, style, filled = glyphs.gap, "", 1.0
        if share is not None:
            solid = [each for each in kinds if each in share and _covers(kinds[each])]
            kind = max(solid, key=share.__getitem__, default="")
            filled = _height(share, kinds)
        if kind in kinds:
            character, style = glyphs.of(kinds[kind]), kinds[kind].style
            if filled < _NEARLY_ALL:
                character = glyphs.levels[min(round(filled * top), top - 1)]
        drawn.append(("|" if at in seen.cuts else character, style))
    return in_runs(drawn)


class Hover(NamedTuple):
    """A stretch of a picture, in pixels, and what it tells; nothing if empty."""

    left: int
    right: int
    title: str


def hovers_html(hovers: Iterable[Hover], width: int, height: int) -> Html:
    """The boxes, side by side over the picture of this size that stands before them."""
    boxes, at = [], 0
    for left, right, title in hovers:
        if left > at:
            boxes.append(_box("", left - at))
        boxes.append(_box(shortened(clean(title), _LONGEST_TITLE), right - left))
        at = right
    if not boxes:
        return Html("")
    if at < width:
        boxes.append(_box("", width - at))
    # Boxes that share the room are as wide as the picture, however wide that is.
    style = f"display:flex;height:{height}px;margin-top:-{height}px"
    return element("div", *boxes, style=style)


def _box(title: str, share: int) -> Html:
    return element("span", title=title, style=f"flex:{share}")


@dataclass(frozen=True)
class Spans:
    """Rows of marks on one scale, each between its name and what is said of it."""

    caption: str
    lines: Sequence[Line]  # from top to bottom
    kinds: Mapping[str, Swatch]  # how each kind is drawn
    # what is said of each kind, in that order; only those that are drawn are told
    legend: Iterable[tuple[str, str]] = ()
    # what the scale is at its beginning, perhaps in its middle, at its end
    ticks: Sequence[str] = ()
    # what stands over labels and texts, with the axis between them
    heads: tuple[str, str] | None = None
    remarks: tuple[str, ...] = ()  # what else is said under it
    noun: str = ""  # what marks are called; without, nothing is told of them
    size_text: Callable[[float], str] = "{:g}".format
    unused: str = ""  # what an empty place stands for, where that is explained
    text_first: bool = False  # whether text has figures before the line
    is_number: bool = True  # whether what stands behind is a figure
    most_em: int = _MOST_EM  # how wide pictures become

    def _seen(self, width: int, fine: tuple[int, int], gap: int) -> list[_Raster]:
        """What is drawn; where marks have no name, they are few."""
        fine = fine if self.noun else (1, WIDTH)
        return [raster(each, width, fine, gap) for each in self.lines]

    def _remarks(self, seen: list[_Raster]) -> Iterator[str]:
        yield from self.remarks
        shares = [share for each in seen for share in each.shares.values()]
        if any(0 < _height(share, self.kinds) < _NEARLY_ALL for share in shares):
            yield (
                f"where {self.noun}s are too fine to draw one by one, the height is "
                "their share"
            )

    def _legend(self) -> Iterator[tuple[Swatch, str]]:
        drawn = {mark.kind for line in self.lines for mark in line.marks}
        for kind, text in self.legend:
            if kind in drawn:
                yield self.kinds[kind], f"{kind}, {text}" if text else kind

    def html(self) -> Html:
        """A table with one picture for each line, then what the colours mean."""
        seen = self._seen(WIDTH, _FINE_PX, _WITH_GAP_PX)
        rows = []
        for line, its in zip(self.lines, seen, strict=True):
            name = line.label or "continued"
            picture = wide_picture(WIDTH, HEIGHT, name, *shapes(line, self.kinds, its))
            over = hovers_html(self._hovers(line), WIDTH, HEIGHT)
            said = line.said or f"{name}: {line.text}"
            image = wide_image(picture, said, WIDTH, HEIGHT, over, most_em=self.most_em)
            text = unbroken(line.text) if self.is_number else words(line.text)
            text_cell = cell_of(text, right=self.is_number)
            # A short name stays whole beside a picture that takes all.
            short = len(line.label) <= _SHORT_LABEL
            shown = unbroken(line.label) if short else words(line.label)
            rows.append(row_html(shown, cell_of(image), text_cell))
        head = None
        if self.heads is not None:
            first, last = map(words, self.heads)
            sides = (False, False, self.is_number)
            names = first, axis_html(self.ticks), last
            head = head_html(zip(names, sides, strict=True))
        rows = rows or [wide_row_html("none", 3)]
        unused = (words(f"□ {self.unused}"),) if self.unused else ()
        keys = (*(Key(*each).html() for each in self._legend()), *unused)
        told = [" &nbsp; ".join(keys), *map(words, self._remarks(seen))]
        foot = Html("<br/>".join(filter(None, told)))
        style = f"margin:0 0 .9em {INSET};max-width:{WIDEST_EM}em"
        foot = element("p", foot, style=style) if foot else foot
        return lines((table_html(self.caption, rows, head=head), foot))

    def _hovers(self, line: Line) -> Iterator[Hover]:
        """Boxes of whole pixels; what is narrow shares one."""
        if not self.noun:
            return
        least = max(WIDTH * len(self.lines) // _MOST_HOVERS, _LEAST_HOVER_PX)
        held: list[Mark] = []
        left = right = 0
        for mark in line.marks:
            start, end = int(mark.start * WIDTH), math.ceil(mark.end * WIDTH)
            # A wide mark is told alone, whatever narrow ones lie before it.
            alone = end - start >= 2 * least and left < start
            if held and (start >= right or alone):
                right = min(right, max(start, left + 1))
                yield Hover(left, right, self._told(held))
                left, held = max(start, right), []
            elif not held:
                left = max(start, right)
            held.append(mark)
            right = min(max(right, end, left + least), WIDTH)
        if held and right > left:
            yield Hover(left, right, self._told(held))

    def _told(self, marks: Sequence[Mark]) -> str:
        """One in its own words; of several how many, and the sizes of the largest."""
        if len(marks) == 1 and marks[0].tell is not None:
            return marks[0].tell()
        sizes: dict[str, float] = {}
        for mark in marks:
            name = mark.name or mark.label or mark.kind or FREE
            sizes[name] = sizes.get(name, 0.0) + mark.size
        shown = sorted(sizes.items(), key=lambda each: -each[1])[:_MOST_NAMED]
        named = [f"{self.size_text(size)} {name}" for name, size in shown]
        if more := len(sizes) - len(shown):
            named.append(count_text(more, "other name"))
        return f"{count_text(len(marks), self.noun)}: {', '.join(named)}"

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        glyphs = glyphs_for(options)
        labels = [ink(line.label, options) for line in self.lines]
        texts = [ink(line.text, options) for line in self.lines]
        room = options.max_width - INDENT - 2 * len(GAP)
        text = min(widest(each.plain for each in texts), max(room // 3, 2))
        name = min(widest(each.plain for each in labels), max(room // 3, 2))
        cells = max(min(room - name - text, _MOST_CELLS), _FEWEST_CELLS)
        name = max(min(name, room - text - cells), 1)
        seen = self._seen(cells, _FINE_CELLS, _WITH_GAP_CELLS)
        bars = [
            line_ink(line, self.kinds, its, glyphs)
            for line, its in zip(self.lines, seen, strict=True)
        ]
        columns = [(labels, name, False), (bars, cells, False)]
        columns.insert(1 if self.text_first else 2, (texts, text, self.is_number))
        rows = list(zip(*(each for each, _, _ in columns), strict=True))
        if self.ticks:
            rows.append((Text(), axis_ink(self.ticks, cells, options), Text()))
        widths, right = zip(*((wide, side) for _, wide, side in columns), strict=True)
        yield from rows_ink(rows, widths, console, right=right)
        narrow = narrower(options)
        keys = [Key(*each).ink(narrow) for each in self._legend()]
        keys += [ink(f"{glyphs.gap} {self.unused}", narrow)] if self.unused else ()
        yield from map(indented, in_lines(keys, narrow))
        yield from (indented(ink(each, narrow)) for each in self._remarks(seen))


# ----------------------------------------------------------- quantities in pieces


@dataclass(frozen=True)
class Stack:
    """One bar."""

    label: str  # what the whole is
    # each kind with its size, from left to right; an empty kind is a gap
    pieces: tuple[tuple[str, float], ...]
    text: str  # the whole as it is read, with its unit


@dataclass(frozen=True)
class Stacks(DrawnAs):
    """Bars in pieces, to the scale of the longest."""

    caption: str  # what is shown
    stacks: tuple[Stack, ...]  # in the order in which they are to be read
    # each kind in the order in which they are told, and what is said of it
    legend: tuple[tuple[str, str], ...]

    def drawn(self) -> Spans:
        """A line for each bar."""
        rows = [
            StripRow(each.label, tuple(Piece(*its) for its in each.pieces), each.text)
            for each in self.stacks
        ]
        kinds = swatches(kind for kind, _ in self.legend)
        return Spans(self.caption, _lines(rows), kinds, self.legend, text_first=True)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a row."""

    kind: str  # what it is; empty for what is not in use
    size: float  # how long it is
    name: str = ""  # what it belongs to, if anything
    # says all there is to it alone; asked only where that is drawn
    tell: Callable[[], str] | None = None
    starts: bool = False  # whether something new begins with it that is to be set off


@dataclass(frozen=True)
class StripRow:
    """Pieces one behind the other."""

    label: str  # what they belong to; may be empty where it is the one above
    pieces: tuple[Piece, ...]  # from left to right
    text: str  # the row as it is read, in numbers

    @property
    def length(self) -> float:
        """All pieces together; what is no size counts as none."""
        return sum(each.size for each in self.pieces if 0 < each.size < _FURTHEST)


@dataclass(frozen=True)
class Strips(DrawnAs):
    """Rows of pieces, such as the blocks of memory, to the scale of a full row."""

    caption: str  # what is shown
    rows: tuple[StripRow, ...]  # from top to bottom
    # each kind in the order in which they are told, and what is said of it
    legend: tuple[tuple[str, str], ...]
    full: float  # how long a row is that fills the width
    noun: str = "piece"  # what the pieces are called
    # writes a size with its unit
    text_of: Callable[[float], str] = "{:g}".format
    remark: str = ""  # what else is said under the rows

    def drawn(self) -> Spans:
        """A line for each row."""
        return Spans(
            self.caption,
            _lines(self.rows, self.full),
            swatches(kind for kind, _ in self.legend),
            self.legend,
            remarks=(self.remark,) if self.remark else (),
            noun=self.noun,
            size_text=self.text_of,
            unused=FREE,
        )


def _lines(rows: Sequence[StripRow], full: float = 0.0) -> list[Line]:
    """Each piece where the one before it ends; what is no size is left out."""
    longest, lines = max((full, *(row.length for row in rows))), []
    for row in rows:
        marks, at = [], 0.0
        for each in row.pieces:
            if 0 < each.size < _FURTHEST:
                end = min(at + each.size / longest, 1.0)
                told = each.name, each.size, each.tell, each.starts
                marks.append(Mark(at, end, each.kind, "", *told))
                at = end
        lines.append(Line(row.label, marks, row.text, length=at))
    return lines


# ------------------------------------------------------------- one stretch a line


@dataclass(frozen=True)
class Extent:
    """One stretch."""

    name: str  # whose it is
    start: float  # where it begins
    stop: float  # where it ends; exclusive. Without a length nothing is drawn.
    dense: bool  # whether it is filled
    said: str  # the same in words


_STRETCHES = {
    "dense": Swatch("blue", BLUE, "", "█", "#"),
    "with gaps": Swatch("blue, ribbed", BLUE, "columns", "▒", "+"),
}


@dataclass(frozen=True)
class Extents(DrawnAs):
    """Stretches of one line."""

    caption: str  # what the line is
    lanes: tuple[Extent, ...]  # from top to bottom
    total: float  # how long the line is
    ends: tuple[str, str]  # what stands at its two ends

    def drawn(self) -> Spans:
        """A line for each stretch."""
        lines = []
        for each in self.lanes:
            kind = "dense" if each.dense else "with gaps"
            marks: tuple[Mark, ...] = ()
            if each.stop > each.start and self.total:
                end = min(each.stop / self.total, 1.0)
                marks = (Mark(each.start / self.total, end, kind),)
            lines.append(Line(each.name, marks, each.said))
        return Spans(
            self.caption,
            lines,
            _STRETCHES,
            ticks=self.ends,
            heads=("name", "where"),
            is_number=False,
        )
