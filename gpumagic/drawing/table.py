"""Rows of things with the same properties, names with values, and what is in cells."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from gpumagic.drawing.html import Html, element, lines, patch, unbroken, words
from gpumagic.drawing.ink import (
    GAP,
    Indented,
    fit,
    glyphs_for,
    ink,
    side_by_side,
    widest,
    widest_word,
)
from gpumagic.drawing.palette import BLUE, RULE, TONES, TRACK, Look, Tone, text_on
from gpumagic.report.units import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from gpumagic.drawing.palette import Swatch

_CELLS = 12
_WIDTH_EM = 8
_LONGEST_HELD = 20


def track_html(share: float, fill: str, width_em: int, *, least_em: int = 0) -> Html:
    """A bar on its track, as a gradient: the one picture that CSS draws everywhere.

    In a window too narrow for the table around it, the bar gives way before the
    numbers beside it do.
    """
    share = held(share)
    # As in text, neither end is reached by rounding.
    end = f"{min(max(100 * share, 1.0), 99.0) if 0 < share < 1 else 100 * share:.1f}%"
    # A cell never becomes narrower than a `width` in it, whatever `max-width` says;
    # of a column that may shrink to nothing it asks nothing. Where JupyterLab, before
    # 4.4, drops such columns from what it does not trust, `min-width` is left.
    least = f"min-width:{least_em}em;" if least_em else ""
    return element(
        "span",
        style=f"display:inline-grid;grid-template-columns:minmax(0,{width_em}em);"
        f"{least}height:.9em;border-radius:.15em;vertical-align:-.1em;"
        # A stop before the last one stands where that one does.
        f"background:linear-gradient(90deg,{fill} {end},{TRACK} 0%)",
    )


def _track_ink(share: float, cells: int, options: ConsoleOptions) -> Text:
    """The bar on its track, in whole cells: neither end is reached by rounding."""
    glyphs, share = glyphs_for(options), held(share)
    filled = round(share * cells)
    if 0 < share < 1:
        filled = min(max(filled, 1), cells - 1)
    return Text(glyphs.full * filled + glyphs.empty * (cells - filled))


def held(share: float) -> float:
    """The share held between none and all; what is no number draws nothing."""
    return 0.0 if math.isnan(share) else min(max(share, 0.0), 1.0)


@dataclass(frozen=True)
class Badge:
    """A word with a mark, on a fill: free, busy, simulated."""

    word: str  # what it says; complete without its colour
    tone: Tone = "note"  # how it is meant

    @property
    def look(self) -> Look:
        """Fill, mark and terminal colour of the tone."""
        return TONES[self.tone]

    def html(self) -> Html:
        """The word as dark or light text on the tone's fill."""
        return element(
            "span",
            unbroken(f"{self.look.mark} {self.word}"),
            style=f"background:{self.look.fill};color:{text_on(self.look.fill)};"
            "padding:.1em .5em;border-radius:.3em",
        )

    def ink(self, options: ConsoleOptions) -> Text:
        """The word and its mark as console text."""
        mark = self.look.ascii_mark if options.ascii_only else self.look.mark
        return ink(f"{mark} {self.word}", options, self.look.style)


