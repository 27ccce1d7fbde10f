"""Matrices of tiles: a picture of few shapes in HTML, characters in text.

A picture cannot know the theme around it, so it brings a fill for all of its text. A
shape for each fill, and a group for each colour of text, keep a picture at a third of
what a shape for each tile would take.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple

from rich.text import Text

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, captioned, element, escape, words
from gpumagic.drawing.ink import GAP, clean, ink, side_by_side, widest
from gpumagic.drawing.palette import GREY, text_on
from gpumagic.drawing.table import INDENT, caption_ink, indented
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult

Look = Literal["used", "shared", "ghost", "unused", "gap", "skip", "more", "blank"]
"""What a tile stands for.

used: an element lies here. shared: several indices do. ghost: the same element once
more. unused: a place without an element. gap: a run of such places. skip: what is left
out. more: the tile to the left goes on. blank: there is nothing to say.
"""

LIGHT = "#E0E0E0"
"""What text stands on that belongs to no element; black reads well on it."""

HEAD = "#595959"
"""What headings stand on; white reads well on it."""

_WIDTH, _LETTER, _PADDING, _NARROWEST = 720, 6.6, 10, 26
_HEAD_HEIGHT, _TILE_HEIGHT, _BETWEEN = 18, 20, 12
_MOST_NAME = 28
_TEXT_BETWEEN = 4

# What a console without these characters is shown in their place.
_IN_ASCII = str.maketrans({"\N{MULTIPLICATION SIGN}": "x", "\N{MIDDLE DOT}": "."})


@dataclass(frozen=True)
class Tile:
    """One cell of a figure."""

    text: str
    look: Look
    fill: str = ""


BLANK = Tile("", "blank")
UNUSED = Tile("\N{MIDDLE DOT}", "unused")
UNDECIDED = Tile("?", "blank")
SKIPPED = Tile("...", "skip")
MORE = Tile("~", "more")


@dataclass(frozen=True)
class Row:
    """Tiles beside each other, and what stands before them."""

    name: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of tiles under common headings."""

    corner: str  # what the headings are; stands before them
    heads: tuple[str, ...]  # one for each column
    rows: tuple[Row, ...]  # from top to bottom, one tile for each column
    title: str = ""  # what sets this matrix apart from those beside it

    def in_pieces(self, widths: Sequence[int], room: int) -> Iterator[_Piece]:
        """Neighbouring columns as matrices that fit, with the widths of each."""
        for start, stop in pieces(widths, room):
            rows = tuple(Row(row.name, row.tiles[start:stop]) for row in self.rows)
            some = replace(self, heads=self.heads[start:stop], rows=rows)
            yield _Piece(some, tuple(widths[start:stop]))

    @property
    def names(self) -> list[str]:
        """What stands before the rows."""
        return [self.corner, *(row.name for row in self.rows)]

    def widths(self) -> list[int]:
        """The letters that each column needs."""
        columns = zip(self.heads, *(row.tiles for row in self.rows), strict=True)
        return [
            max(len(head), *(len(tile.text) for tile in tiles))
            for head, *tiles in columns
        ]


class _Piece(NamedTuple):
    matrix: Matrix
    widths: tuple[int, ...]


