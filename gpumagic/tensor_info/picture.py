"""Draws matrices of tiles as one SVG of few shapes.

A picture cannot know the theme around it, so it brings a fill for all of its text.
A shape for each fill, and a group for each colour of text, keep a picture at a
third of what a shape for each tile would take.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Literal, NamedTuple

from gpumagic.drawing import svg
from gpumagic.drawing.html import Html, element, escape
from gpumagic.drawing.ink import clean
from gpumagic.drawing.palette import BLACK, GREY, WHITE, text_on
from gpumagic.report.units import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

ELLIPSIS = "..."
Look = Literal["used", "shared", "ghost", "unused", "gap", "skip", "more", "blank"]
"""How a tile is meant.

used: an element lies here. shared: several indices do. ghost: the same element
once more, by a stride of 0. unused: a place without an element. gap: a run of
such places. skip: what is left out. more: the tile to the left goes on. blank:
there is nothing to say.
"""

_WIDTH = 720
_LETTER, _PADDING, _NARROWEST = 6.6, 10, 26
_HEAD_HEIGHT, _TILE_HEIGHT, _HOP_HEIGHT = 18, 20, 20
_BETWEEN = 12
_DOWN_MARGIN = 14
_ARROW = 8
_MOST_NAME = 28
LIGHT = "#E0E0E0"
"""What text stands on that belongs to no element; black reads well on it."""

HEAD = "#595959"
"""What headings stand on; white reads well on it."""

_HATCH = "url(#h)"


@dataclass(frozen=True)
class Tile:
    """One cell of a figure."""

    text: str
    look: Look
    fill: str = ""


BLANK = Tile("", "blank")


UNUSED = Tile("\N{MIDDLE DOT}", "unused")


UNDECIDED = Tile("?", "blank")


SKIPPED = Tile(ELLIPSIS, "skip")


MORE = Tile("~", "more")


class Key(NamedTuple):
    """How to read a look, which a picture and characters show by different means."""

    drawn: str  # what it is in the picture, in a few words
    spelled: str  # what it is in characters; empty where those do not show it


@dataclass(frozen=True)
class Row:
    """Tiles beside each other, and what stands before them."""

    name: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Hop:
    """One step from a column to another, drawn as an arrow over the columns."""

    start: int
    stop: int
    label: str


@dataclass(frozen=True)
class Matrix:
    """Rows of tiles under common headings."""

    corner: str  # what the headings are; stands before them
    heads: tuple[str, ...]  # one for each column
    rows: tuple[Row, ...]  # from top to bottom, one tile for each column
    title: str = ""  # what sets this matrix apart from those beside it
    hops: tuple[Hop, ...] = ()  # arrows over the columns
    down: bool = False  # whether an arrow goes from the first row to the second

    def columns(self, start: int, stop: int) -> Matrix:
        """Some neighbouring columns as a matrix, with the arrows that fit in."""
        hops = tuple(
            Hop(hop.start - start, hop.stop - start, hop.label)
            for hop in self.hops
            if start <= min(hop.start, hop.stop) and max(hop.start, hop.stop) < stop
        )
        rows = tuple(Row(row.name, row.tiles[start:stop]) for row in self.rows)
        heads = self.heads[start:stop]
        return Matrix(self.corner, heads, rows, self.title, hops, self.down)

    def widths(self) -> list[int]:
        """The letters that each column needs."""
        columns = zip(self.heads, *(row.tiles for row in self.rows), strict=True)
        return [
            max(len(head), *(len(tile.text) for tile in tiles))
            for head, *tiles in columns
        ]


def pieces(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Where to cut columns that do not fit: into few pieces, if possible alike.

    Returns:
        The first column of each piece and the one after its last; a column that
        is too wide for the room has a piece of its own.

    >>> pieces([30] * 24, 660)
    [(0, 12), (12, 24)]
    """
    cuts = _greedy(widths, room)
    each = -(-len(widths) // len(cuts))
    alike = [
        (start, min(start + each, len(widths))) for start in range(0, len(widths), each)
    ]
    fit = all(sum(widths[start:stop]) <= room for start, stop in alike)
    return alike if fit else cuts


def _greedy(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    cuts = [0]
    for number in range(1, len(widths)):
        if sum(widths[cuts[-1] : number + 1]) > room:
            cuts.append(number)
    return list(zip(cuts, [*cuts[1:], len(widths)], strict=True))


@dataclass(frozen=True)
class _Block:
    """A matrix with the measures that it is drawn in."""

    matrix: Matrix
    name: int
    columns: tuple[int, ...]

    @property
    def margin(self) -> int:
        return _DOWN_MARGIN if self.matrix.down else 0

    @property
    def width(self) -> int:
        drawn = self.margin + self.name + sum(self.columns)
        labels = (self._label_end(hop) for hop in self.matrix.hops)
        return max(drawn, self.margin + _room(self.matrix.title), *labels)

    def middle(self, column: int) -> int:
        """The middle of a column, from the left edge of the block on."""
        before = sum(self.columns[:column])
        return self.margin + 1 + self.name + before + self.columns[column] // 2

    def _label_end(self, hop: Hop) -> int:
        return self.label_left(hop) + _room(hop.label)

    def label_left(self, hop: Hop) -> int:
        """Where a label begins: on its arrow, or beside one that it would hide."""
        start, stop = sorted((self.middle(hop.start), self.middle(hop.stop)))
        width = _room(hop.label)
        beside = stop - start < width + 24
        return stop + 8 if beside else (start + stop - width) // 2

    @property
    def hops_height(self) -> int:
        """The room for arrows over the headings."""
        hops = self.matrix.hops
        if any(hop.label for hop in hops):
            return _HOP_HEIGHT * len(hops) + _ARROW
        return _ARROW + 2 if hops else 0

    @property
    def head_height(self) -> int:
        """The headings, if there are any."""
        return _HEAD_HEIGHT if any(self.matrix.heads) else 0

    @property
    def top(self) -> int:
        """Where the tiles begin: below title, arrows and headings."""
        title = _HEAD_HEIGHT + 2 if self.matrix.title else 0
        return title + self.hops_height + self.head_height

    @property
    def height(self) -> int:
        return self.top + _TILE_HEIGHT * len(self.matrix.rows)


def bands_svg(
    title: str, bands: tuple[tuple[Matrix, ...], ...]
) -> tuple[str, int, int]:
    """The picture, its width and its height."""
    canvas = Canvas()
    right = y = 0
    for band in bands:
        blocks = [block for matrix in band for block in _blocks(matrix)]
        x, lowest = 0, y
        for block in blocks:
            if x and x + block.width > _WIDTH:
                x, y = 0, lowest + _BETWEEN // 2
            _draw(canvas, block, x, y)
            right, lowest = max(right, x + block.width), max(lowest, y + block.height)
            x += block.width + _BETWEEN
        y = lowest + _BETWEEN // 2
    width, height = right + 2, y - _BETWEEN // 2 + 2
    return svg.picture(width, height, title, *canvas.shapes()), width, height


def _blocks(matrix: Matrix) -> list[_Block]:
    """The matrix in pieces no wider than a notebook."""
    names = [matrix.corner, *(row.name for row in matrix.rows)]
    name = max(_room(_cut(each)) for each in names) if any(names) else 0
    columns = [
        max(_NARROWEST, round(each * _LETTER) + _PADDING) for each in matrix.widths()
    ]
    return [
        _Block(matrix.columns(start, stop), name, tuple(columns[start:stop]))
        for start, stop in pieces(columns, _WIDTH - name)
    ]


def _draw(canvas: Canvas, block: _Block, x: int, y: int) -> None:
    matrix = block.matrix
    left = x + block.margin + 1
    if matrix.title:
        box = Box(left, y + 1, _room(matrix.title), _HEAD_HEIGHT)
        canvas.head(box, matrix.title)
    tops = y + block.top + 1
    heads = tops - block.head_height
    if matrix.corner and any(matrix.heads):
        canvas.head(Box(left, heads, block.name, _HEAD_HEIGHT), _cut(matrix.corner))
    lefts = _lefts(block, left + block.name)
    for head, at, width in zip(matrix.heads, lefts, block.columns, strict=True):
        if head:
            canvas.head(Box(at, heads, width, _HEAD_HEIGHT), head)
    for number, row in enumerate(matrix.rows):
        _draw_row(canvas, block, row, left, tops + number * _TILE_HEIGHT)
    _draw_hops(canvas, block, x, heads)
    if matrix.down:
        first = tops + _TILE_HEIGHT // 2
        canvas.arrow(((x + 7, first), (x + 7, first + _TILE_HEIGHT)))


def _lefts(block: _Block, start: int) -> list[int]:
    return [start + sum(block.columns[:number]) for number in range(len(block.columns))]


def _draw_row(canvas: Canvas, block: _Block, row: Row, left: int, y: int) -> None:
    if block.name and row.name:
        canvas.head(Box(left, y, block.name, _TILE_HEIGHT), _cut(row.name))
    tiles = list(
        zip(row.tiles, _lefts(block, left + block.name), block.columns, strict=True)
    )
    for number, (tile, at, width) in enumerate(tiles):
        if tile.look == "more" and number:
            continue
        following = takewhile(lambda each: each[0].look == "more", tiles[number + 1 :])
        whole = width + sum(more for _, _, more in following)
        if tile != BLANK:
            canvas.tile(Box(at, y, whole, _TILE_HEIGHT), tile)


def _draw_hops(canvas: Canvas, block: _Block, x: int, heads: int) -> None:
    """Arrows above the headings, the shortest nearest to them."""
    hops = sorted(block.matrix.hops, key=lambda hop: abs(hop.stop - hop.start))
    for number, hop in enumerate(hops):
        # Arrows that leave one column together would otherwise look like one.
        start = x + block.middle(hop.start) + 4 * number
        stop = x + block.middle(hop.stop)
        y = heads - _ARROW
        if hop.label:
            y -= _HOP_HEIGHT // 2 - 1 + number * _HOP_HEIGHT
            left = x + block.label_left(hop)
            canvas.chip(Box(left, y - 8, _room(hop.label), 16), hop.label)
        canvas.arrow(((start, heads), (start, y), (stop, y), (stop, heads)))


def _cut(text: str) -> str:
    """A name as short as a picture needs it; the text has it whole."""
    return shortened(clean(text), _MOST_NAME)


def _room(text: str) -> int:
    return max(_NARROWEST, round(len(text) * _LETTER) + _PADDING) if text else 0


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def data(self) -> str:
        """The rectangle as the data of a path."""
        return f"M{self.left} {self.top}h{self.width}v{self.height}h-{self.width}z"

    def inset(self, by: int) -> Box:
        """The rectangle within this one."""
        return Box(
            self.left + by, self.top + by, self.width - 2 * by, self.height - 2 * by
        )


class Canvas:
    """Collects what is drawn, by how it looks."""

    def __init__(self) -> None:
        self._filled: dict[str, list[str]] = defaultdict(list)
        self._chips: list[str] = []
        self._dashed: list[str] = []
        self._doubled: list[str] = []
        self._lines: list[str] = []
        self._points: list[str] = []
        self._texts: dict[str, list[Html]] = defaultdict(list)

    def head(self, box: Box, text: str) -> None:
        """A heading: white on grey."""
        self._filled[HEAD].append(box.data)
        self._text(box, text, HEAD)

    def chip(self, box: Box, text: str) -> None:
        """A label over whatever is below it."""
        self._chips.append(box.data)
        self._text(box, text, HEAD)

    def tile(self, box: Box, tile: Tile) -> None:
        """A tile as its look demands."""
        if tile.look in ("unused", "gap"):
            self._filled[_HATCH].append(box.data)
            if tile.look == "gap":
                self._filled[LIGHT].append(box.inset(4).data)
                self._text(box, tile.text, LIGHT)
            return
        fill = tile.fill or (WHITE if tile.look == "ghost" else LIGHT)
        if tile.look == "ghost":
            self._dashed.append(box.inset(1).data)
        else:
            self._filled[fill].append(box.data)
        if tile.look == "shared":
            self._doubled.append(box.inset(3).data)
        self._text(box, tile.text, fill)

    def arrow(self, points: tuple[tuple[int, int], ...]) -> None:
        """A line through points, with a head at its last."""
        self._lines.append("M" + "L".join(f"{x} {y}" for x, y in points))
        (before, above), (x, y) = points[-2:]
        if before == x:
            back = -6 if y > above else 6
            self._points.append(f"M{x} {y}l-4 {back}h8z")

    def shapes(self) -> list[Html]:
        """Everything, in the order in which it covers what was there before."""
        drawn = [_hatch()] if _HATCH in self._filled else []
        for fill, boxes in sorted(self._filled.items(), key=_light_last):
            stroke = "none" if fill == LIGHT else (WHITE if fill == HEAD else GREY)
            drawn.append(_path(boxes, fill, stroke))
        drawn += [
            _path(self._dashed, WHITE, BLACK, stroke_dasharray="3 2"),
            _path(self._doubled, "none", BLACK),
            _path(self._lines, "none", GREY, stroke_width=2),
            _path(self._points, GREY, "none"),
            _path(self._chips, HEAD, WHITE),
        ]
        drawn += [_group(ink, texts) for ink, texts in self._texts.items()]
        return [shape for shape in drawn if shape]

    def _text(self, box: Box, text: str, fill: str) -> None:
        if text:
            x, y = box.left + box.width // 2, box.top + box.height // 2 + 4
            self._texts[text_on(fill)].append(element("text", escape(text), x=x, y=y))


def _light_last(item: tuple[str, list[str]]) -> bool:
    return item[0] == LIGHT


def _path(boxes: list[str], fill: str, stroke: str, **more: str | int) -> Html:
    if not boxes:
        return Html("")
    return element("path", d="".join(boxes), fill=fill, stroke=stroke, **more)


def _group(ink: str, texts: list[Html]) -> Html:
    return element(
        "g",
        *texts,
        fill=ink,
        font_size=11,
        font_family="sans-serif",
        text_anchor="middle",
    )


def _hatch() -> Html:
    return element(
        "pattern",
        element("path", d="M0 0h7v7h-7z", fill=LIGHT),
        element("path", d="M0 0h2v7h-2z", fill=GREY),
        id="h",
        width=7,
        height=7,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