@dataclass(frozen=True)
class Meter:
    """A bar that is filled to a share, with the numbers beside it."""

    share: float | None  # from 0 to 1; None draws no bar
    text: str  # the numbers. The bar only repeats them.
    # whether the bar is half as long, beside others or much text
    is_short: bool = False

    def html(self) -> Html:
        """The bar and, beside it, the text in the colour around it."""
        if self.share is None:
            return words(self._words())
        bar = track_html(self.share, BLUE, _WIDTH_EM // self._parts)
        return Html(f"{bar} {unbroken(self._words())}")

    def ink(self, options: ConsoleOptions) -> Text:
        """The bar and the text as console text."""
        words = ink(self._words(), options)
        if self.share is None:
            return words
        bar = _track_ink(self.share, _CELLS // self._parts, options)
        return bar.append(" ").append_text(words)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield self.ink(options)

    @property
    def _parts(self) -> int:
        return 2 if self.is_short else 1

    def _words(self) -> str:
        return self.text or UNKNOWN


@dataclass(frozen=True)
class Key:
    """The name of what a picture shows by a colour, a pattern or a letter."""

    swatch: Swatch  # how it is drawn there; its mark may be a letter
    text: str  # its name

    def html(self) -> Html:
        """A patch, and the name.

        The patch is a picture like the one that it explains: where a site takes
        colours from the page, it leaves them in pictures.
        """
        first, *rest = self.text.split(" ", 1)
        held = patch(self.swatch) + Html("\N{NO-BREAK SPACE}") + words(first)
        # A browser would break the line between the two.
        style = "white-space:nowrap" if len(first) <= _LONGEST_HELD else ""
        begun = element("span", Html(held), style=style)
        return Html(" ".join((begun, *map(words, rest))))

    def ink(self, options: ConsoleOptions) -> Text:
        """The letter or character and the name as console text."""
        mark = Text(glyphs_for(options).of(self.swatch), style=self.swatch.style)
        return mark.append(" ").append_text(ink(self.text, options))


Cell = str | Badge | Key | Meter | None
"""None is what could not be found out; it is drawn as "unknown"."""


def cell_html(cell: Cell, *, number: bool = False) -> Html:
    """The cell's content as HTML; a number stays with its unit."""
    if cell is None:
        return words(UNKNOWN)
    if isinstance(cell, Badge | Key | Meter):
        return cell.html()
    return unbroken(cell) if number else words(cell)


def cell_ink(cell: Cell, options: ConsoleOptions) -> Text:
    """The cell's content as console text."""
    if cell is None:
        return ink(UNKNOWN, options, "dim")
    if isinstance(cell, Badge | Key | Meter):
        return cell.ink(options)
    return ink(cell, options)


# --------------------------------------------------------------------- tables

INDENT = 2

# JupyterLab centres tables and aligns every cell to the right by its own style
# sheet, which only a style on the element itself can undo.
_TABLE = "border-collapse:collapse;margin:0 0 .9em 0;font-size:{size}%"
_CAPTION = "text-align:left;caption-side:top;font-weight:600;padding:.2em .45em"
_LEFT = "text-align:left"

MOST_ROWS = 50
# With so many columns, smaller letters keep the numbers of a narrow page in sight.
_MANY_COLUMNS, _SMALLER_PERCENT = 8, 90


def table_html(
    caption: str, rows: Iterable[Html], *, head: Html | None = None, size: int = 100
) -> Html:
    """A table as wide as its content, with what it is about as its caption."""
    return element(
        "table",
        Html("\n"),
        lines(
            (
                element("caption", words(caption), style=_CAPTION) if caption else "",
                element("thead", head) if head else "",
                element("tbody", Html("\n"), lines(rows), Html("\n")),
            )
        ),
        Html("\n"),
        cellpadding=5,
        style=_TABLE.format(size=size),
    )


def row_html(first: Html, *cells: Html) -> Html:
    """A row; its first cell names it, which is what a screen reader says."""
    style = f"{_LEFT};font-weight:normal"
    return element("tr", element("th", first, scope="row", style=style), *cells)


def head_html(names: Iterable[tuple[Html, bool]]) -> Html:
    """The row of headings, each with whether its column is aligned to the right."""
    rule = f"border-bottom:1px solid {RULE}"
    return element(
        "tr",
        *(
            element(
                "th",
                name,
                scope="col",
                style="text-align:right" if right else _LEFT,
            )
            for name, right in names
        ),
        style=rule,
    )


def cell_of(content: Html, *, right: bool = False) -> Html:
    """A plain cell. `align` still works where styles are stripped."""
    if right:
        return element("td", content, align="right")
    return element("td", content, style=_LEFT)


def wide_row_html(text: str, columns: int) -> Html:
    """A row that is one remark, across all columns."""
    return element("tr", element("td", words(text), colspan=columns, style=_LEFT))


def caption_ink(caption: str, options: ConsoleOptions) -> Iterable[Text]:
    """The caption as a line of text, if there is one."""
    return [ink(caption, options, "bold")] if caption else []


def indented(renderable: RenderableType) -> Indented:
    """What stands under its caption."""
    return Indented(renderable, INDENT)


def rows_ink(
    rows: Iterable[Sequence[Text]],
    widths: Sequence[int],
    console: Console,
    *,
    right: Sequence[bool] = (),
) -> Iterator[Indented]:
    """Rows of cells under their caption, each as so many lines as it takes."""
    for row in rows:
        yield from map(indented, side_by_side(row, widths, console, right=right))


def narrower(options: ConsoleOptions) -> ConsoleOptions:
    """The room that is there for what is indented."""
    return options.update_width(max(options.max_width - INDENT, 1))


class DrawnAs:
    """A picture that is drawn as another: a timeline as marks, a curve as columns."""

    def drawn(self) -> Any:
        """What is drawn."""
        raise NotImplementedError

    def html(self) -> Html:
        """A table with the picture, its axes, and what is said of it."""
        return Html(self.drawn().html())

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield self.drawn()


@dataclass(frozen=True)
class Grid:
    """What is known about one thing."""

    caption: str  # what it is about; may be empty
    # each name with its value, in the order in which they matter
    pairs: tuple[tuple[str, Cell], ...]

    def html(self) -> Html:
        """A table of two columns whose first is its headings."""
        return table_html(
            self.caption,
            (
                row_html(words(name), cell_of(cell_html(value)))
                for name, value in self.pairs
            ),
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        room = options.max_width - INDENT
        rows = [
            (ink(name, options), cell_ink(value, options)) for name, value in self.pairs
        ]
        columns = [[row[at].plain for row in rows] for at in (0, 1)]
        least = [min(widest_word(each), 24) for each in columns]
        widths = fit([widest(each) for each in columns], least, room - len(GAP))
        if widths:
            yield from rows_ink(rows, widths, console)
            return
        for name, value in rows:
            yield indented(name)
            yield indented(indented(value))


@dataclass(frozen=True)
class Column:
    """One property: its heading, and whether its cells are numbers.

    Numbers are aligned to the right and never broken into two lines.
    """

    heading: str
    number: bool = False


class Property(NamedTuple):
    """A column, and what a row has in it: a table is a list of these."""

    column: Column
    cell: Callable[[Any], Cell]


@dataclass(frozen=True)
class Table:
    """A table, cut where it would bury the notebook."""

    caption: str  # what the rows are
    columns: tuple[Column, ...]  # the properties; the first one names the row
    rows: tuple[tuple[Cell, ...], ...]  # one cell for each column
    # how many there are, where `rows` has been cut already
    total_rows: int | None = None
    # the word by which all rows are asked for where only the first ones are in sight;
    # empty where it is never cut for that
    name: str = ""

    def __post_init__(self) -> None:
        if not self.columns or any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.caption}: each row needs one cell for each column")

    @classmethod
    def of(
        cls,
        caption: str,
        properties: Iterable[Property],
        things: Iterable[Any],
        total: int | None = None,
        *,
        name: str = "",
    ) -> Table:
        """A row for each thing."""
        wanted = tuple(properties)
        rows = tuple(tuple(each.cell(thing) for each in wanted) for thing in things)
        return cls(caption, tuple(each.column for each in wanted), rows, total, name)

    def beginning(self, rows: int) -> Table:
        """The same with its first rows only, and how many more there are."""
        total = max(self.total_rows or 0, len(self.rows))
        return replace(self, rows=self.rows[:rows], total_rows=total)

    @property
    def shown(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows that are drawn."""
        return self.rows[:MOST_ROWS]

    @property
    def remark(self) -> str:
        """What is said under the rows: that there are none, or how many more."""
        more = max(self.total_rows or 0, len(self.rows)) - len(self.shown)
        if more:
            return f"... and {more:,} more"
        return "" if self.rows else "none"

    def html(self) -> Html:
        """A table with a heading for each column and each row."""
        names = [(words(each.heading), each.number) for each in self.columns]
        rows = [self._row_html(row) for row in self.shown]
        if self.remark:
            rows.append(wide_row_html(self.remark, len(self.columns)))
        many = len(self.columns) >= _MANY_COLUMNS
        size = _SMALLER_PERCENT if many else 100
        return table_html(self.caption, rows, head=head_html(names), size=size)

    def _row_html(self, row: tuple[Cell, ...]) -> Html:
        first, *rest = (
            cell_html(cell, number=column.number)
            for cell, column in zip(row, self.columns, strict=True)
        )
        sides = (column.number for column in self.columns[1:])
        cells = (
            cell_of(each, right=side) for each, side in zip(rest, sides, strict=True)
        )
        return row_html(first, *cells)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        heads = [ink(column.heading, options, "bold") for column in self.columns]
        rows = [[cell_ink(cell, options) for cell in row] for row in self.shown]
        room = options.max_width - INDENT - len(GAP) * (len(heads) - 1)
        widths = self._widths(heads, rows, room)
        if widths:
            right = [column.number for column in self.columns]
            yield from rows_ink((heads,), widths, console, right=right)
            rule = glyphs_for(options).rule
            yield indented(Text(GAP.join(rule * width for width in widths)))
            yield from rows_ink(rows, widths, console, right=right)
        else:
            yield from self._one_below_the_other()
        if self.remark:
            yield indented(ink(self.remark, options, "dim"))

    def _widths(
        self, heads: list[Text], rows: list[list[Text]], room: int
    ) -> tuple[int, ...] | None:
        wants, least = [], []
        for place, column in enumerate(self.columns):
            cells = [row[place].plain for row in rows]
            head = heads[place].plain
            wants.append(widest((head, *cells)))
            whole = widest(cells) if column.number else widest_word(cells)
            least.append(min(max(widest_word((head,)), whole), wants[-1]))
        return fit(wants, least, room)

    def _one_below_the_other(self) -> RenderResult:
        """For a console too narrow for the columns: each row as a grid."""
        headings = [column.heading for column in self.columns]
        for number, row in enumerate(self.shown):
            if number:
                yield Text()
            yield Grid("", tuple(zip(headings, row, strict=True)))
