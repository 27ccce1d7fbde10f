"""Pieces of a row on a line of pixels or characters, where many may share one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FURTHEST = 1e100
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a row.

    Args:
        kind: What it is; empty for what is not in use.

        size: How long it is.

        name: What it belongs to, if anything.

        tell: Says all there is to it alone; asked only where that is drawn.

        starts: Whether something new begins with it that is to be set off.
    """

    kind: str
    size: float
    name: str = ""
    tell: Callable[[], str] | None = None
    starts: bool = False


@dataclass(frozen=True)
class StripRow:
    """Pieces one behind the other.

    Args:
        label: What they belong to; may be empty where it is the one above.

        pieces: From left to right.

        text: The row as it is read, in numbers.
    """

    label: str
    pieces: tuple[Piece, ...]
    text: str

    @cached_property
    def drawn(self) -> list[Piece]:
        """The pieces that have a size."""
        return [piece for piece in self.pieces if 0 < piece.size < _FURTHEST]

    @property
    def length(self) -> float:
        """All pieces together."""
        return sum(piece.size for piece in self.drawn)

    def stretches(self, scale: float) -> Iterator[tuple[float, float]]:
        """From where to where there is no piece that is to be set off."""
        start = end = 0.0
        for piece, left, right in self.places(scale):
            if piece.starts and left > start:
                yield start, left
                start = left
            end = right
        yield start, end

    def places(self, scale: float) -> Iterator[tuple[Piece, float, float]]:
        """Each piece with where it begins and ends, where one unit is `scale` long."""
        at = 0.0
        for piece in self.drawn:
            end = at + piece.size * scale
            yield piece, at, end
            at = end


def coverage(
    row: StripRow, scale: float, cells: int, kinds: tuple[str, ...]
) -> dict[str, list[float]]:
    """Of each cell of the line the share that each kind covers."""
    shares = {kind: [0.0] * cells for kind in kinds}
    for piece, start, end in row.places(scale):
        its = shares.get(piece.kind)
        if its is None:
            continue
        first, last = int(start), min(math.ceil(end), cells)
        for cell in range(first, last):
            its[cell] += min(end, cell + 1) - max(start, cell)
    return shares


def fine_cells(row: StripRow, scale: float, cells: int, least: float) -> set[int]:
    """The cells in which lies a piece that is narrower than `least` of them."""
    fine: set[int] = set()
    for _, start, end in row.places(scale):
        if end - start < least:
            first = min(int(start), cells - 1)
            fine.update(range(first, min(max(int(end), first) + 1, cells)))
    return fine


def levelled(shares: list[float], fine: set[int], width: int) -> list[float]:
    """The shares as heights: all or nothing, but evenly over groups of fine cells."""
    heights = [1.0 if share >= _HALF else 0.0 for share in shares]
    for group in {cell // width for cell in fine}:
        cells = range(group * width, min((group + 1) * width, len(shares)))
        mean = sum(shares[cell] for cell in cells) / len(cells)
        for cell in cells:
            heights[cell] = mean
    return heights
