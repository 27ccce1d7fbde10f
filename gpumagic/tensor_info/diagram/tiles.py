"""What a figure consists of, before it is a picture or characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from gpumagic.drawing.palette import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY_BLUE,
    VERMILLION,
    YELLOW,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FILLS = (ORANGE, SKY_BLUE, GREEN, YELLOW, BLUE, VERMILLION, PURPLE)
"""Each carries text, so that those may be used as well that vanish on one theme."""

ELLIPSIS = "..."

Look = Literal["used", "shared", "ghost", "unused", "gap", "skip", "more", "blank"]
"""How a tile is meant.

used: an element lies here. shared: several indices do. ghost: the same element
once more, by a stride of 0. unused: a place without an element. gap: a run of
such places. skip: what is left out. more: the tile to the left goes on. blank:
there is nothing to say.
"""


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
    """How to read a look, which a picture and characters show by different means.

    Attributes:
        drawn: What it is in the picture, in a few words.
        spelled: What it is in characters; empty where those do not show it.
    """

    drawn: str
    spelled: str


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
    """Rows of tiles under common headings.

    Args:
        corner: What the headings are; stands before them.

        heads: One for each column.

        rows: From top to bottom, one tile for each column.

        title: What sets this matrix apart from those beside it.

        hops: Arrows over the columns.

        down: Whether an arrow goes from the first row to the second.
    """

    corner: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    title: str = ""
    hops: tuple[Hop, ...] = ()
    down: bool = False

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
