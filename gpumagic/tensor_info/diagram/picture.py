"""Matrices of tiles as one SVG.

A picture cannot know the theme around it, so it brings a fill for all of its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from gpumagic.drawing import svg
from gpumagic.drawing.ink import clean
from gpumagic.tensor_info.diagram.canvas import Box, Canvas
from gpumagic.tensor_info.diagram.tiles import BLANK, pieces

if TYPE_CHECKING:
    from gpumagic.tensor_info.diagram.tiles import Hop, Matrix, Row

_WIDTH = 720
_LETTER, _PADDING, _NARROWEST = 6.6, 10, 26
_HEAD_HEIGHT, _TILE_HEIGHT, _HOP_HEIGHT = 18, 24, 20
_BETWEEN = 18
_DOWN_MARGIN = 14
_ARROW = 8
_MOST_NAME = 28


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
    shown = clean(text)
    return shown if len(shown) <= _MOST_NAME else f"{shown[: _MOST_NAME - 3]}..."


def _room(text: str) -> int:
    return max(_NARROWEST, round(len(text) * _LETTER) + _PADDING) if text else 0
