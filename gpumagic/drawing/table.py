"""Rows of things that have the same properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing.cell import Cell, cell_html, cell_ink
from gpumagic.drawing.columns import fit, widest, widest_word
from gpumagic.drawing.glyphs import glyphs_for
from gpumagic.drawing.grid import Grid
from gpumagic.drawing.html import Html, words
from gpumagic.drawing.ink import GAP, ink, side_by_side, underline
from gpumagic.drawing.tabular import (
    INDENT,
    caption_ink,
    cell_of,
    head_html,
    indented,
    row_html,
    table_html,
    wide_row_html,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

MOST_ROWS = 50

# With so many columns, smaller letters keep the numbers of a narrow page in sight.
_MANY_COLUMNS, _SMALLER_PERCENT = 8, 90


@dataclass(frozen=True)
class Column:
    """One property: its heading, and whether its cells are numbers.

    Numbers are aligned to the right and never broken into two lines.
    """

    heading: str
    number: bool = False


@dataclass(frozen=True)
class Table:
    """A table, cut where it would bury the notebook.

    Args:
        caption: What the rows are.

        columns: The properties; the first one names the row.

        rows: One cell for each column.

        total_rows: How many there are, where `rows` has been cut already.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    total_rows: int | None = None

    def __post_init__(self) -> None:
        if not self.columns or any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.caption}: each row needs one cell for each column")

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
            for line in self._lines((heads, *rows), widths, console, options):
                yield indented(line)
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

    def _lines(
        self,
        rows: tuple[list[Text], ...],
        widths: tuple[int, ...],
        console: Console,
        options: ConsoleOptions,
    ) -> Iterator[Text]:
        right = [column.number for column in self.columns]
        for number, row in enumerate(rows):
            yield from side_by_side(row, widths, console, right=right)
            if number == 0:
                yield underline(widths, glyphs_for(options).rule)

    def _one_below_the_other(self) -> RenderResult:
        """For a console too narrow for the columns: each row as a grid."""
        headings = [column.heading for column in self.columns]
        for number, row in enumerate(self.shown):
            if number:
                yield Text()
            yield Grid("", tuple(zip(headings, row, strict=True)))
