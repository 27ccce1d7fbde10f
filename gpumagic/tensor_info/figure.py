"""Draws figures of tiles, as a picture in HTML and as characters in text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, captioned, element, words
from gpumagic.drawing.ink import GAP, ink, side_by_side, widest
from gpumagic.drawing.palette import text_on
from gpumagic.drawing.table import INDENT, caption_ink, indented
from gpumagic.tensor_info.picture import Key, bands_svg, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

    from gpumagic.tensor_info.picture import Matrix, Row, Tile

_BETWEEN = 4

# What a console without these characters is shown in their place.
_IN_ASCII = str.maketrans({"\N{MULTIPLICATION SIGN}": "x", "\N{MIDDLE DOT}": "."})
Bands = tuple[tuple["Matrix", ...], ...]


@dataclass(frozen=True)
class Figure:
    """Matrices of tiles under one caption."""

    caption: str  # what a tile is
    # matrices that stand beside each other, band by band
    bands: tuple[tuple[Matrix, ...], ...]
    # how to read it, each in a few words; a `Key` where that depends on the form
    keys: tuple[str | Key, ...] = ()
    remarks: tuple[str, ...] = ()  # what is not drawn

    @property
    def legend(self) -> str:
        """The keys of the picture and the remarks in one line."""
        drawn = (key.drawn if isinstance(key, Key) else key for key in self.keys)
        return "; ".join((*drawn, *self.remarks))

    def html(self) -> Html:
        """Caption, picture, and how to read it."""
        drawn, width, height = bands_svg(self.caption, self.bands)
        alt = ". ".join(part for part in (self.caption, self.legend) if part)
        return captioned(
            self.caption,
            svg.image(drawn, alt, width, height),
            *((element("br"), words(self.legend)) if self.legend else ()),
            line_height=1.8,
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        room = options.max_width - INDENT
        for line in bands_ink(self.bands, room, console, options):
            yield indented(line)
        for said in (*self._spelled_keys(), *self.remarks):
            yield indented(ink(spelled(said, options), options))

    def _spelled_keys(self) -> Iterator[str]:
        """The keys of what characters show."""
        for key in self.keys:
            said = key.spelled if isinstance(key, Key) else key
            if said:
                yield said


def spelled(text: str, options: ConsoleOptions) -> str:
    """The text in characters that this console can encode."""
    return text.translate(_IN_ASCII) if options.ascii_only else text


def bands_ink(
    bands: Bands, room: int, console: Console, options: ConsoleOptions
) -> Iterator[Text]:
    """All matrices, beside each other as far as there is room."""
    first = True
    for band in bands:
        blocks = [
            block
            for matrix in band
            for block in _blocks(matrix, room, console, options)
        ]
        for row in _rows_of(blocks, room):
            if not first:
                yield Text()
            yield from _beside(row)
            first = False


def _blocks(
    matrix: Matrix, room: int, console: Console, options: ConsoleOptions
) -> Iterator[list[Text]]:
    """The matrix, in pieces of as many columns as there is room for."""
    names = [matrix.corner, *(row.name for row in matrix.rows)]
    name = min(widest(ink(each, options).plain for each in names), max(room // 3, 1))
    left = max(room - name - len(GAP), 1)
    widths = [min(width, left) for width in matrix.widths()]
    with_gaps = [width + len(GAP) for width in widths]
    for start, stop in pieces(with_gaps, left + len(GAP)):
        piece = matrix.columns(start, stop)
        yield list(_lines(piece, [name, *widths[start:stop]], console, options))


def _lines(
    piece: Matrix, widths: list[int], console: Console, options: ConsoleOptions
) -> Iterator[Text]:
    if piece.title:
        yield from ink(piece.title, options).wrap(
            console, sum(widths) + len(GAP) * (len(widths) - 1)
        )
    right = [False, *(True for _ in piece.heads)]
    heads = [ink(head, options, "dim") for head in piece.heads]
    if any(piece.heads):
        corner = ink(piece.corner, options, "dim")
        yield from side_by_side((corner, *heads), widths, console, right=right)
    for row in piece.rows:
        yield from side_by_side(_cells(row, options), widths, console, right=right)


def _cells(row: Row, options: ConsoleOptions) -> list[Text]:
    tiles = [
        ink(spelled(tile.text, options), options, _style(tile)) for tile in row.tiles
    ]
    return [ink(row.name, options, "dim"), *tiles]


def _style(tile: Tile) -> str:
    if tile.fill:
        return f"{text_on(tile.fill)} on {tile.fill}"
    return "dim" if tile.look in ("unused", "gap", "skip") else ""


def _rows_of(blocks: list[list[Text]], room: int) -> Iterator[list[list[Text]]]:
    """Blocks in rows that fit."""
    row: list[list[Text]] = []
    used = 0
    for block in blocks:
        width = max((line.cell_len for line in block), default=0)
        if row and used + _BETWEEN + width > room:
            yield row
            row, used = [], 0
        used += width + (_BETWEEN if row else 0)
        row.append(block)
    if row:
        yield row


def _beside(blocks: list[list[Text]]) -> Iterator[Text]:
    widths = [max(line.cell_len for line in block) for block in blocks]
    for number in range(max(map(len, blocks))):
        joined = Text(overflow="fold")
        for place, (block, width) in enumerate(zip(blocks, widths, strict=True)):
            line = block[number].copy() if number < len(block) else Text()
            line.align("left", width)
            joined.append(" " * (_BETWEEN if place else 0)).append_text(line)
        joined.rstrip()
        yield joined
