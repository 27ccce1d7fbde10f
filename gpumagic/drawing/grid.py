"""Names and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.padding import Padding

from gpumagic.drawing.cell import Cell, cell_html, cell_ink
from gpumagic.drawing.columns import fit, widest, widest_word
from gpumagic.drawing.html import Html, words
from gpumagic.drawing.ink import GAP, ink, side_by_side
from gpumagic.drawing.tabular import (
    INDENT,
    caption_ink,
    cell_of,
    indented,
    row_html,
    table_html,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text


@dataclass(frozen=True)
class Grid:
    """What is known about one thing.

    Args:
        caption: What it is about; may be empty.

        pairs: Each name with its value, in the order in which they matter.
    """

    caption: str
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
        for line in self._lines(console, options, room):
            yield indented(line)

    def _lines(
        self, console: Console, options: ConsoleOptions, room: int
    ) -> Iterator[RenderableType]:
        names = [ink(name, options) for name, _ in self.pairs]
        values = [cell_ink(value, options) for _, value in self.pairs]
        widths = _widths(names, values, room - len(GAP))
        for name, value in zip(names, values, strict=True):
            if widths:
                yield from side_by_side((name, value), widths, console)
            else:
                yield from (name, Padding.indent(value, INDENT))


def _widths(names: list[Text], values: list[Text], room: int) -> tuple[int, ...] | None:
    columns = [[text.plain for text in texts] for texts in (names, values)]
    wants = [widest(column) for column in columns]
    return fit(wants, [min(widest_word(each), 24) for each in columns], room)
