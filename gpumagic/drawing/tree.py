"""Things within things, such as the modules of a model: rows that fold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing.html import INSET, Html, element, lines, unbroken, words
from gpumagic.drawing.ink import (
    GAP,
    fit,
    glyphs_for,
    ink,
    side_by_side,
    underline,
    widest,
    widest_word,
)
from gpumagic.drawing.table import MOST_ROWS, Column, caption_ink, indented, narrower
from gpumagic.report.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

_NONE = "none"
_STEP = 2  # characters for each level
_LEVELS_IN_TEXT = 2
# Each level moves names to the right by so much, and leaves what stands beside them.
_STEP_EM, _MARK_EM, _NAME_EM, _CELL_EM = 1.2, 1.1, 24, 8
_LEAST_NAME_EM = 6


@dataclass(frozen=True)
class Branch:
    """One thing, and what is in it.

    Args:
        name: What it is called in what it is in.

        cells: What stands beside it, one for each column after the first.

        branches: What is in it.
    """

    name: str
    cells: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class Tree:
    """Rows that open, with the same columns at each level.

    Text shows two levels, as it cannot be opened; asked for as a whole, all of them.

    Args:
        caption: What is shown.

        columns: What stands in each column; the first one names the row.

        branches: What is at the top.

        is_open: Whether all levels are wanted.
    """

    caption: str
    columns: tuple[Column, ...]
    branches: tuple[Branch, ...]
    is_open: bool = False

    def opened(self) -> Tree:
        """The same with all levels in sight."""
        return replace(self, is_open=True)

    # ---------------------------------------------------------------------- HTML

    def html(self) -> Html:
        """A `<details>` for each row that has something in it; the first are open."""
        head = _line(
            [element("strong", words(each.heading)) for each in self.columns],
            self.columns,
            _NAME_EM,
        )
        caption = element("strong", words(self.caption), style="font-weight:600")
        return element(
            "div",
            lines(
                (
                    element("div", caption),
                    element("div", head, style=f"margin-left:{_MARK_EM}em"),
                    *self._rows_html(self.branches, 0),
                    "" if self.branches else element("div", words(_NONE)),
                )
            ),
            style=f"margin:0 0 .9em {INSET};line-height:1.7",
        )

    def _rows_html(self, branches: tuple[Branch, ...], depth: int) -> Iterator[Html]:
        for branch in branches[:MOST_ROWS]:
            row = self._row_html(branch, depth)
            if not branch.branches:
                yield element("div", row, style=f"margin-left:{_MARK_EM}em")
                continue
            inside = lines(self._rows_html(branch.branches, depth + 1))
            yield element(
                "details",
                element("summary", row, style="cursor:pointer"),
                element("div", inside, style=f"margin-left:{_STEP_EM}em"),
                open="open" if self.is_open or depth < _LEVELS_IN_TEXT - 1 else "",
            )
        if len(branches) > MOST_ROWS:
            yield element("div", words(_more(branches)))

    def _row_html(self, branch: Branch, depth: int) -> Html:
        width_em = max(_NAME_EM - _STEP_EM * depth, _LEAST_NAME_EM)
        shown = [words(branch.name), *map(unbroken, _cells(branch, self.columns))]
        return _line(shown, self.columns, width_em)

    # ---------------------------------------------------------------------- text

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        rows = [
            [Text(" " * _STEP * depth).append_text(ink(name, options)), *cells]
            for depth, name, cells in self._told(self.branches, 0, options)
        ]
        heads = [ink(each.heading, options, "bold") for each in self.columns]
        room = narrower(options).max_width - len(GAP) * (len(heads) - 1)
        widths = self._widths(heads, rows, room)
        right = [each.number for each in self.columns]
        for number, row in enumerate((heads, *rows)):
            for line in side_by_side(row, widths, console, right=right):
                yield indented(line)
            if number == 0:
                yield indented(underline(widths, glyphs_for(options).rule))
        if not rows:
            yield indented(ink(_NONE, options, "dim"))

    def _told(
        self, branches: tuple[Branch, ...], depth: int, options: ConsoleOptions
    ) -> Iterator[tuple[int, str, list[Text]]]:
        for branch in branches[:MOST_ROWS]:
            cells = [ink(cell, options) for cell in _cells(branch, self.columns)]
            yield depth, branch.name, cells
            if self.is_open or depth + 1 < _LEVELS_IN_TEXT:
                yield from self._told(branch.branches, depth + 1, options)
            elif branch.branches:
                inside = count_text(_count(branch.branches), "row")
                empty = [Text() for _ in cells]
                yield depth + 1, f"... {inside} inside", empty
        if len(branches) > MOST_ROWS:
            yield depth, _more(branches), [Text() for _ in self.columns[1:]]

    def _widths(
        self, heads: list[Text], rows: list[list[Text]], room: int
    ) -> tuple[int, ...]:
        columns = [
            [row[at].plain for row in (heads, *rows)] for at in range(len(heads))
        ]
        wants = [widest(column) for column in columns]
        least = [min(widest_word(column), 16) for column in columns]
        return fit(wants, least, room) or tuple(
            max(room // len(heads), 1) for _ in heads
        )


def _line(shown: list[Html], columns: tuple[Column, ...], name_em: float) -> Html:
    """What stands in one row: boxes of the same widths at each level."""
    first, *rest = shown
    boxes = [element("span", first, style=_box(name_em, right=False))]
    boxes += [
        element("span", cell, style=_box(_CELL_EM, right=column.number))
        for cell, column in zip(rest, columns[1:], strict=True)
    ]
    return Html(" &nbsp; ".join(boxes))


def _box(width_em: float, *, right: bool) -> str:
    align = ";text-align:right" if right else ""
    return f"display:inline-block;width:{width_em:.3g}em;vertical-align:top{align}"


def _cells(branch: Branch, columns: tuple[Column, ...]) -> tuple[str, ...]:
    """One for each column, with nothing where a branch has fewer."""
    missing = len(columns) - 1 - len(branch.cells)
    return (*branch.cells[: len(columns) - 1], *[""] * missing)


def _more(branches: tuple[Branch, ...]) -> str:
    return f"... and {len(branches) - MOST_ROWS:,} more"


def _count(branches: tuple[Branch, ...]) -> int:
    return sum(1 + _count(branch.branches) for branch in branches)