def pieces(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Where to cut columns that do not fit: into few pieces, if possible alike.

    A column that is too wide for the room has a piece of its own.

    >>> pieces([30] * 24, 660)
    [(0, 12), (12, 24)]
    """
    starts = [0]
    for number in range(1, len(widths)):
        if sum(widths[starts[-1] : number + 1]) > room:
            starts.append(number)
    each = -(-len(widths) // len(starts))
    alike = list(range(0, len(widths), each))
    for cuts in (alike, starts):
        found = list(zip(cuts, [*cuts[1:], len(widths)], strict=True))
        if all(sum(widths[start:stop]) <= room for start, stop in found):
            return found
    return found


@dataclass(frozen=True)
class Figure:
    """Matrices of tiles under one caption."""

    caption: str  # what a tile is
    # matrices that stand beside each other, band by band
    bands: tuple[tuple[Matrix, ...], ...]
    keys: tuple[str, ...] = ()  # how to read it, and what is not drawn

    def html(self) -> Html:
        """Caption, picture, and how to read it."""
        drawn, width, height = _svg(self.caption, self.bands)
        legend = "; ".join(self.keys)
        alt = ". ".join(filter(None, (self.caption, legend)))
        return captioned(
            self.caption,
            svg.image(drawn, alt, width, height),
            *((element("br"), words(legend)) if legend else ()),
            line_height=1.8,
        )

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        yield from caption_ink(self.caption, options)
        room = options.max_width - INDENT
        for band in self.bands:
            for row in _in_rows(band, room, console, options):
                yield from map(indented, _beside(row))
        for said in self.keys:
            yield indented(ink(_spelled(said, options), options))


# ---------------------------------------------------------------------------- HTML


def _room(text: str) -> int:
    return max(_NARROWEST, round(len(text) * _LETTER) + _PADDING) if text else 0


def _cut(text: str) -> str:
    """A name as short as a picture needs it; the text has it whole."""
    return shortened(clean(text), _MOST_NAME)


def _svg(title: str, bands: tuple[tuple[Matrix, ...], ...]) -> tuple[str, int, int]:
    """The picture, its width and its height."""
    canvas = _Canvas()
    right = y = 0
    for band in bands:
        x, lowest = 0, y
        for matrix in band:
            name = max(_room(_cut(each)) for each in matrix.names)
            wide = [
                max(_NARROWEST, round(each * _LETTER) + _PADDING)
                for each in matrix.widths()
            ]
            for piece in matrix.in_pieces(wide, _WIDTH - name):
                width = max(name + sum(piece.widths), _room(matrix.title))
                if x and x + width > _WIDTH:
                    x, y = 0, lowest + _BETWEEN // 2
                bottom = _draw(canvas, piece, name, x + 1, y + 1)
                right, lowest = max(right, x + width), max(lowest, bottom)
                x += width + _BETWEEN
        y = lowest + _BETWEEN // 2
    width, height = right + 2, y - _BETWEEN // 2 + 2
    return svg.picture(width, height, title, *canvas.shapes()), width, height


def _draw(canvas: _Canvas, piece: _Piece, name: int, left: int, top: int) -> int:
    """Draw some columns, and tell where they end below."""
    matrix, widths = piece
    lefts = [left + name + sum(widths[:number]) for number in range(len(widths))]
    if matrix.title:
        box = _Box(left, top, _room(matrix.title), _HEAD_HEIGHT)
        canvas.put(box, matrix.title, HEAD)
        top += _HEAD_HEIGHT + 2
    if any(matrix.heads):
        heads = zip((left, *lefts), (name, *widths), strict=True)
        for text, (at, width) in zip(
            (_cut(matrix.corner), *matrix.heads), heads, strict=True
        ):
            if text:
                canvas.put(_Box(at, top, width, _HEAD_HEIGHT), text, HEAD)
        top += _HEAD_HEIGHT
    for row in matrix.rows:
        if row.name:
            canvas.put(_Box(left, top, name, _TILE_HEIGHT), _cut(row.name), HEAD)
        for number, tile in enumerate(row.tiles):
            after = takewhile(lambda each: each.look == "more", row.tiles[number + 1 :])
            last = number + 1 + len(list(after))
            box = _Box(lefts[number], top, sum(widths[number:last]), _TILE_HEIGHT)
            if tile != BLANK and not (tile.look == "more" and number):
                canvas.put(box, tile.text, tile.fill or LIGHT)
        top += _TILE_HEIGHT
    return top


class _Box(NamedTuple):
    """A rectangle in pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def data(self) -> str:
        """The rectangle as the data of a path."""
        return f"M{self.left} {self.top}h{self.width}v{self.height}h-{self.width}z"


class _Canvas:
    """Collects what is drawn, by its fill."""

    def __init__(self) -> None:
        self._filled: dict[str, list[str]] = defaultdict(list)
        self._texts: dict[str, list[Html]] = defaultdict(list)

    def put(self, box: _Box, text: str, fill: str) -> None:
        """A text on its fill."""
        self._filled[fill].append(box.data)
        if text:
            x, y = box.left + box.width // 2, box.top + box.height // 2 + 4
            drawn = element("text", escape(text), x=x, y=y)
            self._texts[text_on(fill)].append(drawn)

    def shapes(self) -> list[Html]:
        """All boxes, then what is written on them."""
        boxes = (
            element("path", d="".join(data), fill=fill, stroke=GREY)
            for fill, data in self._filled.items()
        )
        return [*boxes, *(svg.texts(each, to) for to, each in self._texts.items())]


# ---------------------------------------------------------------------------- text


def _spelled(text: str, options: ConsoleOptions) -> str:
    """The text in characters that this console can encode."""
    return text.translate(_IN_ASCII) if options.ascii_only else text


def _in_rows(
    band: tuple[Matrix, ...], room: int, console: Console, options: ConsoleOptions
) -> Iterator[list[list[Text]]]:
    """Matrices beside each other as far as there is room, each as lines."""
    row: list[list[Text]] = []
    used = 0
    for matrix in band:
        name = widest(ink(each, options).plain for each in matrix.names)
        name = min(name, max(room // 3, 1))
        left = max(room - name - len(GAP), 1)
        wide = [min(width, left) + len(GAP) for width in matrix.widths()]
        for piece in matrix.in_pieces(wide, left + len(GAP)):
            widths = [name, *(width - len(GAP) for width in piece.widths)]
            block = list(_lines(piece.matrix, widths, console, options))
            width = max(line.cell_len for line in block)
            if row and used + _TEXT_BETWEEN + width > room:
                yield row
                row, used = [], 0
            used += width + (_TEXT_BETWEEN if row else 0)
            row.append(block)
    yield row


def _lines(
    matrix: Matrix, widths: list[int], console: Console, options: ConsoleOptions
) -> Iterator[Text]:
    if matrix.title:
        wide = sum(widths) + len(GAP) * (len(widths) - 1)
        yield from ink(matrix.title, options).wrap(console, wide)
    right = [False, *(True for _ in matrix.heads)]
    rows = [[ink(text, options, "dim") for text in (matrix.corner, *matrix.heads)]]
    for row in matrix.rows:
        tiles = (
            ink(_spelled(tile.text, options), options, _style(tile))
            for tile in row.tiles
        )
        rows.append([ink(row.name, options, "dim"), *tiles])
    for cells in rows if any(matrix.heads) else rows[1:]:
        yield from side_by_side(cells, widths, console, right=right)


def _style(tile: Tile) -> str:
    if tile.fill:
        return f"{text_on(tile.fill)} on {tile.fill}"
    return "dim" if tile.look in ("unused", "gap", "skip") else ""


def _beside(blocks: list[list[Text]]) -> Iterator[Text]:
    widths = [max(line.cell_len for line in block) for block in blocks]
    for number in range(max(map(len, blocks))):
        joined = Text(overflow="fold")
        for place, (block, width) in enumerate(zip(blocks, widths, strict=True)):
            line = block[number].copy() if number < len(block) else Text()
            line.align("left", width)
            joined.append(" " * (_TEXT_BETWEEN if place else 0)).append_text(line)
        joined.rstrip()
        yield joined
